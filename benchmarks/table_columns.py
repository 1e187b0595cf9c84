"""The columns of the tables, as scripts print them and the documentation shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from table_forms import (
    Cell,
    Column,
    Fields,
    Form,
    counted,
    gain,
    lines,
    name,
    number,
    percent,
    pivot,
    span,
    text,
    times,
)


def baseline_first(row: Fields) -> tuple[bool, float]:
    """Order rows by speed-up, the target alone first."""
    return row["name"] != "autoregressive", -row["speedup"]


def cores_in_use(row: Fields) -> str:
    """Return the cores of the target, and one more for a draft model, which works beside it."""
    has_draft_model = row["name"].partition(":")[0] in ("model", "steps", "both", "hybrid")
    return str(row["num_cores"] + has_draft_model)


TEMPERATURE: Final = Column("T", number("temperature", 1))
DRAFTS: Final = Column("draft tokens", text("num_draft_tokens"))
CORES: Final = Column("cores in use", cores_in_use)


def beside_another(row: Fields) -> str:
    """Return the speed-up over the row that `real.py --over` names."""
    if row["over"] in (None, row["name"]) or row["name"] == "autoregressive":
        return "-"
    return f"{gain('over_speedup', 'over_low', 'over_high')(row)} over `{row['over']}`"


REAL: Final = (
    Column("", name()),
    Column("tokens/s", number("tokens_per_s", 1)),
    Column("speed-up", times("speedup")),
    Column("95 %", span("speedup_low", "speedup_high")),
    Column("same", percent("same_tokens")),
    Column("passes a token", number("passes_per_token")),
    Column("alpha_step", number("alpha_step")),
    Column("alpha_token", number("alpha_token")),
)
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
            found.setdefault(_replay_label(row), {})[row["budget"]] = row
        headings = ["draft tokens per pass", *map(str, budgets)]
        table = [
            [label, *(cell(cells[budget]) if budget in cells else "-" for budget in budgets)]
            for label, cells in found.items()
        ]
        return lines(headings, table)

    return form


def _replay_label(row: Fields) -> str:
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
LOAD: Final = (
    Column("answers at once", text("load")),
    Column("row", name("arm")),
    Column("live", number("live", 1)),
    Column("tokens/s", number("tokens_per_s", 0)),
    Column("against alone (lowest-highest)", gain("speedup", "low", "high")),
    Column("of the best", number("of_best_fixed")),
)
VLLM_PAIR: Final = (
    Column("", name()),
    Column("at once", text("concurrency")),
    DRAFTS,
    Column("tokens/s", number("tokens_per_s", 1)),
    Column("speed-up", times("speedup")),
    Column("same tokens", percent("same_tokens")),
    Column("passes a token", number("passes_per_token")),
    Column("alpha_step", number("alpha_step")),
    Column("alpha_token", number("alpha_token")),
)
FRONTIER: Final = (
    Column("", text("name")),
    Column("tokens/s", number("tokens_per_s", 1)),
    Column("speed-up", times("speedup")),
    Column("written", number("target_tokens")),
    Column("prefilled", number("prefilled_tokens")),
    Column("scored", number("scored_tokens")),
    Column("passes a token", number("passes_per_token", 3)),
    Column("steps by the draft", percent("drafted_steps")),
    Column("correct", percent("accuracy", 1)),
    Column("lost", text("num_lost")),
    Column("won", text("num_won")),
    Column("lost at most (95 %)", percent("lost_upper95", 1)),
)
EMBEDDED: Final = (
    Column("", name()),
    Column("T", text("temperature")),
    Column("tokens/s", number("tokens_per_s", 1)),
    Column("s a problem", number("s_per_problem")),
    Column("speed-up", times("speedup")),
    Column("same", percent("same_tokens")),
    Column("passes a token", number("passes_per_token", 3)),
    Column("alpha_step", number("alpha_step")),
    Column("alpha_token", number("alpha_token")),
)
STORE: Final = (
    Column("texts", text("texts")),
    Column("save", number("save", 2, " s")),
    Column("save over a file with as many", number("save_again", 2, " s")),
    Column("load: read and check", number("load", 2, " s")),
    Column("load: index", number("make_index", 2, " s")),
    Column("bytes a token", number("bytes_per_token", 1)),
)
AGENT_LOOP: Final = (
    Column("round", text("round")),
    Column("server", text("arm")),
    Column("seconds per task", number("s_per_task")),
    Column("speed-up", times("ratio")),
    Column("solved", percent("accuracy")),
    Column("same texts", percent("same_texts")),
)
TOOLS_AHEAD_LOOP: Final = (
    Column("agent", text("agent")),
    Column("calls", text("n_calls")),
    Column("seconds a user", number("seconds")),
    Column("speed-up", times("speedup")),
    Column("bound", times("bound")),
    Column("run ahead", number("share_run_ahead")),
    Column("precision", number("precision")),
)
SHAPES: Final = (
    Column("", name()),
    Column("tokens a pass", number("tokens_per_pass")),
    Column("drafts a pass", number("drafts_per_pass", 1)),
    Column("speed-up", times("speedup")),
    Column("95 %", span("low", "high")),
    Column("same", percent("same_tokens")),
)
BUDGETS: Final = (
    Column("", name()),
    Column("budget", text("budget")),
    *SHAPES[1:],
)
SAMPLES: Final = pivot(
    ("name",),
    ("beside prompt lookup",),
    "budget",
    lambda row: f"{row['tokens_per_pass']:.2f} / {row['drafted']:.1f}",
    shown=lambda budget: f"budget {budget}",
    label=lambda row: (f"`{row['name']}`",),
)
MAJORITY: Final = (
    Column("", name()),
    Column("seconds a problem", number("seconds", 1)),
    Column("speed-up", times("speedup")),
    Column("95 %", span("speedup_low", "speedup_high")),
    Column("tokens", number("tokens", 0)),
    Column("passes a token", number("passes_per_token")),
    Column("same", percent("same")),
    CORES,
)
ACCEPTANCE: Final = (
    Column("temperature", number("temperature", 1)),
    Column("rejection", number("rejection", 3)),
    Column("shared noise", number("shared_noise", 3)),
    Column("own noise", number("own_noise", 3)),
    Column("greedy draft", number("greedy_draft", 3)),
)
RULES: Final = (
    Column("", text("name")),
    Column("seconds a problem", number("s_per_problem")),
    Column("speed-up", times("speedup")),
    Column("95 %", span("speedup_low", "speedup_high")),
    Column("written", number("target_tokens")),
    Column("prefilled", number("prefilled_tokens")),
    Column("scored", number("scored_tokens")),
    Column("verdicts accepted", percent("acceptance")),
    Column("steps by the draft", percent("drafted_steps")),
    Column("correct", counted("num_correct", "num_problems")),
    Column("lost", text("num_lost")),
    Column("won", text("num_won")),
    Column("lost at most (95 %)", percent("lost_upper95", 1)),
)

REAL_ACCURACY: Final = (
    REAL[0],
    TEMPERATURE,
    Column("right", percent("accuracy", 1)),
    Column("loss at most, of all answers", percent("loss_upper95", 2)),
)
PADDED: Final = (
    REAL[0],
    TEMPERATURE,
    *REAL[1:4],
    Column("beside another row", beside_another),
    *REAL[5:],
)
RELAXED: Final = (
    *REAL[:3],
    Column("beside another row", beside_another),
    *REAL[4:6],
    Column("looped", percent("looped")),
    REAL[7],
)
PADDED_ROWS: Final = ("autoregressive", "model", "model:alone", "both:semantic:fixed", "both:semantic")
THRESHOLDS: Final = (
    Column("threshold", text("threshold")),
    Column("solved again", text("num_solved")),
    Column("steps by the draft", percent("drafted_steps", 1)),
    Column("accepted verdicts", percent("accepted")),
    Column("right", counted("num_right", "num_problems")),
    Column("lost", text("num_lost")),
    Column("lost at most (95 %)", percent("loss_upper", 2)),
    Column("holds 1 point", lambda row: "yes" if row["passes"] else "no"),
)


def is_shown_of_load(row: Fields) -> bool:
    """Leave out the slower way of the target alone, and the deepest fixed row."""
    is_slower_alone = row["arm"].startswith("alone") and row["speedup"] != 1
    return not is_slower_alone and row["arm"] != "depth-4"


def is_left_out(row: Fields) -> bool:
    return bool(row["kind"] == "all" and row["pairs"].endswith("left out"))


def is_other_set(row: Fields) -> bool:
    return bool(row["kind"] == "all" and not row["pairs"].endswith("left out"))


def _saved(row: Fields) -> str:
    return f"{1 - row['tokens_kept']:.1%} ({100 * row['saved_low']:.1f}-{100 * row['saved_high']:.1f})"


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
