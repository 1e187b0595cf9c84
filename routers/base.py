"""The contract of a router, and the factory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import exp
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

from reason_spec.errors import SettingsError, unknown_name
from reason_spec.routers.features import StepFeatures
from reason_spec.settings import RouterSettings

Writer: TypeAlias = Literal["draft", "target"]
AUTO: Final = "auto"
"""The trained router where it belongs to the models in use, else ``threshold``."""


class PairIdentity(NamedTuple):
    """Identifies a pair of models by digests of their files, or by ids."""

    target: str
    draft: str


@dataclass(frozen=True, slots=True)
class StepRoute:
    """Which model writes a step. ``score`` (0 to 1) estimates that the target would write the better one."""

    writer: Writer
    score: float
    reason: str = ""


class Router(ABC):
    """Decides from the features of a drafted step whether the target writes its own; costs no pass.

    Steps with a score above ``threshold`` are escalated: for a budget of escalations that is the best choice
    (Arbitrage, arXiv 2512.05033, theorem B.1).
    """

    name: str
    reads_entropy: ClassVar[bool] = False
    """Whether it needs the entropy of the draft, which not every engine reports."""

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
        # A score that is no number is no reason to keep the draft's step.
        return StepRoute("draft" if score <= self.threshold else "target", score, reason)


def _make(name: str, settings: RouterSettings, pair: PairIdentity | None) -> Router:
    """Build a router; the modules are imported here since they import this one."""
    from reason_spec.routers import learned, simple

    if name == AUTO:
        wanted = settings.file is not None or settings.any_pair
        shipped = learned.shipped_model()
        fits = wanted or (shipped.exists() and learned.load_model(shipped).pair == pair)
        name = "learned" if fits else "threshold"
    if name == "learned":
        path = settings.file or learned.shipped_model()
        model = learned.load_model(path)
        if not settings.any_pair:
            model.check_pair(pair, path)
        return learned.LearnedRouter(model, settings.threshold)
    if name == "threshold":
        return simple.ThresholdRouter(0.05 if settings.threshold is None else settings.threshold)
    if name == "glimp":
        return simple.GlimpRouter(1 - exp(-1.0) if settings.threshold is None else settings.threshold)
    if name == "random":
        threshold = 0.5 if settings.threshold is None else settings.threshold
        return simple.RandomRouter(threshold, settings.seed)
    return simple.DraftRouter() if name == "draft" else simple.TargetRouter()


_NAMES: Final = (AUTO, "learned", "threshold", "glimp", "random", "draft", "target")


def router_names() -> tuple[str, ...]:
    """Return the names for ``create_router``, the default first."""
    return _NAMES


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
    if settings.name not in _NAMES:
        raise unknown_name("router", settings.name, _NAMES)
    return _make(settings.name, settings, pair)
