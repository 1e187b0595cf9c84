"""The tables of the documentation that are made from files of rows, and the forms that make them.

A table names its page (README, or one of ``docs/measurements``), its measurements (files in its folder
``data``) and its form. `all.sh` makes the measurements; a table whose file does not exist yet is marked on
its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from draft_tables import draft_chains, draft_lengths, draft_shapes
from table_columns import (
    ACCEPTANCE,
    AGENT_LOOP,
    BUDGETS,
    CORES,
    COUNTS,
    DRAFT_STEPS,
    DRAFTS,
    EMBEDDED,
    FRONTIER,
    GAPS,
    IN_SHORT,
    LOAD,
    MAJORITY,
    PADDED,
    PADDED_ROWS,
    REAL,
    REAL_ACCURACY,
    RELAXED,
    ROUNDING,
    ROUTERS,
    RULES,
    SHAPES,
    SUFFIX_AGENT,
    TEMPERATURE,
    THRESHOLDS,
    TOOLS_AHEAD_LOOP,
    TUNED,
    VLLM_PAIR,
    baseline_first,
    is_in_short,
    is_shown_of_load,
)
from table_forms import (
    Column,
    Form,
    calibration,
    calls_by_tool,
    learned_from,
    number,
    plain,
    seconds_saved,
    step_map,
    text,
    token_level,
)
from text_columns import (
    EXIT_CURVE,
    EXIT_LIVE,
    EXIT_RULES,
    PAIRS,
    PAPER_CELLS,
    PAPER_EFFECTS,
    PAPER_FIT,
    SAMPLES,
    STEP_LENGTHS,
    STORE,
    SUFFIX_COST,
    SUFFIX_REPLAYS,
    VOTES,
    coverage,
    is_left_out,
    is_other_set,
    is_shown_of_cost,
    replay,
    same_at,
    seconds_coverage,
)

READ_ALONG: Final = ("read along", "MATH")
"""Rows of the policy with a small model; those of the other rules are the same for either policy."""


class Part(NamedTuple):
    """A measurement, and names of its rows in their order at each temperature; none is all, as they come."""

    measurement: str
    names: Sequence[str] = ()


class Table(NamedTuple):
    """A table of a page."""

    page: str
    parts: Sequence[Part]
    form: Form


TABLES: Final[dict[str, Table]] = {
    "in_short": Table("README", [Part("real_t0")], plain(*IN_SHORT, where=is_in_short, order=baseline_first)),
    "real_t0": Table("speed", [Part("real_t0")], plain(*REAL, CORES, order=baseline_first)),
    "real_other_t0": Table(
        "speed",
        [Part("real_other_t0", ("autoregressive", "self", "prompt_lookup", "transformers:prompt_lookup"))],
        plain(*REAL, CORES),
    ),
    "real_suffix": Table("speed", [Part("real_suffix_t0")], plain(*REAL, CORES, order=baseline_first)),
    "real_t06": Table("speed", [Part("real_t06")], plain(*REAL, CORES, order=baseline_first)),
    "real_planned": Table("speed", [Part("real_planned")], plain(*REAL, CORES)),
    "real_one_core": Table(
        "speed",
        [
            Part("real_nodraft_t0", ("autoregressive", "token_recycling", "prompt_lookup")),
            Part(
                "real_head_t0",
                ("autoregressive", "head", "head:recycling", "model:recycling", "both:semantic", "model"),
            ),
        ],
        plain(*REAL[:6], REAL[7]),
    ),
    "real_vllm": Table("vllm", [Part("real_vllm_t0")], plain(*REAL, DRAFTS, CORES, order=baseline_first)),
    "real_vllm_t06": Table(
        "vllm", [Part("real_vllm_t06")], plain(*REAL, DRAFTS, CORES, order=baseline_first)
    ),
    "real_vllm_suffix": Table(
        "vllm", [Part("real_vllm_suffix_t0")], plain(*REAL, DRAFTS, CORES, order=baseline_first)
    ),
    "real_accuracy": Table(
        "speed", [Part("real_accuracy"), Part("real_accuracy_t06")], plain(*REAL_ACCURACY)
    ),
    "real_padded": Table(
        "speed", [Part("real_padded", PADDED_ROWS), Part("real_padded_t06", PADDED_ROWS)], plain(*PADDED)
    ),
    "real_padded_near": Table("speed", [Part("real_padded_near")], plain(*PADDED)),
    "real_close_accuracy": Table(
        "speed",
        [Part("real_close_accuracy"), Part("real_near_accuracy")],
        plain(REAL[0], Column("draft", text("draft")), *REAL_ACCURACY[1:]),
    ),
    "draft_steps": Table("speed", [Part("draft_steps")], plain(*DRAFT_STEPS)),
    "acceptance": Table("token-level", [Part("acceptance")], plain(*ACCEPTANCE)),
    "embedded_t0": Table("demonstration-pair", [Part("embedded_t0")], plain(*EMBEDDED)),
    "token_level": Table("token-level", [Part("token_level_t0"), Part("token_level_t06")], token_level(True)),
    "token_level_math": Table(
        "token-level",
        [Part("token_level_math")],
        plain(SHAPES[0], TEMPERATURE, *SHAPES[1:], where=lambda row: row["name"] != "autoregressive"),
    ),
    "token_level_vllm": Table(
        "token-level",
        [Part("token_level_vllm"), Part("token_level_vllm_suffix")],
        token_level(False),
    ),
    "token_level_base": Table("token-level", [Part("token_level_base")], token_level(False)),
    "token_level_shapes": Table(
        "token-level",
        [Part("token_level_shapes")],
        plain(*SHAPES, where=lambda row: row["name"] != "autoregressive"),
    ),
    "draft_chains": Table("token-level", [Part("draft_replay")], draft_chains),
    "draft_shapes": Table("token-level", [Part("draft_replay")], draft_shapes),
    "draft_lengths": Table("token-level", [Part("draft_replay")], draft_lengths),
    "token_level_budgets": Table(
        "token-level",
        [Part("token_level_budgets")],
        plain(*BUDGETS, where=lambda row: row["budget"] is not None),
    ),
    "suffix_tau_new": Table("suffix-cache", [Part("suffix_tau")], replay("new_task")),
    "suffix_tau_known": Table("suffix-cache", [Part("suffix_tau")], replay("known_task")),
    "suffix_reasoning_new": Table("suffix-cache", [Part("suffix_reasoning")], replay("new_task")),
    "suffix_reasoning_known": Table("suffix-cache", [Part("suffix_reasoning")], replay("known_task")),
    "suffix_store": Table("suffix-cache", [Part("suffix_store")], plain(*STORE)),
    "verifiers_left_out": Table("verifiers", [Part("verifiers")], plain(*PAIRS, where=is_left_out)),
    "verifiers_other": Table("verifiers", [Part("verifiers")], plain(*PAIRS, where=is_other_set)),
    "verifiers_baselines": Table(
        "verifiers",
        [Part("verifiers_baselines")],
        plain(*PAIRS, where=lambda row: row["kind"] == "all" and row["verifier"] == "numbers"),
    ),
    "verifiers_embedding": Table(
        "verifiers",
        [Part("verifiers_baselines")],
        plain(*PAIRS, where=lambda row: row["kind"] == "all" and row["verifier"] == "embedding"),
    ),
    "verifiers_at": Table("verifiers", [Part("verifiers")], same_at),
    "early_exit_reading": Table(
        "early-exit",
        [Part("early_exit_reading")],
        plain(*EXIT_RULES, where=lambda row: row["threshold"] is None and row["name"].startswith(READ_ALONG)),
    ),
    "early_exit_reading_curve": Table(
        "early-exit",
        [Part("early_exit_reading")],
        plain(*EXIT_CURVE, where=lambda row: row["threshold"] is not None),
    ),
    "early_exit": Table(
        "early-exit", [Part("early_exit")], plain(*EXIT_RULES, where=lambda row: row["threshold"] is None)
    ),
    "early_exit_curve": Table(
        "early-exit", [Part("early_exit")], plain(*EXIT_CURVE, where=lambda row: row["threshold"] is not None)
    ),
    "early_exit_live": Table("early-exit", [Part("early_exit_live")], plain(*EXIT_LIVE)),
    "early_exit_live_reading": Table("early-exit", [Part("early_exit_live_reading")], plain(*EXIT_LIVE)),
    "dtypes": Table("dtypes", [Part("dtypes")], plain(*ROUNDING, where=lambda row: "passes" in row)),
    "dtypes_gaps": Table("dtypes", [Part("dtypes")], plain(*GAPS, where=lambda row: "gaps" in row)),
    "lookahead_paper_r1": Table(
        "planning",
        [Part("lookahead_paper")],
        plain(*PAPER_CELLS, where=lambda row: row["kind"] == "cell" and row["pair"].startswith("R1")),
    ),
    "lookahead_paper_qwen": Table(
        "planning",
        [Part("lookahead_paper")],
        plain(*PAPER_CELLS, where=lambda row: row["kind"] == "cell" and row["pair"].startswith("Qwen")),
    ),
    "lookahead_paper_fit": Table(
        "planning", [Part("lookahead_paper")], plain(*PAPER_FIT, where=lambda row: row["kind"] == "fit")
    ),
    "lookahead_paper_effects": Table(
        "planning",
        [Part("lookahead_paper")],
        plain(*PAPER_EFFECTS, where=lambda row: row["kind"] == "effect"),
    ),
    "step_lengths": Table("strategies", [Part("step_lengths")], STEP_LENGTHS),
    "draft_counts": Table("strategies", [Part("draft_counts")], plain(*COUNTS)),
    "router": Table("strategies", [Part("router")], plain(*ROUTERS)),
    "tuned": Table("tuning", [Part("tuned")], plain(*TUNED)),
    "suffix_agent": Table(
        "suffix-cache",
        [Part("suffix_agent")],
        plain(*SUFFIX_AGENT, where=lambda row: row["name"] != "cold"),
    ),
    "suffix_replays": Table("suffix-cache", [Part("suffix_replays")], plain(*SUFFIX_REPLAYS)),
    "suffix_cost": Table("suffix-cache", [Part("suffix_cost")], plain(*SUFFIX_COST, where=is_shown_of_cost)),
    "step_map": Table("planning", [Part("step_map")], step_map),
    "coverage_accuracy": Table("intervals", [Part("interval_coverage")], coverage("accuracy")),
    "coverage_difference": Table("intervals", [Part("interval_coverage")], coverage("difference")),
    "coverage_seconds": Table("intervals", [Part("interval_coverage")], seconds_coverage),
    "samples": Table("strategies", [Part("samples")], SAMPLES),
    "votes": Table("strategies", [Part("votes")], plain(*VOTES)),
    "majority": Table("strategies", [Part("majority")], plain(*MAJORITY)),
    "majority_padded": Table("strategies", [Part("majority_padded")], plain(*MAJORITY)),
    "frontier": Table("strategies", [Part("frontier")], plain(*FRONTIER)),
    "real_relaxed": Table("strategies", [Part("real_relaxed")], plain(*RELAXED)),
    "real_relaxed_accuracy": Table(
        "strategies",
        [Part("real_relaxed_accuracy", ("autoregressive", "head:cascade:0.8", "head:cascade:0.95"))],
        plain(*REAL_ACCURACY),
    ),
    "real_relaxed_model": Table(
        "strategies",
        [Part("real_relaxed_model"), Part("real_relaxed_judge", ("model:judge", "model:judge:0.9"))],
        plain(*RELAXED),
    ),
    "real_relaxed_model_accuracy": Table(
        "strategies",
        [Part("real_relaxed_model_accuracy")],
        plain(*REAL_ACCURACY),
    ),
    "real_relaxed_padded": Table("strategies", [Part("real_relaxed_padded")], plain(*RELAXED)),
    "published_rules_real": Table("strategies", [Part("published_rules_real")], plain(*RULES[:9])),
    "published_rules": Table("strategies", [Part("published_rules")], plain(*RULES)),
    "thresholds": Table("tuning", [Part("thresholds")], plain(*THRESHOLDS)),
    "load_vllm": Table("load", [Part("load_vllm")], plain(*LOAD, where=is_shown_of_load)),
    "load_torch": Table("load", [Part("load_torch")], plain(*LOAD, where=is_shown_of_load)),
    "vllm_pair": Table("vllm", [Part("vllm_pair")], plain(*VLLM_PAIR)),
    "vllm_pair_padded": Table("vllm", [Part("vllm_pair_padded")], plain(*VLLM_PAIR)),
    "agent_replay": Table(
        "tools-ahead",
        [Part("agent_replay")],
        plain(
            Column("learned from", learned_from),
            Column("read-only calls", number("n_read_only", 0)),
            Column("run ahead", number("n_run_ahead", 0)),
            Column("right", number("n_right", 0)),
            Column("precision", number("precision", 3)),
            Column("**share run ahead**", number("share_run_ahead", 3)),
            Column("tokens per pass", number("tokens_per_pass")),
        ),
    ),
    "agent_replay_seconds": Table("tools-ahead", [Part("agent_replay")], seconds_saved),
    "agent_replay_tools": Table("tools-ahead", [Part("agent_replay")], calls_by_tool),
    "agent_replay_chances": Table("tools-ahead", [Part("agent_replay")], calibration),
    "tools_ahead_loop": Table("tools-ahead", [Part("tools_ahead_loop")], plain(*TOOLS_AHEAD_LOOP)),
    "agent_loop": Table("agents", [Part("agent_loop")], plain(*AGENT_LOOP)),
}
