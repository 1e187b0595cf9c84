"""Accuracy of the comparing verifiers on rewordings and changed steps, and the cost of a verdict.

    python benchmarks/verifiers.py [--problems 150] [--steps FILE] [--verifiers semantic ...] [--json [FILE]]

Three sets of pairs. ``generated``: steps of the problem generator in two of its phrasings, and changed in one
place. ``held out``: three sets written by hand before the verifiers had seen them. The verifiers were then
improved on each set, so only first results are held out (docs/measurements/verifiers.md). ``steps``:
those of a file (default: the solutions of the tests), in another notation, and changed. A changed step is
compared with the step itself (``own``) and with its other wording (``reworded``).

Pairs are ordered by decision (reject, unknown, accept), then by score; the area under the curve is the chance
that a pair of one meaning ranks above a pair of two, ties counted by half. Costs are processor time of the
whole process, on texts that were not read before: a pair at a time for what the words cost, and in batches
for the pairs that need the embedding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from arms import write_rows
from rich.console import Console
from rich.table import Table
from step_changes import HELD_OUT, Case, cases_of_steps, generated_cases, read_cases, read_steps

from reason_spec.evaluation.statistics import Interval, exact_interval
from reason_spec.types import Decision, Verdict
from reason_spec.verifiers.base import Verifier, create_verifier
from reason_spec.verifiers.encoder import Embedding, SentenceEncoder
from reason_spec.verifiers.pairs import Pair, verify_pairs
from reason_spec.verifiers.semantic import SemanticVerifier

VERIFIERS: Final = ("semantic", "numbers", "embedding")
_RANKS: Final[dict[Decision, int]] = {"reject": 0, "unknown": 1, "accept": 2}
_SHIPPED_STEPS: Final = Path(__file__).parents[1] / "tests" / "data" / "problems" / "math_responses.jsonl"
_ALL: Final = "all"
_COST_SEED: Final = 1_000_003


class Labelled(NamedTuple):
    """A pair, and whether both steps mean the same; ``against`` is what a changed step is compared with."""

    kind: str
    against: str
    same: bool
    pair: Pair


@dataclass(frozen=True, slots=True)
class Row:
    """Verdicts on the pairs of one kind of change; ``auc`` where the row has pairs of all kinds.

    ``false_accepts`` counts changed steps that were accepted, ``false_rejects`` other wordings that were not.
    """

    pairs: str
    verifier: str
    kind: str
    num_changed: int
    false_accepts: int
    false_accepts_reworded: int
    false_accept_interval: Interval | None
    num_same: int
    false_rejects: int
    false_reject_interval: Interval | None
    auc: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of processor time for a pair: decided without the embedding, and with it."""

    verifier: str
    num_pairs: int
    share_undecided: float
    decided_median_ms: float | None
    decided_mean_ms: float | None
    undecided_words_ms: float | None
    undecided_embedding_ms: float | None
    undecided_ms: float | None


def pairs_of(cases: Sequence[Case]) -> Iterator[Labelled]:
    """Yield every pair once: the other wording, then the changed step beside both wordings."""
    seen: set[tuple[str, str]] = set()
    for case in cases:
        candidates = (
            ("step", True, case.reworded, case.step),
            ("step", False, case.changed, case.step),
            ("reworded", False, case.changed, case.reworded),
        )
        for against, same, drafted, target in candidates:
            if drafted is None or target is None or (drafted, target) in seen:
                continue
            seen.add((drafted, target))
            yield Labelled(case.kind, against, same, Pair({}, drafted, target, case.context))


def area_under_curve(same: Sequence[Verdict], other: Sequence[Verdict]) -> float:
    """Return the probability that a verdict on one meaning ranks above one on two; ties count by half."""
    keys = [(_RANKS[v.decision], v.score or 0.0) for v in (*same, *other)]
    order = {key: place for place, key in enumerate(sorted(set(keys)))}
    places = np.array([order[key] for key in keys])
    high, low = places[: len(same), None], places[None, len(same) :]
    return float(np.mean((high > low) + 0.5 * (high == low)))


def row_of(
    name: str, verifier: str, kind: str, labelled: Sequence[Labelled], verdicts: Sequence[Verdict]
) -> Row:
    """Count what was wrongly accepted and wrongly refused."""
    both = [(pair, v) for pair, v in zip(labelled, verdicts, strict=True) if kind in (_ALL, pair.kind)]
    same = [v for pair, v in both if pair.same]
    changed = [(pair.against, v) for pair, v in both if not pair.same]
    accepted = [against for against, v in changed if v.accepted]
    refused = sum(not v.accepted for v in same)
    return Row(
        pairs=name,
        verifier=verifier,
        kind=kind,
        num_changed=len(changed),
        false_accepts=len(accepted),
        false_accepts_reworded=accepted.count("reworded"),
        false_accept_interval=exact_interval(len(accepted), len(changed)) if changed else None,
        num_same=len(same),
        false_rejects=refused,
        false_reject_interval=exact_interval(refused, len(same)) if same else None,
        auc=area_under_curve(same, [v for _, v in changed]) if kind == _ALL and same and changed else None,
    )


class _NoModel(SentenceEncoder):
    """Notes that it was asked, which is how a pair shows that words alone do not decide it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0

    async def start(self) -> None:
        return

    def estimate(self, a: str, b: str) -> float | None:
        self.num_asked += 1
        return None

    async def encode(self, text: str) -> Embedding:
        self.num_asked += 1
        return Embedding((np.ones(1, np.float32),), 0, 0)


async def measure_cost(name: str, pairs: Sequence[Pair]) -> Cost:
    """Time one pair after another for the words, then those that need the embedding in batches."""
    encoder = _NoModel()
    words: Verifier | None = SemanticVerifier(encoder) if name == "semantic" else create_verifier(name)
    decided: list[float] = []
    undecided: list[float] = []
    asking: list[Pair] = []
    if name == "embedding":
        asking, words = list(pairs), None
    for pair in pairs if words is not None else ():
        assert words is not None
        asked, started = encoder.num_asked, time.process_time()
        await verify_pairs([pair], words)
        seconds = time.process_time() - started
        if encoder.num_asked > asked:
            undecided.append(seconds)
            asking.append(pair)
        else:
            decided.append(seconds)
    embedding = await _embedding_seconds(name, asking) if asking else None
    own = statistics.fmean(undecided) if undecided else 0.0
    return Cost(
        verifier=name,
        num_pairs=len(pairs),
        share_undecided=len(asking) / len(pairs),
        decided_median_ms=1e3 * statistics.median(decided) if decided else None,
        decided_mean_ms=1e3 * statistics.fmean(decided) if decided else None,
        undecided_words_ms=1e3 * own if undecided else None,
        undecided_embedding_ms=1e3 * embedding if embedding is not None else None,
        undecided_ms=1e3 * (own + embedding) if embedding is not None else None,
    )


async def _embedding_seconds(name: str, pairs: Sequence[Pair]) -> float:
    verifier = create_verifier(name)
    try:
        await verifier.start()
        started = time.process_time()
        await verify_pairs(pairs, verifier)
        return (time.process_time() - started) / len(pairs)
    finally:
        await verifier.close()


def append_verdicts(
    path: Path, title: str, verifier: str, labelled: Sequence[Labelled], verdicts: Sequence[Verdict]
) -> None:
    """Write every verdict: equal files before and after a change show that it changed none."""
    with path.open("a", encoding="utf-8") as file:
        for found, verdict in zip(labelled, verdicts, strict=True):
            fields = {
                "pairs": title,
                "verifier": verifier,
                "kind": found.kind,
                "same": found.same,
                "a": found.pair.a,
                "b": found.pair.b,
                "verdict": verdict.decision,
                "score": None if verdict.score is None else round(verdict.score, 4),
                "verdict_reason": verdict.reason,
            }
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


async def measure(options: argparse.Namespace) -> list[Row | Cost]:
    """Measure the costs, while no text was read yet, and then every set."""
    fresh = [*generated_cases(options.timed, options.seed + _COST_SEED)]
    timed = [Pair({}, case.reworded, case.step, case.context) for case in fresh if case.reworded]
    handwritten = {path.stem: read_cases(path) for path in sorted(HELD_OUT.glob("held_out_*.jsonl"))}
    sets = {
        "generated": [*generated_cases(options.problems, options.seed)],
        **{name.replace("_", " "): cases for name, cases in handwritten.items() if name in options.held_out},
        "steps": [*cases_of_steps(read_steps(options.steps), options.per_kind, options.seed)],
    }
    rows: list[Row | Cost] = [await measure_cost(name, timed) for name in options.verifiers]
    for name in options.verifiers:
        verifier = create_verifier(name)
        verifier.deadline_seconds = 120.0  # A verdict that came too late would count as refused.
        try:
            await verifier.start()
            for title, cases in sets.items():
                labelled = [*pairs_of(cases)]
                verdicts = await verify_pairs([found.pair for found in labelled], verifier)
                if options.verdicts is not None:
                    append_verdicts(options.verdicts, title, name, labelled, verdicts)
                kinds = dict.fromkeys(found.kind for found in labelled)
                rows += [row_of(title, name, kind, labelled, verdicts) for kind in (_ALL, *kinds)]
        finally:
            await verifier.close()
    return rows


def print_rows(rows: Sequence[Row | Cost]) -> None:
    console = Console()
    found = [row for row in rows if isinstance(row, Row)]
    summary = Table("pairs", "verifier", "AUC", "false accepts", "false rejects", title="all kinds of change")
    for row in found:
        if row.kind == _ALL:
            auc = "" if row.auc is None else f"{row.auc:.3f}"
            summary.add_row(row.pairs, row.verifier, auc, _accepts(row), _rejects(row))
    details = Table("pairs", "change", "verifier", "false accepts", "of these reworded", "false rejects")
    for row in sorted(found, key=lambda row: (row.pairs, row.kind)):
        if row.kind != _ALL:
            reworded = str(row.false_accepts_reworded)
            details.add_row(row.pairs, row.kind, row.verifier, _accepts(row), reworded, _rejects(row))
    costs = Table(
        "verifier", "pairs", "left to embedding", "ms decided, median (mean)", "ms left: words + model"
    )
    for cost in [row for row in rows if isinstance(row, Cost)]:
        costs.add_row(
            cost.verifier,
            str(cost.num_pairs),
            f"{cost.share_undecided:.0%}",
            f"{_ms(cost.decided_median_ms)} ({_ms(cost.decided_mean_ms)})",
            f"{_ms(cost.undecided_words_ms)} + {_ms(cost.undecided_embedding_ms)} = {_ms(cost.undecided_ms)}",
        )
    for table in (summary, details, costs):
        console.print(table)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _accepts(row: Row) -> str:
    return _share(row.false_accepts, row.num_changed, row.false_accept_interval)


def _rejects(row: Row) -> str:
    return _share(row.false_rejects, row.num_same, row.false_reject_interval)


def _share(count: int, total: int, interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{count} of {total} ({100 * interval.low:.1f} to {100 * interval.high:.1f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--problems", type=int, default=150, help="generated problems (default: 150)")
    parser.add_argument("--timed", type=int, default=25, help="problems whose pairs are timed (default: 25)")
    parser.add_argument(
        "--steps", type=Path, default=_SHIPPED_STEPS, help="jsonl file of solutions (field steps or text)"
    )
    parser.add_argument("--per-kind", type=int, default=100, help="steps of the file for each kind of change")
    parser.add_argument("--verifiers", nargs="+", choices=VERIFIERS, default=list(VERIFIERS))
    parser.add_argument(
        "--held-out", nargs="*", default=["held_out_1", "held_out_2", "held_out_3"], help="hand-written sets"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verdicts", type=Path, help="append every verdict to this jsonl file")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if options.problems < 1 or options.timed < 1:
        parser.error("--problems and --timed must be at least 1")
    write_rows(asyncio.run(measure(options)), options.json, print_rows)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
