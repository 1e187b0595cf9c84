"""Time both layers on vLLM: plain decoding, each token-level method, the step level, and both together.

    python benchmarks/vllm_pair.py [--models real] [--problems 12] [--concurrency 1 8] [--padded LAYERS]
        [--json [FILE]]

Each token-level method needs engines of its own, which its rows share; all are started before anything is
timed, and one that has nothing to do takes no processor time. Engines are compiled, as vLLM does by itself
and as is fastest (``--eager`` starts sooner). For each group of problems the rows take turns in an order
shuffled with the seed, and prefix caches are emptied before each. Plain decoding runs on as many cores as
suit it best, those of the draft among them. ``token:draft_model`` has the number of drafts, of
``--draft-tokens``, that writes three of the problems fastest at that concurrency. With ``--padded LAYERS``
the target is made deeper first, which changes its cost and nothing that it writes; such rows say so.
``own_ms_per_step`` is the processor time of this program's own thread from one final step to the next, of any
problem: what leads the work and verifies it, and waits for no engine. Median, and mean.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from arms import printer, write_rows
from embedded import MAX_TOKENS
from models import Models, Task, add_models_arguments, model_folder, models_of, needs_draft
from padding import pad
from table_columns import VLLM_PAIR
from table_forms import Column, number, percent, text

from reason_spec.accelerator import Accelerator, Generator, Solution
from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.events import Event
from reason_spec.settings import Settings, load_settings
from reason_spec.verifiers.base import Verifier, create_verifier

STEP_ALONE = {"strategy.use_hint": False, "strategy.use_redraft": False, "strategy.token_drafter": "none"}


class RowSpec(NamedTuple):
    """A row: its name, the target's token method, strategy and further settings."""

    name: str
    method: str
    strategy: str
    own: dict[str, Any]


ROWS: Final = (
    RowSpec("autoregressive", "none", "autoregressive", {}),
    RowSpec("token:ngram", "ngram", "autoregressive", {}),
    RowSpec("token:suffix", "suffix", "autoregressive", {}),
    RowSpec("token:draft_model", "draft_model", "autoregressive", {}),
    RowSpec("prompt_lookup", "hint", "prompt_lookup", {}),
    RowSpec("token:draft_ahead", "hint", "speculative", {}),
    RowSpec("step:semantic", "none", "lookahead", STEP_ALONE),
    RowSpec("step:semantic, ngram", "ngram", "lookahead", STEP_ALONE),
    RowSpec("step:semantic, suffix", "suffix", "lookahead", STEP_ALONE),
    RowSpec("both:exact", "hint", "lookahead", {"verifier.name": "exact"}),
    RowSpec("both:semantic", "hint", "lookahead", {}),
)
_SEARCHED_PROBLEMS: Final = 3


@dataclass(slots=True)
class Arm:
    """One row at one concurrency: its settings on shared engines, and its measurements."""

    name: str
    concurrency: int
    settings: Settings
    accelerator: Accelerator
    verifier: Verifier
    num_draft_tokens: int | None = None  # of vLLM's draft_model
    seconds: list[float] = field(default_factory=list)
    solutions: list[Solution] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    own_ms_per_step: list[float] = field(default_factory=list)

    @property
    def strategy(self) -> str:
        return self.settings.strategy.name

    @property
    def generator(self) -> Generator:
        return replace(self.accelerator.generator, settings=self.settings, verifier=self.verifier)

    async def prepare(self) -> None:
        """Make the engines this row's: its settings, its verifier, its cores, nothing in the caches."""
        await self.generator.prepare()


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of an arm; None if it does not apply."""

    name: str
    concurrency: int
    padded: bool
    temperature: float
    num_draft_tokens: int | None
    tokens_per_s: float
    s_per_problem: float
    speedup: float
    same_tokens: float
    accuracy: float
    passes_per_token: float
    alpha_step: float | None
    alpha_token: float | None
    own_ms_per_step: float
    own_ms_per_step_mean: float
    target_ms_per_pass: float
    draft_ms_per_pass: float | None
    c: float | None
    pass_ms: dict[int, float]
    target_cores: int


def _flags(
    method: str, own: dict[str, Any], options: argparse.Namespace, models: Models, draft_tokens: int | None
) -> dict[str, Any]:
    speculative: dict[str, Any] = {}
    if method == "ngram":
        speculative = {"prompt_lookup_max": 4, "prompt_lookup_min": 2, "num_speculative_tokens": 8}
    elif method == "suffix":
        # It would remember the same problems from other rows, and no reset of the prefix cache empties it.
        speculative = {"suffix_decoding_max_cached_requests": 0}
    elif method == "draft_model":
        assert models.draft is not None
        draft = model_folder("draft", models.draft)
        speculative = {"model": str(draft), "num_speculative_tokens": draft_tokens}
    shared = {"enforce_eager": options.eager}
    return {
        "target.kind": "vllm",
        "draft.kind": "vllm",
        **models.flags,
        "target.vllm.token_method": method,
        "draft.vllm.token_method": "none",
        "target.vllm.arguments": {**shared, "speculative_config": speculative} if speculative else shared,
        "draft.vllm.arguments": shared,
        "strategy.planner": False,
        # Under load the controller would let the target write alone, or without steps.
        "load_control.use": "off",
        "sampling.max_tokens": MAX_TOKENS,
        "sampling.temperature": options.temperature,
        **own,
    }


class Pool:
    """Engines by method and number of draft tokens, each started once and closed with the stack."""

    def __init__(self, options: argparse.Namespace, models: Models, stack: AsyncExitStack) -> None:
        self._options, self._models, self._stack = options, models, stack
        self._accelerators: dict[tuple[str, int | None], Accelerator] = {}
        self._verifiers: dict[str, Verifier] = {}

    async def arm(self, spec: RowSpec, concurrency: int, draft_tokens: int | None) -> Arm:
        """Return a row at a concurrency, on engines that may serve other rows as well."""
        settings = self._settings(spec, draft_tokens)
        key = spec.method, draft_tokens
        if key not in self._accelerators:
            self._accelerators[key] = await _start(spec, settings, self._models, self._stack)
        name = settings.verifier.name
        if name not in self._verifiers:
            self._verifiers[name] = verifier = create_verifier(settings=settings.verifier)
            await verifier.start()
            self._stack.push_async_callback(verifier.close)
        return Arm(
            spec.name, concurrency, settings, self._accelerators[key], self._verifiers[name], draft_tokens
        )

    async def best_draft_tokens(self, spec: RowSpec, concurrency: int, chosen: Sequence[Task]) -> int:
        """Return the number of draft tokens that writes a few of the problems fastest.

        vLLM fixes the number when it starts, so each has engines of its own, which are closed again.
        """
        tried = list(enumerate(chosen[: max(_SEARCHED_PROBLEMS, concurrency)]))
        seconds: dict[int, float] = {}
        for count in self._options.draft_tokens:
            async with AsyncExitStack() as stack:
                arm = await Pool(self._options, self._models, stack).arm(spec, concurrency, count)
                await run_group(arm, tried[:1])
                arm.seconds.clear()
                for start in range(0, len(tried), concurrency):
                    await run_group(arm, tried[start : start + concurrency])
                seconds[count] = sum(arm.seconds)
        shown = ", ".join(f"{number}: {time:.1f} s" for number, time in seconds.items())
        sys.stderr.write(f"{spec.name}, {concurrency} at once, by draft tokens {shown}\n")
        return min(seconds, key=seconds.__getitem__)

    def _settings(self, spec: RowSpec, draft_tokens: int | None) -> Settings:
        flags = _flags(spec.method, spec.own, self._options, self._models, draft_tokens)
        return load_settings(flags=flags | {"strategy.name": spec.strategy})


async def _start(spec: RowSpec, settings: Settings, models: Models, stack: AsyncExitStack) -> Accelerator:
    started = time.perf_counter()
    strategy = "lookahead" if models.draft is not None else spec.strategy
    made = await stack.enter_async_context(Accelerator.from_settings(settings, strategies=(strategy,)))
    await made.calibrate()
    sys.stderr.write(f"{spec.method}: started in {time.perf_counter() - started:.0f} s\n")
    return made


async def open_arms(
    options: argparse.Namespace, models: Models, chosen: Sequence[Task], stack: AsyncExitStack
) -> list[Arm]:
    """Start the engines of each method and return an arm for each row and concurrency."""
    arms: list[Arm] = []
    pool = Pool(options, models, stack)
    wanted = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows)]
    usable = models.usable(wanted, lambda row: row.method == "draft_model" or needs_draft(row.strategy))
    for spec in usable:
        if spec.method == "suffix" and importlib.util.find_spec("arctic_inference") is None:
            sys.stderr.write(
                f"{spec.name}: left out, it needs pip install arctic-inference (and a compiler)\n"
            )
            continue
        for concurrency in options.concurrency:
            number = None
            if spec.method == "draft_model":
                number = await pool.best_draft_tokens(spec, concurrency, chosen)
            arms.append(await pool.arm(spec, concurrency, number))
    return arms


async def run_group(arm: Arm, group: Sequence[tuple[int, Task]]) -> None:
    """Solve a group of problems at once; the seconds of a problem are those of the group over its size."""
    await arm.prepare()
    marks = [time.thread_time()]

    def mark(event: Event) -> None:
        if event.kind == "final":
            marks.append(time.thread_time())

    generator = arm.generator
    started = time.perf_counter()
    answers = (
        generator.answer(generator.request(problem.question, problem=index), listener=mark)
        for index, problem in group
    )
    solutions = await asyncio.gather(*answers)
    arm.seconds += [(time.perf_counter() - started) / len(group)] * len(group)
    arm.own_ms_per_step += [1000 * (after - before) for before, after in pairwise(marks)]
    arm.solutions += solutions
    arm.right += [
        problem.is_right(solution.text) for solution, (_, problem) in zip(solutions, group, strict=True)
    ]


async def time_arms(arms: Sequence[Arm], chosen: Sequence[Task], seed: int) -> None:
    """Let the arms take turns on each group of problems; a first problem warms them up."""
    for arm in arms:
        await run_group(arm, [(0, chosen[0])])
        for kept in (arm.seconds, arm.solutions, arm.right, arm.own_ms_per_step):
            kept.clear()
    rng = random.Random(seed)
    for concurrency in sorted({arm.concurrency for arm in arms}):
        for start in range(0, len(chosen), concurrency):
            group = list(enumerate(chosen))[start : start + concurrency]
            at_once = [arm for arm in arms if arm.concurrency == concurrency]
            for arm in rng.sample(at_once, len(at_once)):
                await run_group(arm, group)
            sys.stderr.write(f"\r{concurrency} at once: {start + len(group)} of {len(chosen)} problems timed")
        sys.stderr.write("\n")


def row_of(
    arm: Arm, baseline: Arm, options: argparse.Namespace, target_ms: float, draft_ms: float | None
) -> Row:
    """Summarise an arm beside plain decoding at the same concurrency."""
    ratios = [base / own for base, own in zip(baseline.seconds, arm.seconds, strict=True)]
    texts = [[token for step in solution.steps for token in step.tokens] for solution in arm.solutions]
    plain = [[token for step in solution.steps for token in step.tokens] for solution in baseline.solutions]
    recorders = [solution.recorder for solution in arm.solutions]
    verdicts = [verdict.accepted for recorder in recorders for verdict in recorder.verdicts]
    drafted = sum(recorder.target_usage.num_drafted_tokens for recorder in recorders)
    accepted = sum(recorder.target_usage.num_accepted_draft_tokens for recorder in recorders)
    num_tokens = sum(len(text) for text in texts)
    return Row(
        name=arm.name,
        concurrency=arm.concurrency,
        padded=options.padded is not None,
        temperature=options.temperature,
        num_draft_tokens=arm.num_draft_tokens,
        tokens_per_s=num_tokens / sum(arm.seconds),
        s_per_problem=statistics.median(arm.seconds),
        speedup=statistics.median(ratios),
        same_tokens=statistics.fmean(a == b for a, b in zip(texts, plain, strict=True)),
        accuracy=statistics.fmean(arm.right),
        passes_per_token=sum(recorder.target_usage.num_passes for recorder in recorders) / num_tokens,
        alpha_step=statistics.fmean(verdicts) if verdicts else None,
        alpha_token=accepted / drafted if drafted else None,
        own_ms_per_step=statistics.median(arm.own_ms_per_step),
        own_ms_per_step_mean=statistics.fmean(arm.own_ms_per_step),
        target_ms_per_pass=target_ms,
        draft_ms_per_pass=draft_ms,
        c=None if draft_ms is None else draft_ms / target_ms,
        pass_ms={round(time.num_tokens): 1000 * time.seconds for time in arm.accelerator.target.pass_times},
        target_cores=len(arm.accelerator.target_cores(arm.strategy)),
    )


print_table = printer(
    *VLLM_PAIR,
    Column("s a problem", number("s_per_problem")),
    Column("right", percent("accuracy")),
    Column("own ms/step", lambda row: f"{row['own_ms_per_step']:.1f} / {row['own_ms_per_step_mean']:.1f}"),
    Column("cores", text("target_cores")),
)


def print_rows(rows: Sequence[Row]) -> None:
    print_table(rows)
    if rows:
        first = rows[0]
        draft = "" if first.c is None else f", draft {first.draft_ms_per_pass:.1f} ms, c = {first.c:.2f}"
        target = "padded target" if first.padded else "target"
        sys.stdout.write(f"a pass with one token: {target} {first.target_ms_per_pass:.1f} ms{draft}\n")
        widest = max(rows, key=lambda row: len(row.pass_ms))
        passes = ", ".join(f"{size}: {ms:.0f}" for size, ms in widest.pass_ms.items())
        sys.stdout.write(f"T(n) of the target while {widest.name} ran, ms by tokens in the pass: {passes}\n")


def _pass_ms(arms: Sequence[Arm], side: str) -> float | None:
    """Return the milliseconds of a pass with one token, measured when engines started; None without one."""
    engines = [getattr(arm.accelerator, side) for arm in arms]
    measured = [engine.info.seconds_per_token_pass for engine in engines if isinstance(engine, WorkerEngine)]
    return 1000 * min(measured) if measured else None


async def measure(options: argparse.Namespace) -> list[Row]:
    models = models_of(options)
    chosen = models.tasks(options.problems, options.seed)
    async with AsyncExitStack() as stack:
        if options.padded is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "padded"
            pad(model_folder("target", models.target), options.padded, folder)
            models = replace(models, target=str(folder))
        arms = await open_arms(options, models, chosen, stack)
        target_ms, draft_ms = _pass_ms(arms, "target"), _pass_ms(arms, "draft")
        assert target_ms is not None, "no target was started"
        await time_arms(arms, chosen, options.seed)
    baselines = {arm.concurrency: arm for arm in arms if arm.name == "autoregressive"}
    return [row_of(arm, baselines[arm.concurrency], options, target_ms, draft_ms) for arm in arms]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_models_arguments(parser)
    parser.add_argument("--problems", type=int, default=12, help="problems that are timed (default: 12)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--padded", type=int, metavar="LAYERS", help="demo: make the target so deep first")
    parser.add_argument(
        "--draft-tokens",
        type=int,
        nargs="+",
        default=[3, 5, 8, 12, 16, 20, 24, 32],
        help="numbers of drafts to try for vLLM's own draft_model",
    )
    parser.add_argument("--eager", action="store_true", help="do not compile: slower, but starts at once")
    parser.add_argument("--rows", nargs="+", help="only rows whose name holds one of these")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if options.rows and "autoregressive" not in options.rows:
        options.rows.append("autoregressive")
    if options.problems < 1 or min(options.concurrency) < 1:
        parser.error("--problems and --concurrency must be at least 1")
    write_rows(asyncio.run(measure(options)), options.json, print_rows)


if __name__ == "__main__":
    main()
