from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from reason_spec.evaluation.outcome import Outcome, StepRecord, Work
from reason_spec.evaluation.report import answer_line, comparison_lines, notes, summary_table
from reason_spec.evaluation.statistics import compare_accuracy, wilson_interval
from reason_spec.evaluation.summary import Summary, summarize
from reason_spec.types import Origin, Usage
from tests.evaluation.test_store import make_outcome


def answered(
    number: int,
    strategy: str,
    seconds: float,
    correct: bool | None,
    ids: tuple[int, ...],
    *,
    origin: Origin = "target",
    verdicts: tuple[int, int, int] = (0, 0, 0),
    passes: int = 0,
    drafted: tuple[int, int] = (0, 0),
    discarded: tuple[int, int] = (0, 0),
    num_late: int = 0,
    read: tuple[int, int, int] = (0, 0, 0),
    **changes: object,
) -> Outcome:
    step = StepRecord("text", origin, len(ids), "eos", None, ids)
    target = Usage(
        num_passes=passes, num_drafted_tokens=drafted[0], num_accepted_draft_tokens=drafted[1],
        num_discarded_tokens=discarded[0], num_prompt_tokens=read[0], num_cached_prompt_tokens=read[1],
        num_scored_tokens=read[2],
    )  # fmt: skip
    work = Work(
        target,
        Usage(num_discarded_tokens=discarded[1]),
        {"accept": verdicts[0], "reject": verdicts[1], "unknown": verdicts[2]},
        0.25,
        num_late_drafts=num_late,
    )
    return make_outcome(
        number, strategy=strategy, seconds=seconds, correct=correct, steps=(step,), tokens=len(ids),
        usage=work, first_step_seconds=seconds / 2, **changes,
    )  # fmt: skip


BASE = [
    answered(0, "autoregressive", 2.0, True, (1, 2, 3, 4), passes=4),
    answered(1, "autoregressive", 4.0, True, (1, 2, 3, 4), passes=4),
    answered(2, "autoregressive", 6.0, False, (1, 2), passes=2),
]
AHEAD = [
    answered(2, "lookahead", 2.0, False, (1, 9), passes=2, loss_class="verified"),
    answered(1, "lookahead", 2.0, False, (1, 2, 3, 4), passes=1, verdicts=(0, 1, 1), discarded=(3, 4),
             num_late=3, read=(15, 8, 2), loss_class="verified"),
    answered(0, "lookahead", 1.0, True, (1, 2, 3, 4), passes=2, origin="draft", verdicts=(2, 1, 0),
             drafted=(10, 6), discarded=(1, 2), loss_class="verified"),
]  # fmt: skip


def text_of(summary: Summary, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table(summary))
    for line in (*comparison_lines(summary), *notes(summary)):
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_strategy_is_summed_up() -> None:
    first, second = summarize([*AHEAD, *BASE], ["autoregressive", "lookahead"]).strategies
    assert (first.strategy, second.strategy) == ("autoregressive", "lookahead")
    assert second.loss_class == "verified"
    assert (first.num_correct, first.num_graded, first.accuracy) == (2, 3, pytest.approx(2 / 3))
    assert first.accuracy_interval == wilson_interval(2, 3)
    assert second.tokens_per_second == pytest.approx(10 / 5)
    assert (first.seconds_per_problem, second.seconds_per_problem) == (4.0, 2.0)
    assert second.seconds_to_first_step == 1.0
    assert second.alpha_step == pytest.approx(2 / 5)
    assert second.alpha_step_of_all == pytest.approx(2 / 8)
    assert second.alpha_token == pytest.approx(0.6)
    assert second.drafted_steps == pytest.approx(1 / 3)
    assert second.planned_depth == pytest.approx(0.5), "one answer had no plan"
    assert second.target_passes_per_token == pytest.approx(0.5)
    assert (second.target.num_discarded_tokens, second.draft.num_discarded_tokens) == (4, 6)
    assert second.num_discarded_tokens == 10
    assert second.verifier_seconds == pytest.approx(0.75)
    assert first.alpha_step is None


def test_strategies_are_compared_problem_by_problem() -> None:
    (comparison,) = summarize([*AHEAD, *BASE]).comparisons
    assert (comparison.strategy, comparison.baseline) == ("lookahead", "autoregressive")
    assert comparison.num_pairs == 3
    assert comparison.speedup == pytest.approx(4.0 / 2.0)
    assert comparison.paired_speedup == pytest.approx(2.0)
    assert comparison.num_identical == 2
    assert comparison.accuracy == compare_accuracy([1, 1, 0], [1, 0, 0])
    assert comparison.num_apart == 0


def test_only_answers_that_both_have_are_compared() -> None:
    summary = summarize([BASE[0], BASE[1], AHEAD[0], AHEAD[1]])
    (comparison,) = summary.comparisons
    assert comparison.num_pairs == 1
    assert summarize([BASE[0], AHEAD[0]]).comparisons == ()


def test_pairs_timed_in_different_starts_are_counted_and_said() -> None:
    summary = summarize([*BASE, replace(AHEAD[0], session="later"), *AHEAD[1:]])
    assert summary.comparisons[0].num_apart == 1
    assert "1 of these 3 pairs were timed in different runs" in " ".join(text_of(summary).split())


def test_without_a_baseline_the_first_strategy_is_one() -> None:
    token = [replace(outcome, strategy="prompt_lookup") for outcome in BASE]
    summary = summarize([*AHEAD, *token], ["prompt_lookup", "lookahead"])
    assert summary.comparisons[0].baseline == "prompt_lookup"


def test_samples_of_a_problem_do_not_narrow_its_interval() -> None:
    often = [replace(outcome, sample=sample) for outcome in BASE for sample in range(50)]
    (once,) = summarize(BASE).strategies
    (many,) = summarize(often).strategies
    assert many.num_answers == 150
    assert many.accuracy_interval == pytest.approx(once.accuracy_interval)
    assert "count problems, not samples" in " ".join(text_of(summarize(often)).split())


def test_an_undecided_answer_counts_as_wrong_and_is_mentioned() -> None:
    (item,) = summarize([*BASE[:2], replace(BASE[2], correct=None)]).strategies
    assert item.accuracy == pytest.approx(2 / 3)
    assert item.num_undecided == 1
    assert "1 answers could not be compared" in text_of(summarize([replace(BASE[0], correct=None)]))


def test_problems_without_reference_answers_have_no_accuracy() -> None:
    outcomes = [replace(outcome, answer=None, correct=None) for outcome in (*BASE, *AHEAD)]
    summary = summarize(outcomes)
    assert [item.accuracy for item in summary.strategies] == [None, None]
    assert summary.comparisons[0].accuracy is None
    assert "McNemar" not in text_of(summary)


def test_nothing_has_an_empty_summary() -> None:
    assert summarize([]) == Summary((), ())
    assert summarize([]).to_dict() == {"strategies": [], "comparisons": []}


def test_the_table_holds_the_numbers() -> None:
    text = text_of(summarize([*BASE, *AHEAD]))
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in text.splitlines()}
    assert rows["loss class"] == ["exact", "verified"]
    assert rows["tokens/s"] == ["0.8", "2.0"]
    assert rows["seconds per problem"] == ["4.00", "2.00"]
    assert rows["speed-up"] == ["1.00x", "2.00x"]
    assert rows["alpha_step"] == ["-", "0.40"]
    assert rows["alpha_step, late drafts too"] == ["-", "0.25"]
    assert rows["alpha_token"] == ["-", "0.60"]
    assert rows["target passes per token"] == ["1.00", "0.50"]
    assert rows["target tokens prefilled"] == ["0.00", "0.70"]
    assert rows["target tokens scored"] == ["0.00", "0.20"]
    assert "2 of 3" in text
    assert "4 + 6" in text
    assert "66.7 %" in text


def test_the_comparison_is_said_in_words() -> None:
    said = " ".join(comparison_lines(summarize([*BASE, *AHEAD])))
    assert "2 of 3 answers have the same tokens" in said
    assert "33.3 points of accuracy lost on 3 problems (0 better, 1 worse, exact McNemar p = 1)" in said


def test_three_strategies_fit_eighty_columns() -> None:
    token = [replace(outcome, strategy="prompt_lookup") for outcome in BASE]
    text = text_of(summarize([*BASE, *token, *AHEAD]))
    assert "autoregressive" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_batches_and_cut_answers_are_mentioned() -> None:
    text = text_of(summarize([replace(outcome, concurrency=4, finish="length") for outcome in BASE]))
    assert "batch of 4 problems divided by its size" in text
    assert "cut at the token limit" in text


def test_the_summary_is_json() -> None:
    content = json.loads(json.dumps(summarize([*BASE, *AHEAD]).to_dict()))
    assert content["strategies"][0]["accuracy_interval"]["low"] == pytest.approx(wilson_interval(2, 3).low)
    assert content["comparisons"][0]["accuracy"]["num_worse"] == 1


def test_one_answer_has_its_numbers_on_one_line() -> None:
    line = answer_line(AHEAD[2])
    assert line == ("4 tokens, 1.00 s, 4.0 tokens/s | steps: draft 1 | alpha_step 0.67 | alpha_token 0.60")
