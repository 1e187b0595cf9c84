"""How much is speculated: for one answer by its plan, for many by the load.

Both questions use the same fitted pass times (`speculation.goodput.BatchTime`), fading rates and corrections
of predictions (`control.rates`). A strategy sees one `SpeculationBudget`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """

    load: LoadController | None = None
    planners: Mapping[str, Planner] = field(default_factory=dict)

    @contextmanager
    def admit(
        self, requested: RequestedBudget, *, planned_as: str | None = None
    ) -> Iterator[SpeculationBudget]:
        """Count an answer as live for the block, and yield its budget.

        ``planned_as`` is the strategy whose planner plans it; None: its settings say what it uses.
        """
        planner = None if planned_as is None else self.planners.get(planned_as)
        if self.load is None:
            yield SpeculationBudget(planner=planner)
            return
        with self.load.admit(requested, planner) as budget:
            yield budget
