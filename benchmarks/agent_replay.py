"""Replay agent traces, and count the tool calls that could have run before the model had written them.

    python benchmarks/agent_replay.py FILE... [--learn FILE...] [--json FILE]
    python benchmarks/agent_replay.py FILE... --save-model MODEL

Files are results of tau-bench, ``.traj`` of SWE-agent (only the form is tested), or jsonl with messages in
OpenAI's form. There is one row for each case:

- ``other_trials``: learned from the files of ``--learn``, whatever their task, without the conversation
  itself and those of its trial in the same file;
- ``other_tasks``: learned from them without the task; five folds of tasks.

Without ``--learn`` the files themselves are learned from. Shapes of calls, the model of their chance and its
threshold all come from these conversations; the threshold is chosen for ``--precision`` on conversations
that the model was not fitted to. At each moment the predictor has seen the conversation up to there.

A call may start when the model's turn begins, when it has written the name of a tool, and after each complete
argument. A right call is one whose result the model then asks for: the same tool and arguments, before any
call that may change something, and within ``--max-age``. It is in time by construction: it began before the
model had written the call. ``precision`` is the share of calls run ahead that were right;
``share_run_ahead`` the share of the model's read-only calls that were run ahead and right. ``seconds_saved``
is the sum over all conversations, by the seconds that a tool takes; ``seconds`` what they take without
anything run ahead.

``tokens_per_pass`` and ``steps`` are of the suffix cache, which has learned the same conversations: a tree of
``BUDGET`` draft tokens a pass, and whole steps (paragraphs and calls) that it proposes and that were right.
Tokens are tekken's where mistral-common is installed, else pieces of words.

``--save-model`` trains on all conversations, with and without the texts around the calls, and writes the
file that `reason_spec.tools_ahead.model` reads.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from arms import write_rows
from rich.console import Console
from rich.table import Table
from suffix_texts import Segment, Vocabulary, load_tekken
from suffix_writers import count_taken

from reason_spec.errors import ReasonSpecError
from reason_spec.lab.tools_ahead.moments import Recorded, Scores, moments_of, recorded
from reason_spec.lab.tools_ahead.replay import Ahead, Clock, Replayed, Use, counting_once, replay
from reason_spec.lab.tools_ahead.training import scores_of, train
from reason_spec.settings import SuffixSettings
from reason_spec.suffix.cache import SuffixCache
from reason_spec.suffix.traces import Conversation, read_traces
from reason_spec.tools_ahead.calls import Call, ReadOnlyTools
from reason_spec.tools_ahead.predictor import IsReadOnly, Knowledge

READ_ONLY: Final = (
    # tau-bench, airline and retail
    "get_user_details get_reservation_details search_direct_flight search_onestop_flight list_all_airports "
    "find_user_id_by_email find_user_id_by_name_zip get_order_details get_product_details "
    "list_all_product_types calculate think "
    # SWE-agent
    "find_file search_dir ls cat str_replace_editor(command=view)"
).split()
_MORE_THAN_ONE_PROGRAM: Final = re.compile(r"[>|;&\n`]|\$\(")
"""What may make a shell's command write, whatever its first word."""
LATENCIES: Final = (0.1, 1.0, 5.0)
"""Seconds of a tool; ``share_run_ahead`` is at the second."""
BUDGET: Final = 16
FOLDS: Final = 5
MARGINS: Final = {"other_trials": 0.05, "other_tasks": 0.03}
"""What the threshold's precision on held-out conversations has to have above ``--precision``, by case. A
precision of 0.8 that is counted on 300 calls has a standard deviation of 0.023. With other trials it is more,
because how far two trials agree is assumed in training."""
_STEP_CHANCE: Final = 0.5


# --- conversations and what is learned from -------------------------------------------------------------


class Trace(NamedTuple):
    """A conversation as events and as tokens."""

    recorded: Recorded
    segments: list[Segment]


class Part(NamedTuple):
    """Conversations to replay, and the pool that is learned from."""

    tests: list[Trace]
    pool: list[Trace]


def read_all(files: Sequence[Path], vocabulary: Vocabulary) -> list[Trace]:
    """Read the conversations of all files.

    Raises:
        DataError: a file cannot be read.
    """
    conversations: list[Conversation] = [one for file in files for one in read_traces(file).conversations]
    return [
        Trace(events, vocabulary.segments_of(conversation.messages))
        for events, conversation in zip(recorded(conversations), conversations, strict=True)
    ]


def read_only_calls(rules: Sequence[str]) -> IsReadOnly:
    """Return the rules for calls; a command in a text is named by its first word, and must be of that alone.

    Raises:
        SettingsError: a rule has an unknown form.
    """
    tools = ReadOnlyTools(rules)

    def is_read_only(call: Call) -> bool:
        command = str(call.arguments.get("command", ""))
        is_text = len(call.values) == 1 and command.split()[:1] == [call.name]
        return tools(call) and not (is_text and _MORE_THAN_ONE_PROGRAM.search(command))

    return is_read_only


def parts_of(case: str, tests: Sequence[Trace], learn: Sequence[Trace]) -> list[Part]:
    """Return the parts of a case; together they hold every conversation once."""
    parts = []
    if case == "other_tasks":
        tasks = sorted({test.recorded.task for test in tests})
        for fold in range(min(FOLDS, len(tasks))):
            left_out = set(tasks[fold::FOLDS])
            mine = [test for test in tests if test.recorded.task in left_out]
            parts.append(Part(mine, [one for one in learn if one.recorded.task not in left_out]))
        return parts
    by_pool: dict[tuple[int, ...], Part] = {}
    for trial in sorted({test.recorded.trial for test in tests}):
        mine = [test for test in tests if test.recorded.trial == trial]
        own = {test.recorded for test in mine}
        pool = {number: one for number, one in enumerate(learn) if one.recorded not in own}
        by_pool.setdefault(tuple(pool), Part([], list(pool.values()))).tests.extend(mine)
    return list(by_pool.values())


# --- replay ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CaseResult:
    """All that a row is made of."""

    case: str
    replayed: list[tuple[Recorded, dict[float, Replayed]]] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    num_pool: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_passes: int = 0
    num_steps: int = 0
    num_steps_proposed: int = 0
    num_steps_right: int = 0

    def row(self, vocabulary: Vocabulary) -> dict[str, Any]:
        at = LATENCIES[1]
        all_of = [by_latency[at] for _, by_latency in self.replayed]
        ahead = [one for replayed in all_of for one in replayed.ahead]
        uses = [use for replayed in all_of for use in replayed.uses]
        stages = {"turn": 0, "name": 0, "arguments": 0}
        for use in uses:
            if use.stage is not None:
                stages[("turn", "name", "arguments")[min(use.stage, 2)]] += 1
        return {
            "case": self.case,
            **counts_of(ahead, uses),
            "threshold": float(np.mean(self.thresholds)),
            "seconds_saved": self._by_latency(lambda replayed: replayed.saved),
            "seconds": self._by_latency(lambda replayed: replayed.seconds),
            "tokens_per_pass": self.num_tokens / max(1, self.num_passes),
            "steps": {
                "n": self.num_steps,
                "n_proposed": self.num_steps_proposed,
                "n_right": self.num_steps_right,
            },
            "right_by_stage": stages,
            "calibration": calibration(ahead),
            "by_tool": {
                tool: counts_of([a for a in ahead if a.tool == tool], [u for u in uses if u.tool == tool])
                for tool in sorted({use.tool for use in uses} | {one.tool for one in ahead})
            },
            "by_trial": self._split(lambda one: one.trial),
            "by_task": self._split(lambda one: one.task),
            "n_conversations": len(self.replayed),
            "n_learned": float(np.mean(self.num_pool)),
            "tokens": vocabulary.name,
        }

    def _by_latency(self, value: Callable[[Replayed], float]) -> dict[str, float]:
        return {f"{at:g}": sum(value(by[at]) for _, by in self.replayed) for at in LATENCIES}

    def _split(self, name: Callable[[Recorded], str]) -> dict[str, dict[str, Any]]:
        found: dict[str, Any] = {}
        for part in sorted({name(one) for one, _ in self.replayed}):
            mine = [by[LATENCIES[1]] for one, by in self.replayed if name(one) == part]
            found[part] = counts_of([a for r in mine for a in r.ahead], [u for r in mine for u in r.uses])
        return found


def counts_of(ahead: Sequence[Ahead], uses: Sequence[Use]) -> dict[str, Any]:
    right = sum(use.stage is not None for use in uses)
    return {
        "n_read_only": len(uses),
        "n_run_ahead": len(ahead),
        "n_right": right,
        "precision": right / len(ahead) if ahead else None,
        "share_run_ahead": right / len(uses) if uses else None,
        "mean_chance": float(np.mean([one.chance for one in ahead])) if ahead else None,
    }


def calibration(ahead: Sequence[Ahead]) -> list[dict[str, float]]:
    """Return the mean chance and the share that was right, by tenths of the chance."""
    found = []
    for tenth in range(10):
        mine = [one for one in ahead if tenth <= min(one.chance * 10, 9.99) < tenth + 1]
        if mine:
            chance = float(np.mean([one.chance for one in mine]))
            found.append(
                {"n": len(mine), "chance": chance, "right": sum(a.is_used for a in mine) / len(mine)}
            )
    return found


def measure(
    case: str,
    tests: Sequence[Trace],
    learn: Sequence[Trace],
    is_read_only: IsReadOnly,
    clock: Clock,
    precision: float,
    vocabulary: Vocabulary,
) -> CaseResult:
    """Replay all conversations of a case.

    Raises:
        DataError: there is too little to learn from.
    """
    result = CaseResult(case)
    parts = parts_of(case, tests, learn)
    for number, (mine, pool) in enumerate(parts):
        sys.stderr.write(f"{case}, part {number + 1} of {len(parts)}: {len(mine)} from {len(pool)}\n")
        result.num_pool.append(len(pool))
        score = learned_scores([one.recorded for one in pool], case, is_read_only, clock, precision, result)
        for test in mine:
            scores = score(test.recorded)
            by_latency = {
                seconds: replay(
                    test.recorded,
                    scores,
                    result.thresholds[-1],
                    replace(clock, tool_seconds=seconds),
                    is_read_only,
                )
                for seconds in LATENCIES
            }
            result.replayed.append((test.recorded, by_latency))
        replay_cache(mine, pool, vocabulary, result)
    return result


def learned_scores(
    pool: Sequence[Recorded],
    case: str,
    is_read_only: IsReadOnly,
    clock: Clock,
    precision: float,
    result: CaseResult,
) -> Callable[[Recorded], list[Scores]]:
    """Learn a pool, note the threshold, and return what scores a conversation; nothing without a pool."""
    if not pool:
        sys.stderr.write("there is nothing to learn from; name files with --learn\n")
        result.thresholds.append(1.0)
        return lambda _: []
    with_trials = case == "other_trials"
    model = train(pool, is_read_only, clock, precision=precision + MARGINS[case], with_trials=with_trials)
    knowledge = Knowledge.of([one.events for one in pool], is_read_only)
    result.thresholds.append(model.threshold)
    return lambda one: scores_of(model, moments_of(knowledge, one.events))


def replay_cache(
    tests: Sequence[Trace], pool: Sequence[Trace], vocabulary: Vocabulary, result: CaseResult
) -> None:
    """Write the answers of conversations with a suffix cache that has learned the pool."""
    # Each conversation is a tenant that reads the pool's: none learns from another one.
    cache = SuffixCache(SuffixSettings(tenant="pool", reads=("pool",), max_bytes=1 << 34))
    for one in pool:
        with cache.open_session("pool") as session:
            session.begin(one.segments)
    for number, test in enumerate(tests):
        with cache.open_session(f"test {number}") as tokens, cache.open_session(f"steps {number}") as steps:
            for place, segment in enumerate(test.segments):
                if segment.source != "output":
                    continue
                tokens.begin(test.segments[:place])
                steps.begin(test.segments[:place])
                _count_passes(tokens, segment.tokens, result)
                _count_steps(steps, segment.tokens, vocabulary, result)


def _count_passes(session: Any, answer: list[int], result: CaseResult) -> None:
    written = 0
    while written < len(answer):
        draft = session.propose_tokens(BUDGET, tree=True)
        taken = count_taken(draft, answer[written:])
        session.extend(answer[written : written + taken + 1])
        written += taken + 1
        result.num_passes += 1
    result.num_tokens += len(answer)


def _count_steps(session: Any, answer: list[int], vocabulary: Vocabulary, result: CaseResult) -> None:
    def find_end(tokens: Sequence[int]) -> int | None:
        return next((n for n, token in enumerate(tokens, 1) if vocabulary.is_end(token)), None)

    rest = answer
    while rest:
        size = find_end(rest) or len(rest)
        step = session.propose_step(find_end, 256, min_chance=_STEP_CHANCE)
        result.num_steps += 1
        if step is not None:
            result.num_steps_proposed += 1
            result.num_steps_right += list(step.tokens) == rest[:size]
        session.extend(rest[:size])
        rest = rest[size:]


# --- command --------------------------------------------------------------------------------------------


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table()
    headings = (
        "case|read-only|ahead|right|precision|share|saved s at 0.1|1|5|of s at 1|tokens/pass|steps right"
    )
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        steps = row["steps"]
        table.add_row(
            row["case"],
            str(row["n_read_only"]),
            str(row["n_run_ahead"]),
            str(row["n_right"]),
            *(
                f"{row[name]:.3f}" if row[name] is not None else "-"
                for name in ("precision", "share_run_ahead")
            ),
            *(f"{row['seconds_saved'][f'{at:g}']:.1f}" for at in LATENCIES),
            f"{row['seconds']['1']:.0f}",
            f"{row['tokens_per_pass']:.2f}",
            f"{steps['n_right']} of {steps['n_proposed']} of {steps['n']}",
        )
    Console(width=150).print(table)
    for row in rows:
        tools = ", ".join(
            f"{tool} {counts['n_right']} of {counts['n_read_only']} ({counts['n_run_ahead']} run)"
            for tool, counts in row["by_tool"].items()
        )
        sys.stdout.write(f"{row['case']}: {tools}; by stage {row['right_by_stage']}\n")


def vocabulary_here() -> Vocabulary:
    try:
        return Vocabulary(load_tekken())
    except ModuleNotFoundError:
        return Vocabulary(None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--learn", nargs="+", type=Path, metavar="FILE", help="learn from these instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows; - for stdout alone")
    parser.add_argument(
        "--read-only",
        nargs="+",
        metavar="RULE",
        help="NAME or NAME(ARGUMENT=VALUE); default: of the known benchmarks",
    )
    parser.add_argument("--precision", type=float, default=0.8)
    parser.add_argument("--tokens-per-second", type=float, default=50.0, help="of the model")
    parser.add_argument("--user-seconds", type=float, default=10.0, help="that a user takes for a text")
    parser.add_argument("--max-age", type=float, default=120.0, help="seconds that a result may be used for")
    parser.add_argument("--save-model", type=Path, metavar="MODEL", help="train on all files, and write it")
    return parser.parse_args()


def main() -> None:
    options = _options()
    vocabulary = vocabulary_here()
    count_tokens = counting_once(lambda text: len(vocabulary.encode(text)))
    clock = Clock(
        count_tokens, options.tokens_per_second, LATENCIES[1], options.user_seconds, options.max_age
    )
    try:
        is_read_only = read_only_calls(options.read_only or READ_ONLY)
        tests = read_all(options.files, vocabulary)
        if options.save_model:
            pool = [one for trace in tests for one in (trace.recorded, trace.recorded.calls_only)]
            about = {"files": [file.name for file in options.files], "precision": options.precision}
            model = train(
                pool, is_read_only, clock, precision=options.precision, with_trials=True, about=about
            )
            options.save_model.write_text(model.to_json())
            return
        learn = read_all(options.learn, vocabulary) if options.learn else tests
        rows = [
            measure(case, tests, learn, is_read_only, clock, options.precision, vocabulary).row(vocabulary)
            for case in ("other_trials", "other_tasks")
        ]
    except (ReasonSpecError, OSError) as error:
        sys.exit(str(error))
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
