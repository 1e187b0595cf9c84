"""The rows of `real.py` and `token_level.py`, and the arms that time them on running engines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from arms import Arm, Run, Transformers, settings_of
from embedded import STEP_ALONE
from models import Task, needs_draft
from real_engines import Opened, groups_of, open_group

from reason_spec.engines.machine import auto_device
from reason_spec.errors import DataError
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.settings import EngineSettings, Settings


class RowSpec(NamedTuple):
    """A row of ours: its name, group of engines, strategy, and further settings."""

    name: str
    group: str
    strategy: str
    own: Mapping[str, Any] = {}


def _relaxed(rule: str, threshold: float, **more: int) -> dict[str, Any]:
    """Return settings of relaxed acceptance."""
    own = {"strategy.acceptance": rule, "strategy.acceptance_threshold": threshold}
    return own | {f"strategy.acceptance_{name}": value for name, value in more.items()}


_RELAXED: Final = (
    "head:lenient",
    "head:lenient:0.05",
    "head:cascade",
    "head:cascade:0.8",
    "head:cascade:0.95",
    "model:cascade",
    "model:cascade:0.8",
    "model:cascade:0.95",
    "model:judge",
    "model:judge:0.9",
)
_FIXED: Final = {"strategy.planner": False, "strategy.depth": 2}
_ALONE: Final = {"strategy.token_drafter": "none"}
_COPIES: Final = {"strategy.token_drafter": "prompt_lookup"}
_EXACT, _SEMANTIC = {"verifier.name": "exact"}, {"verifier.name": "semantic"}
OURS: Final = (
    RowSpec("prompt_lookup", "ours", "prompt_lookup"),
    RowSpec("model", "ours", "speculative", _COPIES),
    RowSpec("model:alone", "ours", "speculative", _ALONE),
    RowSpec("steps:exact", "ours", "lookahead", {**_EXACT, **STEP_ALONE}),
    RowSpec("steps:semantic", "ours", "lookahead", {**_SEMANTIC, **STEP_ALONE}),
    RowSpec("both:exact", "ours", "lookahead", _EXACT),
    RowSpec("both:semantic", "ours", "lookahead", _SEMANTIC),
    RowSpec("both:exact:fixed", "ours", "lookahead", {**_EXACT, **_FIXED}),
    RowSpec("both:semantic:fixed", "ours", "lookahead", {**_SEMANTIC, **_FIXED}),
    RowSpec("hybrid", "ours", "hybrid"),
    RowSpec("hybrid:fixed", "ours", "hybrid", {"strategy.planner": False}),
)
ROWS: Final[Mapping[str, tuple[RowSpec, ...]]] = {
    "torch": (
        RowSpec(BASELINE, "ours", BASELINE),
        *OURS,
        RowSpec("token_recycling", "ours", "token_recycling"),
        RowSpec("stand", "ours", "token_recycling", {"strategy.token_drafter": "stand"}),
        RowSpec("model:recycling", "ours", "speculative", {"strategy.token_drafter": "recycling"}),
        RowSpec("head:recycling", "head", "self_speculative", {"strategy.token_drafter": "recycling"}),
        RowSpec("self", "self", "self_speculative"),
        RowSpec("head", "head", "self_speculative"),
        RowSpec("head:alone", "head", "self_speculative", _ALONE),
        RowSpec("head:chain", "head", "self_speculative", {**_ALONE, "strategy.draft_tree": "chain"}),
        RowSpec("head:eagle2", "head", "self_speculative", {**_ALONE, "strategy.draft_tree": "eagle2"}),
        RowSpec("head:sequoia", "head", "self_speculative", {**_ALONE, "strategy.draft_tree": "sequoia"}),
        RowSpec("head:threshold", "head", "self_speculative", {**_ALONE, "strategy.refusal_threshold": 0.3}),
        RowSpec("head:lenient", "head", "self_speculative", {"strategy.acceptance": "lenient"}),
        RowSpec("head:lenient:0.05", "head", "self_speculative", _relaxed("lenient", 0.05, window=2)),
        RowSpec("head:cascade", "head", "self_speculative", {"strategy.acceptance": "cascade"}),
        RowSpec("head:cascade:0.8", "head", "self_speculative", _relaxed("cascade", 0.8)),
        RowSpec("head:cascade:0.95", "head", "self_speculative", _relaxed("cascade", 0.95)),
        RowSpec("model:cascade", "ours", "speculative", {**_COPIES, "strategy.acceptance": "cascade"}),
        RowSpec("model:cascade:0.8", "ours", "speculative", {**_COPIES, **_relaxed("cascade", 0.8)}),
        RowSpec("model:cascade:0.95", "ours", "speculative", {**_COPIES, **_relaxed("cascade", 0.95)}),
        RowSpec("model:judge", "ours", "speculative", {**_COPIES, "strategy.acceptance": "judge"}),
        RowSpec("model:judge:0.9", "ours", "speculative", {**_COPIES, **_relaxed("judge", 0.9)}),
        RowSpec("both:exact:head", "headed", "lookahead", _EXACT),
        RowSpec("both:semantic:head", "headed", "lookahead", _SEMANTIC),
        RowSpec("hybrid:head", "headed", "hybrid"),
        RowSpec("hybrid:head:fixed", "headed", "hybrid", {"strategy.planner": False}),
        RowSpec("suffix", "suffix", "prompt_lookup"),
        RowSpec("suffix:published", "published", "prompt_lookup", _ALONE),
    ),
    "vllm": (
        RowSpec(BASELINE, "none", BASELINE),
        RowSpec("torch:autoregressive", "torch", BASELINE),
        RowSpec("vllm:ngram", "ngram", BASELINE),
        RowSpec("vllm:suffix", "suffix", BASELINE),
        RowSpec("vllm:draft_model", "draft_model", BASELINE),
        RowSpec("vllm:eagle3", "eagle3", BASELINE),
        *OURS,
    ),
}
LOSSY: Final = (
    "steps:semantic",
    "both:semantic",
    "both:semantic:fixed",
    "hybrid",
    "hybrid:fixed",
    "both:semantic:head",
    "hybrid:head",
    "hybrid:head:fixed",
    *_RELAXED,
)
TRANSFORMERS: Final = ("transformers", "transformers:assistant_model", "transformers:prompt_lookup")
NAMED_ONLY: Final = (
    "hybrid:fixed",
    "stand",
    "model:recycling",
    "head:recycling",
    "head:chain",
    "head:eagle2",
    "head:sequoia",
    "head:threshold",
    *_RELAXED,
    "both:exact:head",
    "both:semantic:head",
    "hybrid:head",
    "hybrid:head:fixed",
)
"""Variants of rows, which `real.py` measures only where they are named."""
_PROMPT_LOOKUP_TOKENS: Final = 10
"""The number in the examples of transformers' documentation."""


@dataclass(slots=True)
class Bench:
    """Arms on running engines; ``opened`` is by row, and rows of transformers have none."""

    arms: list[Arm] = field(default_factory=list)
    opened: dict[str, Opened] = field(default_factory=dict)
    settings: dict[tuple[str, float], Settings] = field(default_factory=dict)
    num_threads: int | None = None  # of transformers


async def open_bench(
    specs: Sequence[RowSpec], options: argparse.Namespace, chosen: Sequence[Task], stack: AsyncExitStack
) -> Bench:
    """Start what rows need, and wanted rows of transformers.

    Rows that cannot be had are left out, and the reason is printed.

    Args:
        specs: the rows of ours and of vLLM, the target alone among them.
        options: engine, models, temperatures and limits; ``rows`` names the wanted ones, None for all.

    Raises:
        DataError: the target alone cannot be started.
    """
    bench = Bench()
    missing = [spec.name for spec in specs if _lacks_a_model(spec, options)]
    if missing:
        sys.stderr.write(f"left out, --draft or --head is not given: {', '.join(missing)}\n")
    specs = [spec for spec in specs if spec.name not in missing]
    for group in groups_of(options):
        if any(spec.group == group.name for spec in specs):
            opened = await open_group(group, options, chosen, stack)
            if opened is not None:
                bench.opened |= {spec.name: opened for spec in specs if spec.group == group.name}
            if BASELINE not in bench.opened:
                raise DataError("the target alone could not be started: there is nothing to compare with")
    running = [spec for spec in specs if spec.name in bench.opened]
    for temperature in options.temperatures:
        bench.arms += [_arm_of(bench, spec, temperature, options.max_tokens) for spec in running]
    if options.engine == "torch":
        _add_transformers(bench, options)
    return bench


def wanted_rows(options: argparse.Namespace) -> list[RowSpec]:
    """Return the rows of the engine that ``options.rows`` names, or the usual ones, and the target alone."""
    rows = [spec for spec in ROWS[options.engine] if _is_wanted(spec.name, options)]
    return rows if options.rows else [spec for spec in rows if spec.name not in NAMED_ONLY]


def _is_wanted(name: str, options: argparse.Namespace) -> bool:
    return name == BASELINE or not options.rows or name in options.rows


def _lacks_a_model(spec: RowSpec, options: argparse.Namespace) -> bool:
    if spec.group == "headed":
        return options.head is None or options.draft is None
    if spec.group in ("head", "eagle3"):
        return options.head is None
    if spec.group == "draft_model" or (spec.group == "ours" and needs_draft(spec.strategy)):
        return options.draft is None
    return False


def _arm_of(bench: Bench, spec: RowSpec, temperature: float, max_tokens: int) -> Arm:
    opened = bench.opened[spec.name]
    settings = settings_of({**opened.group.flags, **spec.own}, spec.strategy, temperature, max_tokens)
    bench.settings[spec.name, temperature] = settings

    async def solve(problem: Task, index: int) -> Run:
        await opened.ours.prepare(settings)
        return await opened.ours.solve(settings, problem, index)

    return Arm(spec.name, temperature, solve)


def _add_transformers(bench: Bench, options: argparse.Namespace) -> None:
    names = [name for name in TRANSFORMERS if _is_wanted(name, options)]
    if not names:
        return
    # As the torch engine has them.
    device = auto_device() if options.device == "auto" else options.device
    target = EngineSettings(
        model=options.target, device=device, dtype="float32" if device == "cpu" else "bfloat16"
    )
    plain = Transformers(target, options.max_tokens, until_loop=True)
    bench.num_threads = plain.calibrate(len(bench.opened[BASELINE].accelerator.bundle.cores.every))
    sys.stderr.write(f"transformers runs on {bench.num_threads} threads\n")
    arguments: dict[str, dict[str, Any]] = {
        "transformers": {},
        "transformers:prompt_lookup": {"prompt_lookup_num_tokens": _PROMPT_LOOKUP_TOKENS},
    }
    if options.draft is None:
        sys.stderr.write("left out, --draft is not given: transformers:assistant_model\n")
    elif "transformers:assistant_model" in names:
        arguments["transformers:assistant_model"] = {"assistant_model": plain.load("draft", options.draft)}
    for temperature in options.temperatures:
        for name in names:
            if name not in arguments:
                continue

            async def solve(
                problem: Task, index: int, temperature: float = temperature, name: str = name
            ) -> Run:
                return plain.solve(problem, temperature, index, **arguments[name])

            bench.arms.append(Arm(name, temperature, solve))
