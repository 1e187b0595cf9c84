"""The columns of tables that are made without a model: of stored texts, formulas and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from table_forms import Cell, Column, Fields, Form, counted, lines, name, number, percent, pivot, text, times

_CACHES: Final = (
    "reason-spec", "reason-spec:refitted", "published", "arctic:default", "arctic:chain", "arctic:tree",
    "ceiling",
)  # fmt: skip


def replay(case: str) -> Form:
    """Return the form of replayed texts: tokens a pass / drafted in vain, by budget."""

    def cell(row: Fields) -> str:
        in_vain = row["drafted_in_vain"]
        return f"{row['tokens_per_pass']:.2f}" + ("" if in_vain is None else f" / {in_vain:.2f}")

    def form(rows: Sequence[Fields]) -> list[str]:
        budgets = sorted({row["budget"] for row in rows})
        found: dict[str, dict[int, Fields]] = {}
        own = [row for row in rows if row["case"] == case]
        for row in sorted(own, key=lambda row: _CACHES.index(row["name"])):
            found.setdefault(replay_label(row), {})[row["budget"]] = row
        headings = ["draft tokens per pass", *map(str, budgets)]
        table = [
            [label, *(cell(cells[budget]) if budget in cells else "-" for budget in budgets)]
            for label, cells in found.items()
        ]
        return lines(headings, table)

    return form


def replay_label(row: Fields) -> str:
    shape = str(row["setting"]).split(",")[0]
    match row["name"]:
        case "reason-spec" | "reason-spec:refitted" as which:
            weights = "" if which == "reason-spec" else ", weights refitted"
            chance = str(row["setting"]).removeprefix(f"{shape}, min_chance ")
            return f"ours, {shape}{weights}" + ("" if chance == "default" else f", `min_chance` {chance}")
        case "published":
            # Which alpha was chosen may differ by budget.
            fixed = str(row["setting"]).endswith("alpha 1")
            return f"as published, {shape}, " + ("alpha 1" if fixed else "alpha chosen")
        case "arctic:default":
            return "arctic-inference, vLLM's settings"
        case "arctic:chain" | "arctic:tree":
            return f"arctic-inference, {shape}, settings chosen"
        case other:
            return "the best of all past continuations" if other == "ceiling" else str(other)


def coverage(what: str) -> Form:
    """Return the form of intervals that hold the true value: problems and truths down, samples across."""
    truth = "accuracy" if what == "accuracy" else "lost, won"

    def form(rows: Sequence[Fields]) -> list[str]:
        wanted = []
        for row in (row for row in rows if row["what"] == what):
            true, _, likeness = str(row["truth"]).partition(", likeness ")
            samples = "1 sample" if row["num_samples"] == 1 else f"{row['num_samples']} samples"
            across = f"{samples}, correlation {likeness}" if likeness else samples
            wanted.append({**row, "true": true, "across": across})
        return pivot(("num_problems", "true"), ("problems", truth), "across", percent("held", 1))(wanted)

    return form


def seconds_coverage(rows: Sequence[Fields]) -> list[str]:
    kinds = ("speed-up", "paired speed-up", "seconds")
    wanted = [row for row in rows if row["what"] in kinds]
    return pivot(("num_problems",), ("problems",), "what", percent("held", 1))(wanted)


PAIRS: Final = (
    Column("pairs", text("pairs")),
    Column("area under the curve", number("auc", 3)),
    Column("same accepted", counted("same_accepted", "num_same", "same_interval")),
    Column("changed accepted", counted("changed_accepted", "num_changed", "changed_interval")),
    Column("ms a pair", number("ms", 1)),
)

STORE: Final = (
    Column("texts", text("texts")),
    Column("save", number("save", 2, " s")),
    Column("save over a file with as many", number("save_again", 2, " s")),
    Column("load: read and check", number("load", 2, " s")),
    Column("load: index", number("make_index", 2, " s")),
    Column("bytes a token", number("bytes_per_token", 1)),
)

SAMPLES: Final = pivot(
    ("name",),
    ("beside prompt lookup",),
    "budget",
    lambda row: f"{row['tokens_per_pass']:.2f} / {row['drafted']:.1f}",
    shown=lambda budget: f"budget {budget}",
    label=lambda row: (f"`{row['name']}`",),
)


def is_left_out(row: Fields) -> bool:
    return bool(row["kind"] == "all" and row["pairs"].endswith("left out"))


def is_other_set(row: Fields) -> bool:
    return bool(row["kind"] == "all" and not row["pairs"].endswith("left out"))


def _saved(row: Fields) -> str:
    saved, low, high = (
        100 * share for share in (1 - row["tokens_kept"], row["saved_low"], row["saved_high"])
    )
    return f"{saved:.1f} % ({low:.1f}-{high:.1f})"


def _points(field: str) -> Cell:
    return number(field, 2, scale=100.0)


EXIT_RULES: Final = (
    Column("rule", text("name")),
    Column("answers", number("n", 0)),
    Column("thinking saved", _saved),
    Column("right before", percent("accuracy_before", 1)),
    Column("right after", percent("accuracy_after", 1)),
    Column("lost", text("lost")),
    Column("won", text("won")),
    Column("loss, points", _points("loss")),
    Column("at most", _points("loss_upper95")),
)

EXIT_CURVE: Final = (Column("threshold", text("threshold")), *EXIT_RULES[2:3], *EXIT_RULES[5:])

EXIT_LIVE: Final = (
    Column("strategy", name("strategy")),
    Column("rule", name("rule")),
    Column("seconds", number("seconds", 1)),
    Column("speed-up", times("speedup")),
    Column("tokens", number("tokens", 0)),
    Column("tokens of trials", number("probe_tokens", 0)),
    Column("passes", number("passes", 0)),
    Column("right", counted("right", "problems")),
    Column("ended early", text("ended_early")),
)

STEP_LENGTHS: Final = pivot(
    ("model",),
    ("model",),
    "boundary",
    lambda row: f"{row['steps']:.1f}, {100 * row['one_step']:.0f} %, {row['median']:.0f}, {row['p90']:.0f}",
)

SUFFIX_REPLAYS: Final = (
    Column("", text("name")),
    Column("answers", number("answers", 0)),
    Column("tokens", number("tokens", 0)),
    Column("passes saved", percent("passes_saved", 1)),
    Column("steps from the cache", percent("steps_from_cache", 1)),
    Column("drafted in vain", number("drafted_in_vain", 0)),
)


def same_at(rows: Sequence[Fields]) -> list[str]:
    """Return the share of same steps accepted, by the share of changed ones that a threshold lets through."""
    wanted = [row for row in rows if is_left_out(row)]
    shares = list(wanted[0]["same_at"])
    table = [[row["pairs"], *(f"{100 * row['same_at'][share]:.1f} %" for share in shares)] for row in wanted]
    return lines(["changed accepted", *(f"{100 * float(share):.2f} %" for share in shares)], table)


PAPER_PAIR: Final = Column("models", text("pair"))

PAPER_CELLS: Final = (
    Column("data set", text("dataset")),
    Column("alpha", number("alpha")),
    Column("paper", number("steps")),
    Column("c by size", number("by_size")),
    Column("c of GSM8K", number("of_fitted")),
    Column("own c", number("own_cost")),
    Column("paper, both", number("both")),
    Column("product", number("product")),
    Column("relative", number("relative")),
    Column("equal GPUs", number("on_equal_gpus")),
)

PAPER_FIT: Final = (
    PAPER_PAIR,
    Column("rank correlation", number("rank_correlation")),
    Column("mean error, c by size", percent("error_by_size")),
    Column("c of GSM8K, other rows", percent("error_of_fitted")),
    Column("both levels: product over the paper", percent("excess_of_product")),
    Column("relative over the paper", percent("excess_of_relative")),
)

PAPER_EFFECTS: Final = (
    Column("each adds to those before", text("effect")),
    Column("data set", text("dataset")),
    Column("simulated", times("speedup")),
    Column("paper", times("published")),
)


def is_shown_of_cost(row: Fields) -> bool:
    """Show each cache once: on new tasks, and ours with the default chances."""
    names = ("reason-spec", "arctic:default", "arctic:chain", "arctic:tree")
    is_other_chance = row["name"] == "reason-spec" and not row["setting"].endswith("default")
    return row["case"] == "new_task" and row["name"] in names and not is_other_chance


SUFFIX_COST: Final = (
    Column("cache, 16 draft tokens", replay_label),
    Column("a proposal, median", number("propose_us_p50", 0, " µs")),
    Column("99 %", number("propose_us_p99", 0, " µs")),
    Column("learning, a new token", number("update_us_per_token", 1, " µs")),
    Column("memory, a stored token", number("bytes_per_token", 0, " bytes")),
)

VOTES: Final = (
    Column("`--concurrency`", text("batch")),
    Column("P", text("certainty")),
    Column("drawn", lambda row: f"{row['drawn']:.2f} of {row['num_samples']:g}"),
    Column("text written", percent("written", 1)),
    Column("passes", times("passes")),
    Column("the same majority", percent("same", 1)),
)
