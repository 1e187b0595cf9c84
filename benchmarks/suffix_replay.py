"""Replay texts as a greedy target would write them, and count what a suffix cache saves.

    python benchmarks/suffix_replay.py FILE... [--budgets 4 8 16 32] [--trials NAME ...] [--fit-tasks N]
                                       [--test-tasks N] [--no-search] [--json [FILE]]

It needs the extra ``bench``. `suffix_texts` says which files are read. Each answer is written as a greedy
target would: the cache proposes, the matching path and one token more are taken, and so on; a pass is one
such round.

Settings are chosen on every second task, and all rows are of the other tasks. Caches begin empty, and learn
all that they write. Each row has two cases: ``new_task``, the first run of each task, before which no run of
the same task was written, and ``known_task``, further runs of the same tasks.

Rows, for each budget of drafted tokens in a pass:

- ``reason-spec``: this project's cache, as a chain and as a tree, for each of ``MIN_CHANCES``; its weights
  were fitted to half of the runs of tau-bench airline, of all of its tasks;
- ``reason-spec:refitted``: the same with weights fitted to the tasks that settings are chosen on;
- ``published``: SuffixDecoding as published, with alpha 1 (its authors' program) and with the best of
  ``FACTORS``, as a chain and as a tree;
- ``arctic:default``: arctic-inference's SuffixDecodingCache with the settings that vLLM gives it;
- ``arctic:chain`` and ``arctic:tree``: with the best settings of ``GRID``;
- ``ceiling``: in every pass the best of all past continuations after two or more matched tokens.

The best setting is that with the most tokens a pass; among equals, the fewest in vain. All caches take turns,
run by run, so that noise of the machine meets them alike. ``tokens_per_pass`` counts the tokens that the
target writes itself. ``drafted_in_vain``: drafted tokens that were not taken, for each token of the answers.
``update_us_per_token``: all time that is spent learning, over all new tokens of prompts and answers.
``bytes_per_token``: ours, all arrays of the index over the tokens in it; arctic's, its own
``estimate_memory`` of the tree of past answers over the tokens of these.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from arms import write_rows
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from suffix_texts import Split, TextRun, Vocabulary, load_tekken, read_runs, split_by_task
from suffix_writers import (
    UNBOUNDED,
    Arctic,
    ArcticSetting,
    Ours,
    Replay,
    Row,
    Weights,
    Writer,
    case_of,
    fitted_weights,
)

from reason_spec.errors import DataError
from reason_spec.settings import SuffixSettings
from reason_spec.suffix.cache import warm_up

MIN_CHANCES: Final = (None, 0.02)
"""Of ours; None is the default. Lower ones draft more and waste more."""
FACTORS: Final = (1.0, 2.0, 4.0)
"""Of the published rule, its alpha: draft tokens for each matched one."""
DEFAULT: Final = ArcticSetting(24, 1.0, 0.0, 0.1, False)
"""vLLM's suffix_decoding_max_tree_depth, factor and least token probability."""
GRID: Final = tuple(
    (factor, offset, min_prob)
    for factor, offset in ((2.0, 0.0), (4.0, 0.0), (4.0, 4.0), (UNBOUNDED, 0.0))
    for min_prob in (0.0, 0.1)
)
DEPTH: Final = 64
"""Of arctic-inference's cache in ``GRID``, in tokens; that of its authors' program."""


class Candidate(NamedTuple):
    """A cache with a setting, of which replays are made."""

    name: str
    setting: str
    make: Callable[[], Writer]


def replay_all(replays: Sequence[Replay], runs: Sequence[TextRun], title: str) -> None:
    """Replay all runs with all caches, which take turns."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=len(runs) * len(replays))
        for number, run in enumerate(runs):
            for place in range(len(replays)):
                replays[(number + place) % len(replays)].run(run)
                progress.advance(task)


def best_of(candidates: Sequence[Candidate], budget: int, runs: Sequence[TextRun]) -> Candidate:
    """Return the candidate with the most tokens a pass on these runs; among equals, the fewest in vain."""
    replays = [Replay(one.name, one.setting, budget, one.make()) for one in candidates]
    replay_all(replays, runs, f"choosing {candidates[0].name}, {budget} drafted tokens")
    return min(zip(replays, candidates, strict=True), key=lambda pair: pair[0].totals)[1]


def published(tree: bool) -> list[Candidate]:
    """Return the published rule with each of ``FACTORS``."""
    shape = "tree" if tree else "chain"

    def made(factor: float) -> Callable[[], Writer]:
        return lambda: Ours(tree, SuffixSettings(rule="published", max_spec_factor=factor))

    return [Candidate("published", f"{shape}, alpha {factor:g}", made(factor)) for factor in FACTORS]


def arctic(tree: bool) -> list[Candidate]:
    """Return arctic-inference's cache with each setting of ``GRID``."""
    settings = [ArcticSetting(DEPTH, *setting, tree) for setting in GRID]
    return [
        Candidate(f"arctic:{'tree' if tree else 'chain'}", str(one), lambda one=one: Arctic(one))  # type: ignore[misc]
        for one in settings
    ]


def fixed_candidates(weights: Weights, with_arctic: bool) -> Iterator[Candidate]:
    """Yield the rows whose settings are not chosen."""

    def ours(tree: bool, chance: float | None, own: Weights | None) -> Callable[[], Writer]:
        return lambda: Ours(tree, SuffixSettings(min_chance=chance), own)

    for tree, chance in itertools.product((False, True), MIN_CHANCES):
        setting = f"{'tree' if tree else 'chain'}, min_chance {chance or 'default'}"
        yield Candidate("reason-spec", setting, ours(tree, chance, None))
    for tree in (False, True):
        setting = f"{'tree' if tree else 'chain'}, min_chance default"
        yield Candidate("reason-spec:refitted", setting, ours(tree, None, weights))
        yield published(tree)[0]
    if with_arctic:
        yield Candidate("arctic:default", str(DEFAULT), lambda: Arctic(DEFAULT))


def candidates_of(
    budget: int, split: Split, weights: Weights, *, search: bool, with_arctic: bool
) -> list[Candidate]:
    """Return all rows of a budget; a chosen one that is also a fixed one comes once."""
    rows = list(fixed_candidates(weights, with_arctic))
    if search:
        for grid in (*map(published, (False, True)), *(map(arctic, (False, True)) if with_arctic else ())):
            best = best_of(grid, budget, split.fit)
            if (best.name, best.setting) not in {(row.name, row.setting) for row in rows}:
                rows.append(best)
    return rows


def longest_continuations(runs: Sequence[TextRun], most: int) -> list[npt.NDArray[np.int64]]:
    """Return for each place of each run how many tokens from there on a past continuation foretold.

    It followed the same two tokens, in this run or an earlier one; at most ``most`` are counted.
    """
    texts = [[token for segment in run.segments for token in segment.tokens] for run in runs]
    # Numbers of their own part the runs: nothing that crosses them occurs twice.
    parted = [[*text, -1 - number] for number, text in enumerate(texts)]
    numbers = np.array([token for text in parted for token in text], np.int64)
    _, classes = np.unique(numbers, return_inverse=True)
    tokens, found = classes, np.zeros(len(numbers), np.int64)
    for length in range(2, most + 3):
        # The class of the `length` tokens from each place on, from that of one token fewer.
        pairs = classes[: len(numbers) - length + 1] * len(numbers) + tokens[length - 1 :]
        _, first, classes = np.unique(pairs, return_index=True, return_inverse=True)
        repeated = np.flatnonzero(first[classes] < np.arange(len(classes)))
        found[repeated] = length - 2
    starts = np.cumsum([0, *[len(text) + 1 for text in texts[:-1]]])
    return [
        np.concatenate([np.zeros(2, np.int64), found[start : start + len(text)]])[: len(text)]
        for start, text in zip(starts, texts, strict=True)
    ]


def ceilings(budget: int, runs: Sequence[TextRun], known: Sequence[npt.NDArray[np.int64]]) -> list[Row]:
    """Return the rows of perfect choices."""
    counts: dict[str, list[int]] = {}
    seen: set[str] = set()
    for run, continuations in zip(runs, known, strict=True):
        count = counts.setdefault(case_of(run, seen), [0, 0, 0])
        count[0] += 1
        start = 0
        for segment in run.segments:
            stop = start + len(segment.tokens)
            if segment.source == "output":
                count[1] += stop - start
                while start < stop:
                    start += min(budget, int(continuations[start]), stop - start) + 1
                    count[2] += 1
            start = stop
    setting = "perfect choice behind two or more matched tokens"
    return [
        Row(case, "ceiling", setting, budget, num_runs, num_tokens, num_tokens / num_passes)
        for case, (num_runs, num_tokens, num_passes) in sorted(counts.items(), reverse=True)
    ]


def measure(split: Split, budgets: Sequence[int], search: bool) -> list[Row]:
    """Return all rows."""
    sys.stderr.write(f"machine code ready after {warm_up():.1f} s\n")
    with_arctic = importlib.util.find_spec("arctic_inference") is not None
    if not with_arctic:
        sys.stderr.write("left out, arctic-inference is not installed: arctic:default, :chain, :tree\n")
    weights = fitted_weights(split.fit)
    known = longest_continuations(split.test, max(budgets))
    rows: list[Row] = []
    for budget in budgets:
        chosen = candidates_of(budget, split, weights, search=search, with_arctic=with_arctic)
        replays = [Replay(one.name, one.setting, budget, one.make()) for one in chosen]
        replay_all(replays, split.test, f"all caches, {budget} drafted tokens")
        rows += [row for replay in replays for row in replay.rows()]
        rows += ceilings(budget, split.test, known)
    return rows


def print_rows(rows: Sequence[Row]) -> None:
    table = Table()
    headings = (
        "case|cache|setting|budget|tokens/pass|in vain/token|propose µs p50|p99|update µs/token|bytes/token"
    )
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading in ("case", "cache", "setting") else "right")
    for row in rows:
        times = row.propose_us_p50, row.propose_us_p99, row.update_us_per_token, row.bytes_per_token
        table.add_row(
            row.case,
            row.name,
            row.setting,
            str(row.budget),
            f"{row.tokens_per_pass:.3f}",
            "-" if row.drafted_in_vain is None else f"{row.drafted_in_vain:.2f}",
            *("-" if value is None else f"{value:.1f}" for value in times),
        )
    Console(width=170).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--budgets", nargs="+", type=int, default=[4, 8, 16, 32])
    parser.add_argument(
        "--trials", nargs="+", default=(), help="only these, in this order (models, of solutions)"
    )
    parser.add_argument(
        "--fit-tasks", type=int, help="tasks that settings are chosen on (default: half of all)"
    )
    parser.add_argument("--test-tasks", type=int, help="tasks of the rows (default: half of all)")
    parser.add_argument(
        "--no-search", action="store_true", help="leave out the rows whose settings are chosen"
    )
    parser.add_argument(
        "--json", nargs="?", type=Path, const=Path("-"), help="also to FILE, or only to stdout"
    )
    options = parser.parse_args()
    try:
        runs = read_runs(options.files, Vocabulary(load_tekken()), options.trials)
        split = split_by_task(runs, options.fit_tasks, options.test_tasks)
        if not split.test:
            raise DataError(f"{len(runs)} runs of one task cannot be split by task; give more files")
        rows = measure(split, options.budgets, not options.no_search)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing; install it with: pip install 'reason-spec[bench]'")
    except (DataError, OSError) as error:
        sys.exit(str(error))
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
