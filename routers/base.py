"""The contract of a router, what it knows of a step, and the factory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final, Literal, TypeAlias

from reason_spec.errors import SettingsError, unknown_name
from reason_spec.settings import RouterSettings

Writer: TypeAlias = Literal["draft", "target"]


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """What is known of a drafted step before the target has written anything.

    Log-probabilities are the draft's own, at temperature 1. ``least_digit_logprob`` is the lowest of tokens
    with a digit, 0 where there is none. ``key`` names the step and its place, the same in every run.
    """

    step_index: int
    num_tokens: int
    num_digits: int
    num_prefix_tokens: int
    mean_logprob: float
    least_logprob: float
    least_digit_logprob: float
    key: str = ""

    @classmethod
    def of_step(
        cls,
        logprobs: Sequence[float],
        has_digit: Sequence[bool],
        *,
        step_index: int,
        num_prefix_tokens: int,
        key: str = "",
    ) -> StepFeatures:
        """Summarise the draft's log-probabilities, one for each token of the step."""
        of_digits = [logprob for logprob, digit in zip(logprobs, has_digit, strict=True) if digit]
        return cls(
            step_index=step_index,
            num_tokens=len(logprobs),
            num_digits=len(of_digits),
            num_prefix_tokens=num_prefix_tokens,
            mean_logprob=sum(logprobs) / max(1, len(logprobs)),
            least_logprob=min(logprobs, default=0.0),
            least_digit_logprob=min(of_digits, default=0.0),
            key=key,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """A router's answer. ``score`` is its estimate that the target would write the better step, 0 to 1."""

    writer: Writer
    score: float
    reason: str = ""


class Router(ABC):
    """Decides, from what the draft wrote alone, whether a step is worth the target's time.

    Costs no pass of the target. The escalated are those whose score is above ``threshold``: for a budget of
    escalations that is the best choice (Arbitrage, arXiv 2512.05033, theorem B.1).
    """

    name: str

    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise SettingsError(f"router.threshold = {threshold!r}: a chance lies between 0 and 1")
        self.threshold = threshold

    @abstractmethod
    def score(self, features: StepFeatures) -> float:
        """Return the chance, 0 to 1, that the target would write the better step."""

    def route(self, features: StepFeatures) -> Route:
        """Return who is to write the step."""
        score = self.score(features)
        reason = f"{self.name}: score {score:.3f}, escalated above {self.threshold:g}"
        return Route("target" if score > self.threshold else "draft", score, reason)


def likely(logprob: float) -> float:
    return exp(min(0.0, logprob))


def _threshold(settings: RouterSettings) -> Router:
    from reason_spec.routers.simple import ThresholdRouter

    return ThresholdRouter(settings.threshold)


def _random(settings: RouterSettings) -> Router:
    from reason_spec.routers.simple import RandomRouter

    return RandomRouter(settings.threshold, settings.seed)


def _draft(settings: RouterSettings) -> Router:  # noqa: ARG001 - it has nothing to be told
    from reason_spec.routers.simple import DraftRouter

    return DraftRouter()


def _target(settings: RouterSettings) -> Router:  # noqa: ARG001 - it has nothing to be told
    from reason_spec.routers.simple import TargetRouter

    return TargetRouter()


_FACTORIES: Final[dict[str, Callable[[RouterSettings], Router]]] = {
    "threshold": _threshold,
    "random": _random,
    "draft": _draft,
    "target": _target,
}


def router_names() -> tuple[str, ...]:
    """Return the names that ``create_router`` knows, the default first."""
    return tuple(_FACTORIES)


def create_router(settings: RouterSettings | None = None) -> Router:
    """Build the router that the settings name.

    Raises:
        SettingsError: the name is unknown, or the threshold is no chance.
    """
    settings = settings or RouterSettings()
    if settings.name not in _FACTORIES:
        raise unknown_name("router", settings.name, _FACTORIES)
    return _FACTORIES[settings.name](settings)
