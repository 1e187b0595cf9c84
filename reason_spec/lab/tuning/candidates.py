"""The candidates that `tune` chooses from: settings with different behaviour.

A strategy is varied only in the settings that it uses: draft size at the token level; depth and width at the
step level; the threshold of a verifier that judges drafts only; for `arbitrage` the threshold of its router.
All else is taken from the settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from reason_spec.accelerator import Accelerator, Generator
from reason_spec.accelerator.engine_drafter import engine_drafter
from reason_spec.accelerator.load import can_plan
from reason_spec.errors import ReasonSpecError, SettingsError
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.lab.tuning.halving import Candidate
from reason_spec.lab.tuning.verifier import judging_part
from reason_spec.settings import Settings
from reason_spec.strategies.factory import strategy_class, strategy_names
from reason_spec.strategies.specreason import SpecReason
from reason_spec.verifiers.base import AUTO

DEPTHS = (2, 4, 8)
WIDTHS = (1,)
THRESHOLDS = (0.95, 0.9, 0.7)
ROUTER_THRESHOLDS = (None, 0.05, 0.2)
"""Thresholds for `arbitrage`; None is the router's own."""
_LOOKAHEAD_VERIFIERS = ("exact", "semantic")
_NOT_TRIED: Final = {
    BASELINE: "the target alone is the baseline",
    "oracle": "it costs more than it saves",
    "atts": "its verdicts depend on the answers before",
    "ssr": "its directions suit some models and tasks",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The values to try. Empty ``strategies``: all that the models allow; empty ``verifiers``: those of the
    strategies; empty ``draft_tokens``: the size in the settings.

    Raises:
        SettingsError: a list is empty, or a value is out of range.
    """

    strategies: tuple[str, ...] = ()
    depths: tuple[int, ...] = DEPTHS
    widths: tuple[int, ...] = WIDTHS
    thresholds: tuple[float, ...] = THRESHOLDS
    draft_tokens: tuple[int, ...] = ()
    verifiers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bounds: tuple[tuple[str, tuple[float, ...], float, float], ...] = (
            ("--depths", self.depths, 1, 64),
            ("--widths", self.widths, 1, 8),
            ("--thresholds", self.thresholds, 0, 1),
            ("--draft-tokens", self.draft_tokens or (1,), 1, 128),
        )
        for name, values, low, high in bounds:
            if not values or any(not low <= value <= high for value in values):
                shown = ",".join(f"{value:g}" for value in values)
                raise SettingsError(f"{name} {shown!r}: name one or more values from {low:g} to {high:g}")
        for name in self.strategies:
            strategy_class(name)


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """A candidate with its settings."""

    candidate: Candidate
    settings: Settings


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The candidates of a search; ``left_out`` holds the reason for each strategy without one."""

    baseline: Settings
    by_key: Mapping[str, CandidateSettings]
    left_out: Mapping[str, str]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(entry.candidate for entry in self.by_key.values())


def make_search_space(accelerator: Accelerator, grid: Grid) -> SearchSpace:
    """Return every combination of the grid with a behaviour of its own.

    Args:
        accelerator: not started; the verifiers and routers of candidates are created here.

    Raises:
        SettingsError: a strategy that was named, or every one, cannot be used with these models.
    """
    given = accelerator.settings
    base = _with(given, strategy={"planner": False})
    by_key: dict[str, CandidateSettings] = {}
    left_out: dict[str, str] = {}
    for strategy in grid.strategies or strategy_names():
        if strategy in _NOT_TRIED:
            if strategy in grid.strategies and strategy != BASELINE:
                raise SettingsError(f"strategy {strategy} is not tuned: {_NOT_TRIED[strategy]}")
            continue
        try:
            for entry in _entries(strategy, base, accelerator.generator, grid):
                by_key.setdefault(entry.candidate.key, entry)
        except (ReasonSpecError, ImportError) as error:
            if grid.strategies:
                raise SettingsError(f"strategy {strategy} cannot be tried: {error}") from None
            left_out[strategy] = str(error)
    if not by_key:
        raise SettingsError(
            f"there is nothing to choose from beside {BASELINE}: name other strategies with --strategies"
        )
    return SearchSpace(_with(given, strategy={"name": BASELINE}), by_key, left_out)


def _entries(strategy: str, base: Settings, generator: Generator, grid: Grid) -> Iterator[CandidateSettings]:
    """Yield each combination of the values that a strategy uses.

    Raises:
        ReasonSpecError: the strategy needs something that these models do not have.
    """
    base = _with(base, strategy={"name": strategy})
    takes_hints = generator.target.takes_hints
    if strategy in ("prompt_lookup", "token_recycling", "speculative") and not takes_hints:
        raise SettingsError("the target's engine takes no token drafts; it may draft by itself")
    if strategy_class(strategy).needs_draft and generator.draft is None:
        raise SettingsError("it needs a draft model that writes on its own")
    if strategy == "self_speculative" and engine_drafter(base) is None:
        raise SettingsError("nothing drafts inside the target's engine; name --draft self, or a head")
    sizes = (grid.draft_tokens if takes_hints else ()) or (base.strategy.num_draft_tokens,)
    for verifier, size in product(_verifiers(strategy, generator, base, grid), sizes):
        judged = base if verifier is None else _with(base, verifier={"name": verifier})
        sized = _with(judged, strategy={"num_draft_tokens": size})
        size_name = f"tokens {size}" if len(sizes) > 1 else ""
        thresholds = _thresholds(replace(generator, settings=sized), grid)
        for shape, threshold in product(_shapes(strategy, generator, grid), thresholds):
            changes = {"strategy": shape.changes, "router": threshold.router, "verifier": threshold.verifier}
            settings = _with(sized, **changes)
            words = (strategy, verifier or "", threshold.name, shape.name, size_name)
            is_exact = replace(generator, settings=settings).strategy().loss_class == "exact"
            candidate = Candidate(settings.hash, " ".join(filter(None, words)), is_exact)
            yield CandidateSettings(candidate, settings)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Changes of the settings for one depth and width."""

    name: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Threshold:
    """A threshold of a verifier or a router."""

    name: str = ""
    verifier: Mapping[str, Any] = field(default_factory=dict)
    router: Mapping[str, Any] = field(default_factory=dict)


def _shapes(strategy: str, generator: Generator, grid: Grid) -> Sequence[_Shape]:
    """Return the depths and widths to try."""
    if strategy in ("prompt_lookup", "token_recycling", "speculative", "self_speculative"):
        return (_Shape(),)
    if strategy == "scot":
        # scot picks among drafts: width 1 means 5 of them.
        return [_Shape(f"drafts {5 if width == 1 else width}", {"width": width}) for width in grid.widths]
    widths = (1,) if strategy == "speculative_thinking" else grid.widths
    shapes = [
        _Shape(_shape_name(f"depth {depth}", width), {"depth": depth, "width": width})
        for depth, width in product(grid.depths, widths)
    ]
    if strategy_class(strategy).planned == "compared" and can_plan(generator.bundle):
        deepest = max(grid.depths)
        shapes += [
            _Shape(
                _shape_name(f"planned to {deepest}", width),
                {"planner": True, "depth": deepest, "width": width},
            )
            for width in widths
        ]
    return shapes


def _shape_name(depth: str, width: int) -> str:
    return depth if width == 1 else f"{depth} width {width}"


def _verifiers(strategy: str, generator: Generator, base: Settings, grid: Grid) -> Sequence[str | None]:
    """Return the verifiers to try: the named ones that the strategy can use; None for one without verifier.

    Raises:
        ReasonSpecError: it can use none of the named ones.
    """
    own = strategy_class(strategy).verifier_name(AUTO)
    if own is None:
        return (None,)
    if grid.verifiers:
        usable, errors = [], []
        for name in grid.verifiers:
            try:
                replace(generator, settings=_with(base, verifier={"name": name})).verifier_for(strategy)
                usable.append(name)
            except ReasonSpecError as error:
                errors.append(error)
        if not usable:
            raise errors[0]
        return usable
    if base.verifier.name != AUTO:
        return (base.verifier.name,)
    return _LOOKAHEAD_VERIFIERS if strategy == "lookahead" else (own,)


def _thresholds(generator: Generator, grid: Grid) -> Sequence[_Threshold]:
    """Return the thresholds to try: of the router, or of the verifier that judges drafts only."""
    settings, strategy = generator.settings, generator.settings.strategy.name
    if strategy_class(strategy).needs_router:
        own = settings.router.threshold
        routers = ROUTER_THRESHOLDS if own is None else (own,)
        return [
            _Threshold("" if value is None else f"{value:g}", router={"threshold": value})
            for value in routers
        ]
    verifier = generator.verifier_for(strategy)
    if verifier is None or not (issubclass(strategy_class(strategy), SpecReason) or strategy == "scot"):
        return (_Threshold(),)
    part = judging_part(verifier)
    thresholds = settings.verifier.thresholds
    return [
        _Threshold(f"{value:g}", {"threshold": None, "thresholds": {**thresholds, part.name: value}})
        for value in grid.thresholds
    ]


def _with(settings: Settings, **changes: Mapping[str, Any]) -> Settings:
    """Return settings with some values of their sections changed."""
    sections = {
        name: getattr(settings, name).model_copy(update=dict(values)) for name, values in changes.items()
    }
    return settings.model_copy(update=sections)
