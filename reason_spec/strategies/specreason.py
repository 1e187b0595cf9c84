"""Strategies in which a drafted step is judged alone: where it stands, the target writes nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.strategies.autoregressive import whole_answer
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.gated import write_gated
from reason_spec.strategies.search import Search
from reason_spec.types import LossClass, Step
from reason_spec.verifiers.base import Verifier


def check_judges_alone(strategy: str, verifier: Verifier) -> None:
    """Check that a verifier can judge what the draft wrote before the target has written anything.

    Raises:
        SettingsError: it needs the target's own words.
    """
    if not verifier.judges_alone:
        raise SettingsError(
            f"strategy {strategy} judges drafted steps alone, and verifier {verifier.name} needs the "
            "target's step beside them: use strategy lookahead, or a verifier such as likelihood"
        )


class SpecReason(Strategy):
    """SpecReason (arXiv 2504.07891): the target scores drafted steps and writes those it finds wanting.

    Unlike there the draft writes on while its step is scored, and the target's own steps use its token
    level, with the refused step as the first hint.
    """

    name: ClassVar[str] = "specreason"
    default_verifier: ClassVar[str | None] = "likelihood"

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.settings.depth == 0 else self.verifier.loss_class

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    @property
    def max_corrections(self) -> int:
        """How often the target mends a drafted step instead of writing its own."""
        return 0

    def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        writer = whole_answer(self.settings, self.target, self.draft)
        return write_gated(
            lambda left: self._search(left, recorder),
            lambda left: writer._write_steps(left, recorder),
            request,
            recorder,
            self.target,
            self.draft,
        )

    def _search(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        return Search(
            self.target,
            self.draft,
            self.verifier,
            self.settings,
            request,
            recorder,
            alone=True,
            by_target=self.settings.first_by_target,
            max_corrections=self.max_corrections,
            hands_over=True,
        ).steps()


class Rsd(SpecReason):
    """Reward-guided speculation (arXiv 2501.19324): as ``specreason``, with the verdict of a reward model."""

    name: ClassVar[str] = "rsd"
    default_verifier: ClassVar[str | None] = "reward"


class Hybrid(SpecReason):
    """Lookahead whose steps are judged alone first: the target writes only what that leaves open.

    What it then writes is compared with the drafted step, as in lookahead. Where the verifier can tell at
    which token a step goes wrong, the target mends that one, and the draft goes on behind it.
    """

    name: ClassVar[str] = "hybrid"
    default_verifier: ClassVar[str | None] = "likelihood+semantic"

    @property
    def max_corrections(self) -> int:
        return self.settings.max_corrections

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        super().check_verifier(verifier)
        if not verifier.compares:
            raise SettingsError(
                f"strategy {cls.name} compares what {verifier.name} leaves open, and that verifier cannot: "
                f"join it with one that does ({verifier.name}+semantic), or use strategy specreason"
            )
