"""The columns of tables of models that answer, as scripts print them and the documentation shows them."""

from __future__ import annotations

from typing import Final

import numpy as np
from table_forms import Cell, Column, Fields, counted, gain, name, number, percent, span, text, times


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
    TEMPERATURE,
    Column("budget", text("budget")),
    *SHAPES[1:],
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


COUNTS: Final = (
    Column("", name()),
    TEMPERATURE,
    Column("budget", text("budget")),
    Column("tokens a pass", number("tokens_per_pass")),
    Column("drafts a pass", number("drafted", 1)),
    Column("accepted", percent("accepted")),
    Column("same", percent("same")),
)


def _beside_cold(field: str) -> Cell:
    return lambda row: f"{row[f'cold_{field}']:.2f} to {row[field]:.2f}"


SUFFIX_AGENT: Final = (
    Column("cache", text("name")),
    Column("problems", text("kind")),
    Column("ratio", times("ratio_of_sums")),
    Column("median", times("ratio")),
    Column("passes of the target", _beside_cold("passes_per_token")),
    Column("passes of the draft", _beside_cold("draft_passes_per_token")),
    Column("same", percent("same_tokens")),
)


def _refused(field: str) -> Cell:
    return lambda row: "refused" if row["refused"] else f"{row[field]:.2g}"


ROUNDING: Final = (
    Column("model", name("model")),
    Column("dtype", text("dtype")),
    Column("largest difference in float32 arithmetic", _refused("in_float32")),
    Column("plain module from float32", _refused("module")),
    Column("passes from float32", _refused("passes")),
)

GAPS: Final = (
    Column("model", name("model")),
    Column("dtype", text("dtype")),
    Column("answers", text("answers")),
    Column("differ", text("differ")),
    Column(
        "answers by gap at the first different token, in nats",
        lambda row: ", ".join(f"{gap}: {count}" for gap, count in row["gaps"].items()) or "-",
    ),
)


def _won_at(row: Fields) -> str:
    """Return the answers won in a hundred where these shares of the steps are escalated."""
    shares = np.interp((0.1, 0.3, 0.5), row["escalated"], row["won"])
    return ", ".join(f"{won:.1f}" for won in shares)


ROUTERS: Final = (
    Column("order of escalation", text("name")),
    Column("area under the curve", number("auc", 3)),
    Column("share of the area between random order and oracle", percent("share_of_oracle")),
    Column("answers won in a hundred at 10 %, 30 %, 50 % escalated", _won_at),
)


def _tuned_speedup(row: Fields) -> str:
    found = row["speedup"]
    shown = "-" if found is None else f"{found['value']:.2f}x ({found['low']:.2f}-{found['high']:.2f})"
    return shown if row["dropped"] is None else f"{shown}, dropped"


TUNED: Final = (
    Column("stage", text("stage")),
    Column("candidate", text("name")),
    Column("problems", text("num_problems")),
    Column("speed-up", _tuned_speedup),
    Column("lost", text("num_lost")),
    Column("lost at most", percent("loss_upper", 1)),
)


def _alpha(row: Fields) -> str:
    found = row["alpha"]
    value, low, high = (100 * share for share in (found["value"], *found["interval"]))
    return f"{value:.1f} % ({low:.1f}-{high:.1f})"


DRAFT_STEPS: Final = (
    Column("verifier", name("verifier")),
    Column("judges", lambda row: "the drafted step alone" if row["alone"] else "it beside the target's"),
    Column("drafted steps", number("num_steps", 0)),
    Column("accepted (95 %)", _alpha),
)

_IN_WORDS: Final = {
    "head": "`self_speculative`: an EAGLE-3 head, a small layer that reads the target's states and drafts "
    "tokens",
    "both:exact:head": "`lookahead` with that head for tokens and a draft model for steps (`--head`), steps "
    "only where they are the target's own",
    "token_recycling": "`token_recycling`: what the target's last passes predicted, no other model",
    "both:semantic": "`lookahead`, the default, with a draft model for steps and tokens; its planner soon "
    "leaves it out",
    "hybrid": "`hybrid`: steps judged before the target writes, with its planner",
    "model:recycling": "`speculative`: draft tokens of a draft model, and what the target's last passes "
    "predicted",
    "steps:exact": "steps ahead alone, without draft tokens",
    "transformers:assistant_model": "transformers' assistant model with the same draft",
}
IN_SHORT: Final = (
    Column("", lambda row: _IN_WORDS[row["name"]]),
    Column("speed-up", gain("speedup", "speedup_low", "speedup_high")),
)


def is_in_short(row: Fields) -> bool:
    """Whether the README names this row of the real pair."""
    return row["name"] in _IN_WORDS
