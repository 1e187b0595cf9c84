"""The contract of every verifier, the rules common to all, and the factory."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

from reason_spec.engines.base import Engine
from reason_spec.errors import SettingsError, unknown_name
from reason_spec.segment import Boundary
from reason_spec.settings import VerifierSettings
from reason_spec.types import FinishReason, LossClass, Prefix, Step, Verdict

if TYPE_CHECKING:
    from reason_spec.verifiers.asking import AskingVerifier, Questions
    from reason_spec.verifiers.reward import Reward

CUT: Final[frozenset[FinishReason]] = frozenset({"length", "cancelled", "failed"})
"""Finish reasons of an incomplete step."""
_MAX_CHARS: Final = 20_000
_TWO_WORDINGS: Final = (
    "Ana has {0} apples and gets 3 more, so she holds {0} + 3 = {1} apples.",
    "With 3 further ones, the {0} apples of Ana become {0} + 3 = {1}.",
)


@dataclass(frozen=True, slots=True)
class VerificationContext:
    """The context of both steps: the question, and the text of the final steps before.

    ``target_prefix`` holds it in the target's tokens, chat template included; None without a target.
    ``step_index`` counts the steps before.
    """

    question: str = ""
    prefix_text: str = ""
    target_prefix: Prefix | None = None
    step_index: int = 0

    @property
    def owner(self) -> str:
        """Owner of the prefix; see `Prefix`."""
        return "" if self.target_prefix is None else self.target_prefix.owner


class Verifier(ABC):
    """Decides whether a drafted step may replace the target's.

    ``verify`` may be called concurrently and from one event loop after another. It raises only
    ``asyncio.CancelledError``: a time-out, an exception in ``_judge`` or a model that does not load gives the
    verdict ``unknown`` with the reason. ``start`` raises, so that a missing model is reported before the
    first step.

    Rules that hold for every verifier that compares with a target step:

    - a step that ends the text never matches one that does not;
    - a step that was cut (``length``, ``cancelled``, ``failed``) matches only token by token;
    - equal tokens of one tokenizer match.
    """

    name: str
    loss_class: LossClass
    judges_draft_only: bool = False
    """Whether it can accept a drafted step without the target's own step."""
    runs_on_target: bool = False
    """Whether the target reads drafted steps for it."""
    compares: bool = True
    """Whether it can compare a drafted step with the target's own."""
    learns: bool = False
    """Whether its scores depend on the steps that it judged before, so that no threshold can be replayed."""
    threshold: float | None = None
    """Least accepted score; None without a threshold."""
    least_threshold: float = 0.0
    """Least allowed threshold; the greatest is 1."""

    def __init__(self, deadline_seconds: float = 2.0) -> None:
        if not deadline_seconds > 0:
            raise SettingsError(f"verifier deadline = {deadline_seconds!r}: must be above 0 seconds")
        self.deadline_seconds = deadline_seconds

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Self:
        """Return a copy with other thresholds, by the names of its parts.

        Both share their models: starting or closing one does the same to the other.

        Raises:
            SettingsError: a threshold is out of range, or set for a verifier that has none.
        """
        if self.name not in thresholds:
            return self
        if self.threshold is None:
            raise SettingsError(
                f"a threshold of {thresholds[self.name]} is set for verifier {self.name}, which has none: "
                "leave it out, or set verifier.thresholds.NAME of another verifier"
            )
        other = copy(self)
        other.threshold = other.checked_threshold(thresholds[self.name])
        return other

    def checked_threshold(self, threshold: float) -> float:
        """Return a threshold of this verifier.

        Raises:
            SettingsError: it is out of range.
        """
        if not self.least_threshold <= threshold <= 1:
            raise SettingsError(
                f"threshold of {self.name} = {threshold!r}: it lies between {self.least_threshold:g} and 1"
            )
        return threshold

    @final
    async def verify(
        self, context: VerificationContext, drafted: Step, target: Step | None = None
    ) -> Verdict:
        """Return the verdict on ``drafted`` and its cost, within ``deadline_seconds``.

        The deadline counts from the moment the verifier is loaded; loading happens in ``start``, or
        here if ``start`` was never called. It cannot interrupt code that blocks the event loop.
        """
        started = time.perf_counter()
        verdict = self._judge_by_rules(drafted, target)
        if verdict is None:
            verdict = await self._judge_guarded(context, drafted, target)
        return replace(verdict, cost_seconds=time.perf_counter() - started)

    async def start(self) -> None:
        """Load the models of the verifier; a second call does nothing.

        Raises:
            MissingDependencyError: a package is not installed.
            SettingsError: the model's folder is missing, or its weights are not the pinned ones.
        """
        return

    async def close(self) -> None:
        """Free models and threads; a second call does nothing, ``start`` may follow."""
        return

    @abstractmethod
    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        """Return the verdict. May raise; costs in seconds are filled in by ``verify``."""

    def _judge_by_rules(self, drafted: Step, target: Step | None) -> Verdict | None:
        if target is None:
            if not self.judges_draft_only:
                return Verdict("unknown", reason=f"{self.name} compares, and there is no target step")
            if drafted.finish in CUT:
                return Verdict("unknown", reason=f"the drafted step was cut ({drafted.finish})")
            return None
        if drafted.ends_text != target.ends_text:
            return Verdict("reject", 0.0, reason="only one of the steps ends the text")
        if tokens_equal(drafted, target):
            return Verdict("accept", 1.0, reason="same tokens")
        for step, whose in ((drafted, "drafted"), (target, "target")):
            if step.finish in CUT:
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
    """Return the seconds of a verdict on two wordings of a step, which no rule decides early."""
    context = VerificationContext("How many apples does Ana have?")
    seconds: list[float] = []
    for number in range(7, 11):
        # New numbers each time, because texts are cached.
        texts = [wording.format(number, number + 3) for wording in _TWO_WORDINGS]
        drafted, own = (Step(text, (), "draft", "boundary") for text in texts)
        seconds.append((await verifier.verify(context, drafted, own)).cost_seconds)
    return min(seconds)


def tokens_equal(a: Step, b: Step) -> bool:
    """Whether both steps have the same, non-empty token ids of the same tokenizer."""
    return bool(a.tokens) and a.tokenizer_id == b.tokenizer_id and a.tokens == b.tokens


@dataclass(frozen=True, slots=True)
class Models:
    """The models that verifiers may ask; None if there is none.

    ``make_judge`` creates an engine that the verifier starts and closes; None: the target is asked.
    ``boundary`` separates the steps of their answers.
    """

    target: Engine | None = None
    make_judge: Callable[[], Engine] | None = None
    questions: Questions | None = None
    load_reward: Callable[[], Reward] | None = None
    boundary: Boundary = field(default_factory=Boundary)


class _Given(NamedTuple):
    """Arguments of a verifier's factory; ``threshold`` None is the verifier's default."""

    settings: VerifierSettings
    threshold: float | None
    models: Models


def _exact(given: _Given) -> Verifier:
    from reason_spec.verifiers.exact import ExactVerifier

    return ExactVerifier(given.settings.deadline)


def _numbers(given: _Given) -> Verifier:
    from reason_spec.verifiers.numbers import NumbersVerifier

    return NumbersVerifier(given.settings.deadline)


def _embedding(given: _Given) -> Verifier:
    from reason_spec.verifiers.embedding import EmbeddingVerifier
    from reason_spec.verifiers.encoder import SentenceEncoder

    return EmbeddingVerifier(
        SentenceEncoder(given.settings.embedding_model), given.threshold, given.settings.deadline
    )


def _semantic(given: _Given) -> Verifier:
    from reason_spec.verifiers.pair_encoder import PairEncoder
    from reason_spec.verifiers.semantic import SemanticVerifier

    folder = given.settings.semantic_model
    encoder = PairEncoder(None if folder is None else Path(folder))
    return SemanticVerifier(encoder, given.threshold, given.settings.deadline)


def _likelihood(given: _Given) -> Verifier:
    from reason_spec.verifiers.likelihood import LikelihoodVerifier

    if given.models.target is None:
        raise SettingsError("verifier likelihood needs a target; choose a verifier that compares steps")
    return LikelihoodVerifier(given.models.target, given.threshold, given.settings.deadline)


def _confidence(given: _Given) -> Verifier:
    from reason_spec.verifiers.likelihood import ConfidenceVerifier

    return ConfidenceVerifier(given.threshold, given.settings.deadline)


def _conformal(given: _Given) -> Verifier:
    from reason_spec.verifiers.conformal import ConformalVerifier

    if given.models.target is None:
        raise SettingsError("verifier conformal needs a target; choose a verifier that compares steps")
    return ConformalVerifier(given.models.target, given.threshold, given.settings.deadline)


def _utility(given: _Given) -> Verifier:
    from reason_spec.verifiers.asking import UtilityVerifier

    return _asking(given, partial(UtilityVerifier, greedy=given.settings.utility_score == "greedy"), 7 / 9)


def _judge(given: _Given) -> Verifier:
    from reason_spec.verifiers.asking import JudgeVerifier

    return _asking(given, JudgeVerifier, 0.5)


def _asking(given: _Given, make: Callable[..., AskingVerifier], threshold: float) -> Verifier:
    models = given.models
    if models.make_judge is None and models.target is None:
        raise SettingsError("verifiers utility and judge need a model: set verifier.judge.model")
    return make(
        models.target,
        threshold if given.threshold is None else given.threshold,
        given.settings.deadline,
        make_model=models.make_judge,
        questions=models.questions,
    )


def _reward(given: _Given) -> Verifier:
    from reason_spec.verifiers.reward import RewardVerifier, StepToken
    from reason_spec.verifiers.reward_models import load_classifier
    from reason_spec.verifiers.served_reward import ServedRewardVerifier

    settings, load = given.settings, given.models.load_reward
    token = settings.reward_step_token
    step_token = None if token is None else StepToken(token, given.models.boundary)
    if settings.reward_url:
        return ServedRewardVerifier(
            settings.reward_url,
            settings.reward_model,
            step_token,
            given.threshold,
            settings.deadline,
            api_key_variable=settings.reward_api_key_variable,
        )
    if settings.reward_model is not None:
        trusted = settings.reward_trust_remote_code
        load = partial(load_classifier, settings.reward_model, step_token, trust_remote_code=trusted)
    elif step_token is not None:
        raise SettingsError(
            f"verifier.reward_step_token = {token!r} is for a reward model of your own: set "
            "verifier.reward_model or verifier.reward_url"
        )
    if load is None:
        raise SettingsError(
            "verifier reward needs a reward model, and only the embedded target has one of its own: "
            "set verifier.reward_model or verifier.reward_url"
        )
    return RewardVerifier(load, given.threshold, settings.deadline)


_FACTORIES: Final[dict[str, Callable[[_Given], Verifier]]] = {
    "semantic": _semantic,
    "numbers": _numbers,
    "embedding": _embedding,
    "exact": _exact,
    "likelihood": _likelihood,
    "confidence": _confidence,
    "conformal": _conformal,
    "utility": _utility,
    "judge": _judge,
    "reward": _reward,
}
AUTO: Final = "auto"
"""Selects the verifier of the strategy in use."""


def verifier_names() -> tuple[str, ...]:
    """Return the names for ``create_verifier``, the default first."""
    return tuple(_FACTORIES)


def create_verifier(
    name: str | None = None, settings: VerifierSettings | None = None, models: Models | None = None
) -> Verifier:
    """Build a verifier; no model is loaded before ``start`` or the first ``verify``.

    Args:
        name: overrides ``settings.name``; several joined with ``+`` make a cascade.
        settings: the verifier's part of the settings tree; None means the defaults.
        models: the running models, for verifiers that ask one.

    Raises:
        SettingsError: a name is unknown, or a threshold is set for a verifier that has none.
    """
    settings = settings or VerifierSettings()
    name = name or settings.name
    names = _parts_of(name)
    for part in names:
        if part not in _FACTORIES:
            raise unknown_name("verifier", part, _FACTORIES)
    thresholds = thresholds_of(settings, name)
    stages = [
        _FACTORIES[part](_Given(settings, thresholds.get(part), models or Models())).with_thresholds(
            thresholds
        )
        for part in dict.fromkeys(names)
    ]
    if len(stages) == 1:
        return stages[0]
    from reason_spec.verifiers.cascade import CascadeVerifier

    return CascadeVerifier(stages, settings.deadline)


def _parts_of(name: str) -> list[str]:
    return [verifier_names()[0]] if name == AUTO else [part.strip() for part in name.split("+")]


def thresholds_of(settings: VerifierSettings, name: str) -> dict[str, float]:
    """Return the thresholds of the settings by the names of the parts of a verifier.

    Raises:
        SettingsError: a threshold is of an unknown verifier, or of none of several parts.
    """
    names = _parts_of(name)
    for name in settings.thresholds:
        if name not in _FACTORIES:
            raise unknown_name("verifier", name, _FACTORIES)
    if settings.threshold is None:
        return settings.thresholds
    if len(names) > 1:
        raise SettingsError(
            f"verifier.threshold = {settings.threshold} belongs to none of {'+'.join(names)}: "
            f"set verifier.thresholds.{names[0]}"
        )
    return {**settings.thresholds, names[0]: settings.threshold}
