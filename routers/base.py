"""The contract of a router, and the factory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from reason_spec.errors import SettingsError, unknown_name
from reason_spec.routers.features import StepFeatures
from reason_spec.settings import RouterSettings

Writer: TypeAlias = Literal["draft", "target"]
AUTO: Final = "auto"
"""Stands for the trained router where it belongs to the models in use, else for the draft's own doubt."""


class PairIdentity(NamedTuple):
    """What tells a pair of models from another: digests of their files, or ids."""

    target: str
    draft: str


@dataclass(frozen=True, slots=True)
class StepRoute:
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

    def route(self, features: StepFeatures) -> StepRoute:
        """Return who is to write the step."""
        score = self.score(features)
        reason = f"{self.name}: score {score:.3f}, escalated above {self.threshold:g}"
        return StepRoute("target" if score > self.threshold else "draft", score, reason)


def _threshold(settings: RouterSettings, pair: PairIdentity | None) -> Router:  # noqa: ARG001
    from reason_spec.routers.simple import ThresholdRouter

    return ThresholdRouter(_or_default(settings.threshold, 0.05))


def _learned(settings: RouterSettings, pair: PairIdentity | None) -> Router:
    from reason_spec.routers.learned import LearnedRouter, load_model, shipped_model

    path = settings.file or shipped_model()
    model = load_model(path)
    if not settings.any_pair:
        model.check_pair(pair, path)
    return LearnedRouter(model, settings.threshold)


def _random(settings: RouterSettings, pair: PairIdentity | None) -> Router:  # noqa: ARG001
    from reason_spec.routers.simple import RandomRouter

    return RandomRouter(_or_default(settings.threshold, 0.5), settings.seed)


def _draft(settings: RouterSettings, pair: PairIdentity | None) -> Router:  # noqa: ARG001
    from reason_spec.routers.simple import DraftRouter

    return DraftRouter()


def _target(settings: RouterSettings, pair: PairIdentity | None) -> Router:  # noqa: ARG001
    from reason_spec.routers.simple import TargetRouter

    return TargetRouter()


def _or_default(threshold: float | None, default: float) -> float:
    return default if threshold is None else threshold


def _auto(settings: RouterSettings, pair: PairIdentity | None) -> Router:
    from reason_spec.routers.learned import load_model, shipped_model

    path = shipped_model()
    wanted = settings.file is not None or settings.any_pair
    fits = wanted or (path.exists() and load_model(path).pair == pair)
    return (_learned if fits else _threshold)(settings, pair)


_FACTORIES: Final[dict[str, Callable[[RouterSettings, PairIdentity | None], Router]]] = {
    AUTO: _auto,
    "learned": _learned,
    "threshold": _threshold,
    "random": _random,
    "draft": _draft,
    "target": _target,
}


def router_names() -> tuple[str, ...]:
    """Return the names that ``create_router`` knows, the default first."""
    return tuple(_FACTORIES)


def create_router(settings: RouterSettings | None = None, pair: PairIdentity | None = None) -> Router:
    """Build the router that the settings name.

    Args:
        settings: the router's part of the settings tree; None means the defaults.
        pair: the models in use, which a trained router has to belong to.

    Raises:
        SettingsError: the name is unknown, the threshold is no chance, or the router belongs to other models.
        DataError: the file of a trained router is missing or damaged.
    """
    settings = settings or RouterSettings()
    if settings.name not in _FACTORIES:
        raise unknown_name("router", settings.name, _FACTORIES)
    return _FACTORIES[settings.name](settings, pair)
