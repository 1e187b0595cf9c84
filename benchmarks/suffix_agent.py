"""Savings of the suffix cache under lookahead: replayed runs of an agent, and repeated problems.

    python benchmarks/suffix_agent.py [FILE] [--models real] [--conversations 60] [--problems 12]
        [--json [FILE]]

With a FILE of past conversations (JSON lines of messages) each of its answers is written again by a
scripted target, once with no cache and once with one that learns as it goes. The draft writes nothing that
is right, so that all that is saved is the cache's work; passes are counted, not timed.

Then the models solve problems that they have solved before, the same with one person's name changed in
each and with one number changed, and all after a restart that loads what was saved. ``cold`` is the same
setting with an empty cache. Cold and warm take turns in an order shuffled with the seed, prefix caches are
emptied before each, and each has a planner of its own. ``ratio`` is the median over problems of the seconds
cold over those warm, ``ratio_of_sums`` that of all seconds of a list; the rows ``all`` are of the three
lists together. Stop other work first.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from arms import printer, write_rows
from changed_questions import change_a_name, change_a_number, has_name
from models import Models, add_models_arguments, models_of, needs_draft
from table_columns import SUFFIX_AGENT
from table_forms import Column, number, percent, text
from text_columns import SUFFIX_REPLAYS

from reason_spec.accelerator import Accelerator, Generator, Solution
from reason_spec.accelerator.load import with_new_planners
from reason_spec.engines.chat_template import Message
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import Settings, SuffixSettings, load_settings
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.scopes import open_caches
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.suffix.traces import Conversation, read_traces
from reason_spec.types import Sampling, Usage
from reason_spec.verifiers.exact import ExactVerifier

MAX_TOKENS = 448
USES = ("none", "steps", "tokens", "both")
"""The proposals of the cache in a replay."""
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("planned", "lookahead", {}),
    ("depth 4", "lookahead", {"strategy.planner": False}),
    ("prompt_lookup", "prompt_lookup", {}),
)
"""Names, strategies and settings of the end-to-end rows."""


# --- an agent's runs, replayed -------------------------------------------------------------------------


class Recital:
    """A script that writes a given answer after a given prompt."""

    def __init__(self) -> None:
        self.prompt = ""
        self.answer = ""

    def __call__(self, text: str, sampling: Sampling) -> str:
        return self.answer[len(text) - len(self.prompt) :]


class Silence:
    """The draft's script: it writes nothing that is right."""

    def __call__(self, text: str, sampling: Sampling) -> str:
        return " \n\n"


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One replay. ``passes`` are those in which the target wrote, each counted once for each branch."""

    name: str
    answers: int
    steps: int
    tokens: int
    steps_from_cache: float
    alpha_step_cache: float | None
    passes: int
    passes_per_token: float
    passes_saved: float
    discarded_tokens: int
    drafted_in_vain: int
    same_text: bool


async def replay(conversations: Sequence[Conversation], *, use: str) -> ReplayRow:
    """Write every answer of the conversations again."""
    script = Recital()
    earlier = EarlierTexts(open_caches(SuffixSettings(use="tokens"), StoreKey("", "")))
    target = ScriptedEngine("target", script, earlier=earlier)
    draft = ScriptedEngine("draft", Silence())
    settings = load_settings(
        flags={"suffix.use": use, "sampling.max_tokens": 1 << 16, "strategy.planner": False}
    )
    solutions: list[Solution] = []
    same = True
    async with Accelerator(settings, target, draft, ExactVerifier()) as accelerator:
        for number, conversation in enumerate(conversations, start=1):
            messages: list[Message] = []
            for message in conversation.messages:
                text = message.text_with_calls
                if message.role == "assistant" and messages and text:
                    script.prompt = target.tokenizer.decode(target.tokenizer.encode_chat(messages))
                    script.answer = text
                    solutions.append(await accelerator.answer(messages))
                    same &= solutions[-1].text == text
                messages.append({"role": message.role, "content": text})
            sys.stderr.write(f"\rsuffix.use={use}: {number} of {len(conversations)} conversations")
    sys.stderr.write("\n")
    steps = [step for solution in solutions for step in solution.steps]
    recorders = [solution.recorder for solution in solutions]
    verdicts = [verdict.accepted for recorder in recorders for verdict in recorder.cache_verdicts]
    tokens = sum(len(step.tokens) for step in steps)
    usages = [recorder.target_usage for recorder in recorders]
    passes = sum(usage.num_passes for usage in usages)
    return ReplayRow(
        name=f"lookahead, suffix.use={use}",
        answers=len(solutions),
        steps=len(steps),
        tokens=tokens,
        steps_from_cache=sum(step.origin == "cache" for step in steps) / len(steps),
        alpha_step_cache=statistics.mean(verdicts) if verdicts else None,
        passes=passes,
        passes_per_token=passes / tokens,
        passes_saved=1.0 - passes / tokens,
        discarded_tokens=sum(usage.num_discarded_tokens for usage in usages),
        drafted_in_vain=sum(usage.num_drafted_tokens - usage.num_accepted_draft_tokens for usage in usages),
        same_text=same,
    )


# --- problems that come again --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """One question answered."""

    seconds: float
    solution: Solution


@dataclass(slots=True)
class Arm:
    """One way to solve a list of questions, and what came of it."""

    kind: str
    name: str
    runs: dict[int, Run] = field(default_factory=dict)
    """By the place of the question in its list."""

    @property
    def solutions(self) -> list[Solution]:
        return [self.runs[index].solution for index in sorted(self.runs)]

    @property
    def seconds(self) -> list[float]:
        return [self.runs[index].seconds for index in sorted(self.runs)]

    @property
    def texts(self) -> list[tuple[int, ...]]:
        return [tuple(t for step in solution.steps for t in step.tokens) for solution in self.solutions]

    @property
    def depth(self) -> float | None:
        """The mean depth of the plans; None without a planner."""
        plans = [solution.recorder.plan for solution in self.solutions]
        depths = [plan.depth for plan in plans if plan is not None]
        return statistics.mean(depths) if depths else None

    def passes_per_token(self, model: Literal["target", "draft"]) -> float:
        recorders = [solution.recorder for solution in self.solutions]
        usages = [r.target_usage if model == "target" else r.draft_usage for r in recorders]
        return sum(usage.num_passes for usage in usages) / sum(map(len, self.texts))


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row of an arm; ``same_tokens`` compares with the target alone."""

    setting: str
    kind: str
    name: str
    s_per_problem: float
    ratio: float
    ratio_of_medians: float
    ratio_of_sums: float
    tokens_per_s: float
    same_tokens: float
    steps_from_cache: float
    alpha_step_cache: float | None
    passes_per_token: float
    cold_passes_per_token: float
    run_per_token: float
    draft_passes_per_token: float
    cold_draft_passes_per_token: float
    drafted_per_token: float
    depth: float | None
    cold_depth: float | None


class Solver:
    """The accelerator, for one arm at a time."""

    def __init__(self, accelerator: Accelerator, settings: Settings) -> None:
        self._accelerator = accelerator
        self._strategy = settings.strategy
        self._generators: dict[str, Generator] = {}
        self._num_cold = 0

    async def solve(self, arm: Arm, question: str, index: int, *, cold: bool) -> None:
        """Solve a question with the cache as it is, or with an empty one."""
        generator = self._generator(arm.name)
        await generator.prepare()
        self._num_cold += cold
        scope = f"cold {self._num_cold}" if cold else ""
        # A scope begins with what was kept of the tenant, and of this one nothing is.
        tenant = "nobody" if cold else None
        started = time.perf_counter()
        request = generator.request(question, problem=index, tenant=tenant, scope=scope)
        solution = await generator.answer(request)
        arm.runs[index] = Run(time.perf_counter() - started, solution)
        if cold and self._accelerator.suffix_sessions is not None:
            self._accelerator.suffix_sessions.forget(scope)

    def _generator(self, name: str) -> Generator:
        """Return the generator of an arm; its planner has seen only what this arm wrote."""
        if name not in self._generators:
            base = self._accelerator.generator
            control = with_new_planners(base.control, self._strategy, base.target)
            self._generators[name] = replace(base, control=control)
        return self._generators[name]


async def take_turns(
    solver: Solver, lists: dict[str, list[str]], warm_name: str, rng: random.Random
) -> list[Arm]:
    """Solve each list of questions cold and warm, in an order shuffled for every question."""
    arms = {(kind, name): Arm(kind, name) for kind in lists for name in ("cold", warm_name)}
    places = [(kind, index) for kind, questions in lists.items() for index in range(len(questions))]
    rng.shuffle(places)
    for done, (kind, index) in enumerate(places, start=1):
        for name in rng.sample(("cold", warm_name), 2):
            await solver.solve(arms[kind, name], lists[kind][index], index, cold=name == "cold")
        sys.stderr.write(f"\r{warm_name}: {done} of {len(places)} problems timed")
    sys.stderr.write("\n")
    return list(arms.values())


async def solve_alone(accelerator: Accelerator, questions: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the target's own answers."""
    alone: dict[str, tuple[int, ...]] = {}
    for question in dict.fromkeys(questions):
        solving = accelerator.solve(question, strategy="autoregressive", scope="alone")
        async with aclosing(solving):
            alone[question] = tuple([token async for step in solving for token in step.tokens])
    return alone


async def measure(
    name: str, strategy: str, flags: dict[str, Any], models: Models, num_problems: int, seed: int
) -> list[Row]:
    """Measure one setting: taught first, then cold and warm in turns, then again after a restart."""
    rng = random.Random(seed)
    asked = [task.question for task in models.tasks(num_problems, seed)]
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            flags={
                **models.flags,
                "strategy.name": strategy,
                "verifier.name": "exact",
                "sampling.max_tokens": MAX_TOKENS,
                "suffix.use": "both",
                "suffix.path": folder,
                **flags,
            }
        )
        rows: list[Row] = []
        for warm_name in ("warm", "restarted"):
            lists = {
                "repeated": asked,
                "name changed": [change_a_name(question, rng) for question in asked if has_name(question)],
                "number changed": [change_a_number(question, rng) for question in asked],
            }
            lists = {kind: questions for kind, questions in lists.items() if questions}
            strategies = (strategy, "autoregressive")
            async with Accelerator.from_settings(settings, strategies=strategies) as accelerator:
                solver = Solver(accelerator, settings)
                if warm_name == "warm":
                    for index, question in enumerate(asked):
                        await solver.solve(Arm("taught", "cold"), question, index, cold=False)
                # The first answers of a process are slow.
                await solver.solve(Arm("first", "cold"), asked[0], 0, cold=True)
                arms = await take_turns(solver, lists, warm_name, rng)
                alone = await solve_alone(accelerator, [q for questions in lists.values() for q in questions])
            for kind, questions in lists.items():
                own = [alone[question] for question in questions]
                pair = [arm for arm in arms if arm.kind == kind]
                rows += [row_of(name, arm, pair[0], own) for arm in pair]
            together = [joined(arms, arm_name) for arm_name in ("cold", warm_name)]
            own = [alone[question] for questions in lists.values() for question in questions]
            rows += [row_of(name, arm, together[0], own) for arm in together]
    return rows


def joined(arms: Sequence[Arm], name: str) -> Arm:
    """Return the arms of this name as one, their lists in the order of the arms."""
    runs = [arm.runs[index] for arm in arms if arm.name == name for index in sorted(arm.runs)]
    return Arm("all", name, dict(enumerate(runs)))


def row_of(setting: str, arm: Arm, cold: Arm, alone: Sequence[tuple[int, ...]]) -> Row:
    recorders = [solution.recorder for solution in arm.solutions]
    steps = [step for solution in arm.solutions for step in solution.steps]
    verdicts = [verdict.accepted for recorder in recorders for verdict in recorder.cache_verdicts]
    num_tokens = sum(map(len, arm.texts))
    own, base = arm.seconds, cold.seconds
    return Row(
        setting=setting,
        kind=arm.kind,
        name=arm.name,
        s_per_problem=statistics.median(own),
        ratio=statistics.median(before / after for before, after in zip(base, own, strict=True)),
        ratio_of_medians=statistics.median(base) / statistics.median(own),
        ratio_of_sums=sum(base) / sum(own),
        tokens_per_s=num_tokens / sum(own),
        same_tokens=sum(a == b for a, b in zip(arm.texts, alone, strict=True)) / len(alone),
        steps_from_cache=sum(step.origin == "cache" for step in steps) / len(steps),
        alpha_step_cache=statistics.mean(verdicts) if verdicts else None,
        passes_per_token=arm.passes_per_token("target"),
        cold_passes_per_token=cold.passes_per_token("target"),
        run_per_token=sum(_tokens_run(r.target_usage) for r in recorders) / num_tokens,
        draft_passes_per_token=arm.passes_per_token("draft"),
        cold_draft_passes_per_token=cold.passes_per_token("draft"),
        drafted_per_token=sum(r.draft_usage.num_generated_tokens for r in recorders) / num_tokens,
        depth=arm.depth,
        cold_depth=cold.depth,
    )


def _tokens_run(usage: Usage) -> int:
    """Return the tokens that passes were over: what was written, and what was drafted in vain."""
    return usage.num_passes + usage.num_drafted_tokens


# --- output --------------------------------------------------------------------------------------------


_ALPHA: Final = Column("alpha_step of the cache", number("alpha_step_cache"))
_print_replays = printer(*SUFFIX_REPLAYS, _ALPHA, Column("same text", text("same_text")))
_print_timed = printer(
    Column("setting", text("setting")),
    *SUFFIX_AGENT,
    Column("s a problem", number("s_per_problem")),
    Column("tokens/s", number("tokens_per_s", 1)),
    Column("steps from the cache", percent("steps_from_cache")),
    _ALPHA,
    Column("depth", number("depth")),
)


def print_rows(rows: Sequence[ReplayRow | Row]) -> None:
    replays = [row for row in rows if isinstance(row, ReplayRow)]
    timed = [row for row in rows if isinstance(row, Row)]
    if replays:
        _print_replays(replays)
    if timed:
        _print_timed(timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_models_arguments(parser)
    parser.add_argument("file", type=Path, nargs="?", help="past conversations: JSON lines of messages")
    parser.add_argument("--conversations", type=int, default=60, help="how many are replayed (default: 60)")
    parser.add_argument("--problems", type=int, default=12, help="timed problems; 0: none (default: 12)")
    parser.add_argument("--rows", nargs="+", default=[name for name, *_ in ROWS], help="settings to time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    replays: list[ReplayRow] = []
    if options.file is not None:
        conversations = read_traces(options.file).conversations[: options.conversations]
        replays = [asyncio.run(replay(conversations, use=use)) for use in USES]
    timed: list[Row] = []
    models = models_of(options)
    wanted = [row for row in ROWS if options.problems and row[0] in options.rows]
    for row in models.usable(wanted, lambda row: needs_draft(row[1])):
        timed += asyncio.run(measure(*row, models, options.problems, options.seed))
    write_rows([*replays, *timed], options.json, print_rows)


if __name__ == "__main__":
    main()
