"""The comparing verifiers on pairs of steps: same steps accepted, changed ones accepted, time of a verdict.

    python benchmarks/verifiers.py [--solutions FILE] [--verifiers semantic ...] [--json [FILE]]

Sets of pairs: ``real, labelled by hand`` (steps of twelve real models, in ``benchmarks/data``), ``written 1``
to ``4`` (short sentences written by hand), ``MATH`` (the solutions of the tests in another notation, and
changed), and ``generated`` (synthetic: the problem generator's). With ``--solutions``, a file of solutions by
writer as ``reason-spec verifier train`` takes it, also ``problems left out`` and ``writers left out``: pairs
labelled by machine, of the problems that the packaged encoder's training left out, by writers that it used
and by those that it did not (`--left-out`).

Pairs are ordered by decision (reject, unknown, accept), then by score; the area under the curve is the chance
that a same pair ranks above a changed one, ties counted by half. Times are processor time of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from arms import printer, write_rows
from step_changes import HELD_OUT, Case, cases_of_steps, generated_cases, read_cases, read_steps
from table_forms import Column, text
from text_columns import PAIRS

from reason_spec.evaluation.statistics import Interval, exact_interval
from reason_spec.lab.verifier_training.mining import StepPair
from reason_spec.lab.verifier_training.recipe import split_by_problem
from reason_spec.lab.verifier_training.source import read_pairs
from reason_spec.settings import VerifierSettings
from reason_spec.types import Decision, Verdict
from reason_spec.verifiers.base import create_verifier
from reason_spec.verifiers.pairs import Pair, verify_pairs

VERIFIERS: Final = ("semantic", "numbers", "embedding", "exact")
LEFT_OUT: Final = ("o1", "gemma-2-27b", "s1.1-32b")
CHANGED_SHARES: Final = (0.0015, 0.003, 0.005, 0.007, 0.01, 0.02)
_RANKS: Final[dict[Decision, int]] = {"reject": 0, "unknown": 1, "accept": 2}
_SHIPPED_STEPS: Final = Path(__file__).parents[1] / "tests" / "data" / "problems" / "math_responses.jsonl"
_ALL: Final = "all"


class Labelled(NamedTuple):
    """A pair, and whether both steps mean the same."""

    kind: str
    same: bool
    pair: Pair


@dataclass(frozen=True, slots=True)
class Row:
    """Verdicts on the pairs of one kind; the last three fields where the row has pairs of all kinds.

    ``same_at`` is the share of same pairs that are accepted where the threshold lets this share of the
    changed ones through; it is chosen on these pairs.
    """

    pairs: str
    verifier: str
    kind: str
    num_same: int
    same_accepted: int
    same_interval: Interval | None
    num_changed: int
    changed_accepted: int
    changed_interval: Interval | None
    auc: float | None = None
    ms: float | None = None
    same_at: dict[str, float] | None = None


def pairs_of_cases(cases: Sequence[Case]) -> Iterator[Labelled]:
    """Yield every pair once: the other wording, then the changed step beside both wordings."""
    seen: set[tuple[str, str]] = set()
    for case in cases:
        for same, drafted, target in (
            (True, case.reworded, case.step),
            (False, case.changed, case.step),
            (False, case.changed, case.reworded),
        ):
            if drafted is None or target is None or (drafted, target) in seen:
                continue
            seen.add((drafted, target))
            yield Labelled(case.kind, same, Pair({}, drafted, target, case.context))


def labelled(pairs: Sequence[StepPair]) -> list[Labelled]:
    return [
        Labelled(pair.kind, pair.same, Pair({}, pair.a, pair.b, f"{pair.question}\n\n{pair.before}"))
        for pair in pairs
    ]


def left_out_pairs(path: Path, left_out: Sequence[str]) -> dict[str, list[Labelled]]:
    """Return the pairs of the problems that `recipe.train_verifier` only reports on."""
    by_used = split_by_problem(read_pairs([path], leave_out=left_out))[2]
    by_all = split_by_problem(read_pairs([path]))[2]
    by_others = [pair for pair in by_all if set(pair.writers) & set(left_out)]
    return {"problems left out": labelled(by_used), "writers left out": labelled(by_others)}


def area_under_curve(same: Sequence[Verdict], other: Sequence[Verdict]) -> float:
    """Return the probability that a verdict on one meaning ranks above one on two; ties count by half."""
    keys = [(_RANKS[v.decision], v.score or 0.0) for v in (*same, *other)]
    order = {key: place for place, key in enumerate(sorted(set(keys)))}
    places = np.array([order[key] for key in keys])
    low = np.sort(places[len(same) :])
    ranks = np.searchsorted(low, places[: len(same)], "left") + np.searchsorted(
        low, places[: len(same)], "right"
    )
    return float(np.mean(ranks) / 2 / len(low))


def same_at(same: Sequence[Verdict], changed: Sequence[Verdict]) -> dict[str, float]:
    """Return the share of same pairs above the score that a share of the changed ones reaches.

    What is rejected, or has no score, is accepted at no threshold.
    """

    def scores(verdicts: Sequence[Verdict]) -> list[float]:
        return sorted(v.score for v in verdicts if v.score is not None and v.decision != "reject")

    likely, unlike = scores(same), scores(changed)
    found = {}
    for share in CHANGED_SHARES:
        above = int(share * len(changed))
        threshold = -1.0 if above >= len(unlike) else unlike[-above - 1]
        found[f"{share:g}"] = sum(score > threshold for score in likely) / len(same)
    return found


def row_of(
    name: str, verifier: str, kind: str, found: Sequence[tuple[Labelled, Verdict]], ms: float | None = None
) -> Row:
    chosen = [(pair, verdict) for pair, verdict in found if kind in (_ALL, pair.kind)]
    same = [verdict for pair, verdict in chosen if pair.same]
    changed = [verdict for pair, verdict in chosen if not pair.same]
    hits, misses = (sum(verdict.accepted for verdict in verdicts) for verdicts in (same, changed))
    return Row(
        name,
        verifier,
        kind,
        len(same),
        hits,
        exact_interval(hits, len(same)) if same else None,
        len(changed),
        misses,
        exact_interval(misses, len(changed)) if changed else None,
        area_under_curve(same, changed) if kind == _ALL and same and changed else None,
        ms,
        same_at(same, changed) if kind == _ALL and same and changed else None,
    )


def append_verdicts(path: Path, title: str, verifier: str, found: Sequence[tuple[Labelled, Verdict]]) -> None:
    """Write every verdict: accepted changes are to be read by eye."""
    with path.open("a", encoding="utf-8") as file:
        for one, verdict in found:
            fields = {
                "pairs": title,
                "verifier": verifier,
                "kind": one.kind,
                "same": one.same,
                "a": one.pair.a,
                "b": one.pair.b,
                "verdict": verdict.decision,
                "score": None if verdict.score is None else round(verdict.score, 4),
                "verdict_reason": verdict.reason,
            }
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


async def measure(options: argparse.Namespace) -> list[Row]:
    sets = {"real, labelled by hand": labelled(read_pairs([HELD_OUT / "real_pairs.jsonl"]))}
    if options.solutions is not None:
        sets |= left_out_pairs(options.solutions, options.left_out)
    for path in sorted(HELD_OUT.glob("held_out_*.jsonl")):
        sets[f"written {path.stem[-1]}"] = list(pairs_of_cases(read_cases(path)))
    steps = cases_of_steps(read_steps(options.steps), options.per_kind, options.seed)
    sets["MATH"] = list(pairs_of_cases(list(steps)))
    sets["generated"] = list(pairs_of_cases(list(generated_cases(options.problems, options.seed))))
    rows: list[Row] = []
    for name in options.verifiers:
        verifier = create_verifier(name, VerifierSettings(semantic_model=options.semantic_model))
        verifier.deadline_seconds = 120.0  # A verdict that came too late would count as refused.
        try:
            await verifier.start()
            for title, pairs in sets.items():
                started = time.process_time()
                verdicts = await verify_pairs([one.pair for one in pairs], verifier)
                ms = 1e3 * (time.process_time() - started) / len(pairs)
                found = list(zip(pairs, verdicts, strict=True))
                if options.verdicts is not None:
                    append_verdicts(options.verdicts, title, name, found)
                kinds = dict.fromkeys(one.kind for one in pairs)
                rows.append(row_of(title, name, _ALL, found, ms))
                rows += [row_of(title, name, kind, found) for kind in kinds]
        finally:
            await verifier.close()
    return rows


_VERIFIER: Final = Column("verifier", text("verifier"))
_print_all = printer(PAIRS[0], _VERIFIER, *PAIRS[1:])
_print_kinds = printer(PAIRS[0], Column("kind", text("kind")), _VERIFIER, *PAIRS[2:4])


def print_rows(rows: Sequence[Row]) -> None:
    _print_all([row for row in rows if row.kind == _ALL])
    _print_kinds([row for row in rows if row.kind != _ALL])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--solutions", type=Path, help="jsonl file of questions with solutions by writer")
    parser.add_argument(
        "--left-out", nargs="*", default=list(LEFT_OUT), help="writers that the training did not use"
    )
    parser.add_argument("--problems", type=int, default=150, help="generated problems (default: 150)")
    parser.add_argument(
        "--steps", type=Path, default=_SHIPPED_STEPS, help="jsonl file of solutions (field steps or text)"
    )
    parser.add_argument("--per-kind", type=int, default=100, help="steps of the file for each kind of change")
    parser.add_argument("--verifiers", nargs="+", choices=VERIFIERS, default=list(VERIFIERS))
    parser.add_argument("--semantic-model", metavar="DIR", help="weights of `reason-spec verifier train`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verdicts", type=Path, help="append every verdict to this jsonl file")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args()
    if options.problems < 1 or options.per_kind < 1:
        parser.error("--problems and --per-kind must be at least 1")
    write_rows(asyncio.run(measure(options)), options.json, print_rows)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
