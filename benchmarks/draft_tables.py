"""The tables of `draft_replay.py`: chains of fixed length, shapes of trees, and rules for the length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from table_forms import Fields, gain, lines, number, pivot, times

_OVER_CHAIN: Final = gain("over_chain", "low", "high")


def _drafter(name: str) -> str:
    return f"`{name.removeprefix('models:smollm2-gsm8k-')}`"


def draft_shapes(rows: Sequence[Fields]) -> list[str]:
    """Return the best fixed chain, and the trees of each shape at each budget, by draft model."""
    groups: dict[tuple[str, str, int | None], list[Fields]] = {}
    for row in rows:
        if row["depth"] is not None:
            budget = None if row["name"] == "fixed" else row["budget"]
            groups.setdefault((row["drafter"], row["name"], budget), []).append(row)
    table = []
    for (drafter, shape, budget), found in groups.items():
        best = max(found, key=lambda row: row["speedup"])
        deepest = best if budget is None else max(found, key=lambda row: row["depth"])
        label = "the best chain" if budget is None else f"`{shape}`"
        cells = [_drafter(drafter), label, str(best["budget"]), str(best["depth"])]
        cells += [number("tokens_per_pass")(row) for row in (deepest, best)]
        table.append([*cells, times("speedup")(best), _OVER_CHAIN(best)])
    headings = ["draft", "shape", "budget", "fastest with levels", "tokens a pass, all levels"]
    return lines([*headings, "with those levels", "speed-up", "over the best chain"], table)


draft_chains: Final = pivot(
    ("depth",),
    ("tokens of the chain",),
    "drafter",
    lambda row: f"{row['tokens_per_pass']:.2f} / {row['speedup']:.2f}x",
    where=lambda row: row["name"] == "fixed",
    shown=_drafter,
)
draft_lengths: Final = pivot(
    ("name",),
    ("rule",),
    "drafter",
    lambda row: f"{row['tokens_per_pass']:.2f} / {row['levels']:.1f} / {_OVER_CHAIN(row)}",
    where=lambda row: row["depth"] is None,
    shown=_drafter,
    label=lambda row: (f"`{row['name']}`",),
)
