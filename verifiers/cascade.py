"""Several verifiers in order of cost: each is asked only if those before it were undecided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final, Self

from reason_spec.errors import SettingsError
from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

_LOSSES: Final[tuple[LossClass, ...]] = ("exact", "verified", "routed")


class CascadeVerifier(Verifier):
    """Asks ``stages`` in turn, until one accepts or rejects.

    Without the target's step those are asked that judge alone; with it those that compare, as the others
    have been asked already. The costs of all that were asked are counted together.
    """

    def __init__(self, stages: Sequence[Verifier], deadline_seconds: float = 5.0) -> None:
        super().__init__(deadline_seconds)
        if len(stages) < 2:
            raise SettingsError("a cascade of verifiers needs two at least")
        self.stages = tuple(stages)
        self.name = "+".join(stage.name for stage in stages)
        self.loss_class = max((stage.loss_class for stage in stages), key=_LOSSES.index)
        self.runs_on_target = any(stage.runs_on_target for stage in stages)
        self.judges_draft_only = any(stage.judges_draft_only for stage in stages)
        self.compares = any(stage.compares for stage in stages)

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Self:
        other = copy(self)
        other.stages = tuple(stage.with_thresholds(thresholds) for stage in self.stages)
        return other

    async def start(self) -> None:
        for stage in self.stages:
            await stage.start()

    async def close(self) -> None:
        for stage in self.stages:
            await stage.close()

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        verdict = Verdict("unknown", reason="no stage decided")
        for stage in self.stages:
            if stage.compares if target is not None else stage.judges_draft_only:
                verdict = (await stage.verify(context, drafted, target)).with_costs_of(verdict)
                if verdict.decision != "unknown":
                    break
        return verdict
