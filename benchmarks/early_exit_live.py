"""Measure early exit in running answers: the demonstration pair, or stored answers that are played back.

    python benchmarks/early_exit_live.py [--problems 40] [--seed 0] [--rules none policy ...] [--threshold P]
        [--strategies autoregressive lookahead hybrid] [--policy FILE] [--json [FILE]]
    python benchmarks/early_exit_live.py --traces FILE --group NAME [--agreement 0.7] [--pass-ms 30 29 34]
        [--draft-ms 5] [the options above]

Without --traces the demonstration pair answers generated problems, one row after the other for each problem.
Nothing else may run meanwhile.

--traces are stored answers as `reason-spec exit train` reads them; their thinking ends with ``</think>``. The
target writes the stored text in virtual time: its passes of 1, 4 and 8 tokens take --pass-ms, longer ones in
proportion. Asked for a trial answer, or for the answer after an early end, it writes the value that the
policy finds likeliest in its text, and the stored answer where that is its value: a stored text cannot be
asked. The rules with trials are therefore not the published methods here; but every token of a trial is paid
for. The draft writes each step of the stored text with the chance --agreement, else another step that is
never accepted. Seconds are those of the passes, and of a small model that reads along under --policy.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from arms import printer, write_rows
from text_columns import EXIT_LIVE
from virtual_clock import run_in_virtual_time

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.accelerator.thinking import OPENER
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.evaluation.sources import generated_sources
from reason_spec.exit.policy import ExitPolicy
from reason_spec.exit.reading import read_value
from reason_spec.exit.trials import DEER_PROMPT, DYNASOR_PROMPT
from reason_spec.lab.exit.rules import choices
from reason_spec.lab.exit.traces import ReadTrace, read_steps, read_traces
from reason_spec.settings import ExitSettings, Settings, load_settings
from reason_spec.strategies.early_exit import BOX_PROMPT, policy_of
from reason_spec.strategies.thinking import CLOSER
from reason_spec.tasks.grading import Grader
from reason_spec.types import Sampling

TASK: Final = "gsm8k"
VERIFIERS: Final = {"lookahead": "exact", "specreason": "likelihood", "hybrid": "likelihood+exact"}
"""Of answers that are played back: verifiers that compute would take time that is not counted."""
_SIZES: Final = (1, 4, 8)


class PlayedText:
    """The script of one stored answer; with ``agreement`` below 1 some steps of the thinking are others."""

    def __init__(self, read: ReadTrace, values: Sequence[str], agreement: float = 1.0) -> None:
        self._steps, self._values, self._agreement = read.steps, values, agreement
        self._end = read.trace.response.partition(read.trace.thinking)[2]

    def __call__(self, text: str, sampling: Sampling) -> str:
        written = text.partition(f"{OPENER}\n")[2]
        thinking, closed, answer = written.partition(CLOSER)
        value = self._value_after(thinking)
        if closed:
            own = self._end.partition(CLOSER)[2]
            is_same = bool(value) and read_value(value) == read_value(self._values[-1])
            is_whole = thinking == "".join(self._steps) + self._end.partition(CLOSER)[0]
            whole = own if is_same or is_whole else f"\n\nThe answer is \\boxed{{{value}}}."
            return whole[len(answer) :] if whole.startswith(answer) else whole.lstrip()
        for prompt in (DEER_PROMPT, DYNASOR_PROMPT, BOX_PROMPT):
            if thinking.endswith(prompt):
                value = self._value_after(thinking.removesuffix(prompt))
                return f"{value}}}\n" if prompt.endswith("{") else f"{{{value}}}\n"
        return self._rest_of(thinking)

    def _rest_of(self, thinking: str) -> str:
        told, rest = "", []
        for number, step in enumerate(self._steps):
            told += step
            if len(told) > len(thinking):
                begun = thinking[len(told) - len(step) :]
                rest.append(self._step(number, step)[len(begun) :])
        return "".join(rest) + self._end[max(0, len(thinking) - len(told)) :]

    def _step(self, number: int, step: str) -> str:
        digest = hashlib.sha256(f"{number} {step}".encode()).digest()
        agrees = int.from_bytes(digest[:4], "big") < self._agreement * 2**32
        return step if agrees else f"Or else, {number}.\n\n"

    def _value_after(self, thinking: str) -> str:
        length, value = 0, ""
        for step, one in zip(self._steps, self._values, strict=True):
            if length + len(step.rstrip()) > len(thinking.rstrip()):
                break
            length, value = length + len(step), one
        return value


class Arm(NamedTuple):
    strategy: str
    rule: str


@dataclass(frozen=True, slots=True)
class Row:
    """The answers of one strategy under one rule; times and counts are means a problem."""

    strategy: str
    rule: str
    seconds: float
    tokens: float
    probe_tokens: float
    passes: float
    right: int
    ended_early: int
    problems: int
    speedup: float = 1.0


class Played(NamedTuple):
    """A stored answer, and the likeliest value after each step of its thinking."""

    read: ReadTrace
    values: tuple[str, ...]


def with_values(reads: Sequence[ReadTrace], policy: ExitPolicy) -> Iterator[Played]:
    for read in reads:
        yield Played(read, tuple("" if one is None else one.answer for one in choices(policy, read)))


def engines(played: Played, options: argparse.Namespace) -> tuple[ScriptedEngine, ScriptedEngine]:
    def target_seconds(num_tokens: int) -> float:
        if num_tokens > _SIZES[-1]:
            return float(options.pass_ms[-1]) * num_tokens / _SIZES[-1] / 1000
        return float(np.interp(num_tokens, _SIZES, options.pass_ms)) / 1000

    tokenizer = ScriptedTokenizer(thinking=True)
    target = ScriptedEngine(
        "target", PlayedText(*played), tokenizer=tokenizer, seconds_per_pass=target_seconds
    )
    script = PlayedText(*played, options.agreement)
    seconds = options.draft_ms / 1000
    return target, ScriptedEngine("draft", script, tokenizer=tokenizer, seconds_per_pass=seconds)


def settings_of(strategy: str, rule: str, options: argparse.Namespace) -> Settings:
    flags: dict[str, Any] = {
        "strategy.name": strategy,
        "strategy.planner": False,
        "load_control.use": "off",
        "suffix.use": "none",
        "exit.rule": rule,
        "exit.policy": options.policy,
        "exit.threshold": options.threshold,
    }
    if options.traces is not None:
        flags |= {"verifier.name": VERIFIERS.get(strategy, "auto"), "sampling.max_tokens": 8192}
    return load_settings(flags={name: value for name, value in flags.items() if value is not None})


def play(played: Played, settings: Settings, options: argparse.Namespace) -> Solution:
    async def run() -> Solution:
        async with Accelerator(settings, *engines(played, options), None) as accelerator:
            return await accelerator.answer(played.read.trace.question)

    return run_in_virtual_time(run())


def play_all(options: argparse.Namespace, grader: Grader) -> list[Row]:
    """Play stored answers back under each strategy and rule."""
    traces = read_traces(options.traces, TASK, groups=[options.group] if options.group else [])
    policy = policy_of(ExitSettings(rule="policy", policy=options.policy))
    model = None if policy.reading is None else policy.reading.load()
    reads = read_steps([t for t in traces if CLOSER in t.response][: options.problems], model=model)
    answers = list(with_values(reads, policy))
    references = [read.trace.answer for read in reads]
    rows = []
    for arm in arms_of(options):
        settings = settings_of(*arm, options)
        found = [play(played, settings, options) for played in answers]
        rows.append(row_of(arm, found, references, grader))
        sys.stderr.write(f"{', '.join(arm)}: {rows[-1].seconds:.1f} s\n")
    return rows


async def answer_all(options: argparse.Namespace, grader: Grader) -> list[Row]:
    """Let the demonstration pair answer generated problems under each strategy and rule."""
    problems = generated_sources(options.problems, options.seed).problems
    arms = {arm: settings_of(*arm, options) for arm in arms_of(options)}
    found: dict[Arm, list[Solution]] = {arm: [] for arm in arms}
    started = load_settings(flags={"strategy.planner": False, "load_control.use": "off"})
    rng = random.Random(options.seed)
    async with Accelerator.from_settings(started, strategies=options.strategies) as accelerator:
        await accelerator.calibrate()
        for number, problem in enumerate([problems[0], *problems]):  # the first is a warm-up
            for arm in rng.sample(list(arms), len(arms)):
                generator = replace(accelerator.generator, settings=arms[arm])
                await generator.prepare(arm.strategy)
                answer = await generator.answer(generator.request(problem.question))
                if number:
                    found[arm].append(answer)
            sys.stderr.write(f"\r{number} of {len(problems)} problems")
        sys.stderr.write("\n")
    references = [str(problem.answer) for problem in problems]
    return [row_of(arm, solutions, references, grader) for arm, solutions in found.items()]


def arms_of(options: argparse.Namespace) -> list[Arm]:
    return [Arm(strategy, rule) for strategy in options.strategies for rule in options.rules]


def row_of(arm: Arm, found: Sequence[Solution], references: Sequence[str], grader: Grader) -> Row:
    grades = [
        grader.grade(one.text, reference, TASK).correct
        for one, reference in zip(found, references, strict=True)
    ]

    def mean(numbers: Sequence[float]) -> float:
        return sum(numbers) / len(found)

    return Row(
        strategy=arm.strategy,
        rule=arm.rule,
        seconds=mean([one.seconds for one in found]),
        tokens=mean([one.num_tokens for one in found]),
        probe_tokens=mean([one.recorder.num_probe_tokens for one in found]),
        passes=mean([one.recorder.target_usage.num_passes for one in found]),
        right=sum(grade is True for grade in grades),
        ended_early=sum(one.recorder.early_exit is not None for one in found),
        problems=len(found),
    )


def with_speedups(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the speed-up over plain decoding without a rule, or over the first row."""
    plain = (row for row in rows if (row.strategy, row.rule) == ("autoregressive", "none"))
    base = next(plain, rows[0])
    return [replace(row, speedup=base.seconds / row.seconds) for row in rows]


print_rows = printer(*EXIT_LIVE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--group")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", nargs="+", default=["none", "policy", "probes", "deer", "dynasor"])
    parser.add_argument("--strategies", nargs="+", default=["autoregressive", "lookahead", "hybrid"])
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--agreement", type=float, default=0.7)
    parser.add_argument("--pass-ms", type=float, nargs=3, default=[30.0, 29.0, 34.0])
    parser.add_argument("--draft-ms", type=float, default=5.0)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    with Grader() as grader:
        if options.traces is None:
            rows = asyncio.run(answer_all(options, grader))
        else:
            rows = play_all(options, grader)
    write_rows(with_speedups(rows), options.json, print_rows)


if __name__ == "__main__":
    main()
