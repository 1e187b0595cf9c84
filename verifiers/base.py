"""The contract of every verifier, the rules common to all, and the factory."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

from reason_spec.errors import SettingsError, unknown_name
from reason_spec.settings import VerifierSettings
from reason_spec.types import FinishReason, LossClass, Step, Verdict

_CUT: Final[frozenset[FinishReason]] = frozenset({"length", "cancelled", "failed"})
_MAX_CHARS: Final = 20_000
_TWO_WORDINGS: Final = (
    "Ana has {0} apples and gets 3 more, so she holds {0} + 3 = {1} apples.",
    "With 3 further ones, the {0} apples of Ana become {0} + 3 = {1}.",
)


@dataclass(frozen=True, slots=True)
class VerificationContext:
    """What both steps follow: the question, and the text of the steps accepted so far."""

    question: str = ""
    prefix_text: str = ""


class Verifier(ABC):
    """Decides whether a drafted step may stand in the place of the target's.

    ``verify`` may be called concurrently and from one event loop after another. It never raises
    anything but ``asyncio.CancelledError``: a time-out, an exception in ``_judge`` or a model that does
    not load is the verdict ``unknown`` with the reason. ``start`` does raise, so that a caller learns
    of a missing model before the first step.

    Rules that hold for every verifier that compares with a target step:

    - a step that ends the text never matches one that does not;
    - a step that was cut (``length``, ``cancelled``, ``failed``) matches only token by token;
    - equal tokens of one tokenizer match.
    """

    name: ClassVar[str]
    loss_class: ClassVar[LossClass]
    needs_target_step: ClassVar[bool] = True

    def __init__(self, deadline_seconds: float = 2.0) -> None:
        if not deadline_seconds > 0:
            raise SettingsError(f"verifier deadline = {deadline_seconds!r}: must be above 0 seconds")
        self.deadline_seconds = deadline_seconds

    @final
    async def verify(
        self, context: VerificationContext, drafted: Step, target: Step | None = None
    ) -> Verdict:
        """Return the verdict on ``drafted``, with what it cost, within ``deadline_seconds``.

        The deadline counts from the moment the verifier is loaded; loading happens in ``start``, or
        here if ``start`` was never called. It cannot interrupt code that blocks the event loop.
        """
        started = time.perf_counter()
        verdict = self._judge_by_rules(drafted, target)
        if verdict is None:
            verdict = await self._judge_guarded(context, drafted, target)
        return replace(verdict, cost_seconds=time.perf_counter() - started)

    async def start(self) -> None:
        """Load what the verifier needs; calling it again does nothing.

        Raises:
            MissingDependencyError: a package is not installed.
            SettingsError: the model's folder is missing, or its weights are not the pinned ones.
        """
        return

    async def close(self) -> None:
        """Free models and threads; calling it again does nothing, ``start`` may follow."""
        return

    @abstractmethod
    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        """Return the verdict. May raise; costs in seconds are filled in by ``verify``."""

    def _judge_by_rules(self, drafted: Step, target: Step | None) -> Verdict | None:
        if target is None:
            if self.needs_target_step:
                return Verdict("unknown", reason=f"{self.name} compares, and there is no target step")
            return None
        if drafted.ends_text != target.ends_text:
            return Verdict("reject", 0.0, reason="only one of the steps ends the text")
        if tokens_equal(drafted, target):
            return Verdict("accept", 1.0, reason="same tokens")
        for step, whose in ((drafted, "drafted"), (target, "target")):
            if step.finish in _CUT:
                return Verdict("unknown", reason=f"the {whose} step was cut ({step.finish})")
        return None

    async def _judge_guarded(
        self, context: VerificationContext, drafted: Step, target: Step | None
    ) -> Verdict:
        longest = max(len(drafted.text), len(target.text) if target else 0)
        if longest > _MAX_CHARS and not (target and drafted.text == target.text):
            return Verdict("unknown", reason=f"a step has {longest} characters; {_MAX_CHARS} are compared")
        try:
            await self.start()
            async with asyncio.timeout(self.deadline_seconds):
                return await self._judge(context, drafted, target)
        except TimeoutError:
            return Verdict("unknown", reason=f"no verdict within {self.deadline_seconds:g} s")
        except Exception as error:
            return Verdict("unknown", reason=f"{type(error).__name__}: {error}")


async def measure_verdict(verifier: Verifier) -> float:
    """Return the seconds of a verdict on two wordings of one step: no rule decides it before the verifier."""
    context = VerificationContext("How many apples does Ana have?")
    seconds: list[float] = []
    for number in range(7, 11):
        # Other numbers each time: what was read once is remembered.
        texts = [wording.format(number, number + 3) for wording in _TWO_WORDINGS]
        drafted, own = (Step(text, (), "draft", "boundary") for text in texts)
        seconds.append((await verifier.verify(context, drafted, own)).cost_seconds)
    return min(seconds)


def tokens_equal(a: Step, b: Step) -> bool:
    """Whether both steps hold the same token ids of the same tokenizer (and any at all)."""
    return bool(a.tokens) and a.tokenizer_id == b.tokenizer_id and a.tokens == b.tokens


def _exact(settings: VerifierSettings) -> Verifier:
    from reason_spec.verifiers.exact import ExactVerifier

    return ExactVerifier(settings.deadline)


def _numbers(settings: VerifierSettings) -> Verifier:
    from reason_spec.verifiers.numbers import NumbersVerifier

    return NumbersVerifier(settings.deadline)


def _embedding(settings: VerifierSettings) -> Verifier:
    from reason_spec.verifiers.embedding import EmbeddingVerifier
    from reason_spec.verifiers.encoder import SentenceEncoder

    encoder = SentenceEncoder(settings.embedding_model)
    return EmbeddingVerifier(encoder, settings.threshold, settings.deadline)


def _semantic(settings: VerifierSettings) -> Verifier:
    from reason_spec.verifiers.encoder import SentenceEncoder
    from reason_spec.verifiers.semantic import SemanticVerifier

    encoder = SentenceEncoder(settings.embedding_model)
    return SemanticVerifier(encoder, settings.threshold, settings.deadline)


_FACTORIES: Final[dict[str, Callable[[VerifierSettings], Verifier]]] = {
    "semantic": _semantic,
    "numbers": _numbers,
    "embedding": _embedding,
    "exact": _exact,
}


def verifier_names() -> tuple[str, ...]:
    """Return the names that ``create_verifier`` knows, the default first."""
    return tuple(_FACTORIES)


def create_verifier(name: str | None = None, settings: VerifierSettings | None = None) -> Verifier:
    """Build a verifier; no model is loaded before ``start`` or the first ``verify``.

    Args:
        name: overrides ``settings.name``.
        settings: the verifier's part of the settings tree; None means the defaults.

    Raises:
        SettingsError: the name is unknown.
    """
    settings = settings or VerifierSettings()
    name = name or settings.name
    factory = _FACTORIES.get(name)
    if factory is None:
        raise unknown_name("verifier", name, _FACTORIES)
    return factory(settings)
