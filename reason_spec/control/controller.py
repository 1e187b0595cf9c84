"""How much is speculated: for one answer by its plan, for many by the load.

Both questions use the same fitted pass times (`speculation.goodput.BatchTime`), fading rates and corrections
of predictions (`control.rates`). A strategy sees one `SpeculationBudget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from reason_spec.control.budget import RequestedBudget, SpeculationBudget
from reason_spec.control.load_controller import LoadController
from reason_spec.control.planner import Planner


@dataclass(frozen=True, slots=True)
class SpeculationController:
    """Gives every answer its budget.

    Args:
        load: bounds all live answers of the models; None: the load bounds nothing.
        planners: plan single answers, by strategy; answers of others use what their settings say.
        on_cores: called with every plan, where there is no ``load``, with whether the target is to have all
            cores, since no live answer has a use for the draft model.
    """

    load: LoadController | None = None
    planners: Mapping[str, Planner] = field(default_factory=dict)
    on_cores: Callable[[bool], None] = lambda _: None
    _live: list[SpeculationBudget] = field(default_factory=list)

    @contextmanager
    def admit(
        self, requested: RequestedBudget, *, planned_as: str | None = None
    ) -> Iterator[SpeculationBudget]:
        """Count an answer as live for the block, and yield its budget.

        ``planned_as`` is the strategy whose planner plans it; None: its settings say what it uses.
        """
        planner = None if planned_as is None else self.planners.get(planned_as)
        if self.load is None:
            budget = SpeculationBudget(planner=planner, on_plan=self._give_cores)
            self._live.append(budget)
            try:
                yield budget
            finally:
                self._live.remove(budget)
            return
        with self.load.admit(requested, planner) as budget:
            yield budget

    def _give_cores(self) -> None:
        self.on_cores(all(budget.is_draft_idle for budget in self._live))
