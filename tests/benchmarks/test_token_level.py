from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_level import (
    SPEC_BENCH,
    bootstrap_of_mean,
    budget,
    methods_of,
    needs_second_model,
    read_prompts,
    with_budgets,
)

from reason_spec.errors import DataError


def test_the_sample_of_spec_bench_has_ten_prompts_of_each_of_its_six_tasks() -> None:
    counted = Counter(prompt.category for prompt in read_prompts("spec_bench", 100))
    assert set(counted.values()) == {10}
    assert set(counted) == {"mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"}


def test_a_file_of_problems_and_one_of_spec_benchs_form_are_told_apart(tmp_path: Path) -> None:
    problems = tmp_path / "own.jsonl"
    problems.write_text(json.dumps({"question": "What is 1 + 1?", "answer": "2"}) + "\n")
    (prompt,) = read_prompts(str(problems), 5)
    assert prompt.source == "own"
    assert "What is 1 + 1?" in prompt.question
    assert len(read_prompts(str(SPEC_BENCH), 1)) == 6


def test_math_500_is_read_as_it_is_published(tmp_path: Path) -> None:
    problem, solution = "What is $1 + 1$?", "It is $1 + 1 = \\boxed{2}$."
    record = {
        "problem": problem,
        "solution": solution,
        "answer": "2",
        "subject": "Prealgebra",
        "level": 1,
        "unique_id": "test/prealgebra/1.json",
    }
    file = tmp_path / "math500.jsonl"
    file.write_text(json.dumps(record) + "\n")
    (prompt,) = read_prompts(str(file), 5)
    assert prompt.source == "math500"
    assert prompt.question.startswith(problem)
    assert solution not in prompt.question


@pytest.mark.parametrize("line", ['{"turns": ["a"]}', '{"category": "qa", "turns": []}', '{"turns"'])
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f'{{"category": "qa", "turns": ["a"]}}\n{line}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl, line 2"):
        read_prompts(str(file), 5)


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_methods_at_several_budgets_are_called_differently(engine: str) -> None:
    methods = list(methods_of(engine).values())
    made = with_budgets(methods, [None, 4, 64])
    names = [spec.name for spec, _ in made]
    assert len(set(names)) == len(names)
    budgets = {budget for spec, budget in made if not spec.name.startswith("vllm:")}
    assert budgets == {None, 4, 64}
    assert all(spec.own["strategy.num_draft_tokens"] == budget for spec, budget in made if budget)


@pytest.mark.parametrize("text", ["0", "-4", "many"])
def test_a_budget_below_one_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text}.*at least 1, or auto"):
        budget(text)
    assert [budget("64"), budget("auto")] == [64, None]


def test_only_weights_beside_the_targets_count_as_a_draft() -> None:
    torch, vllm = methods_of("torch"), methods_of("vllm")
    without = {name for name, spec in (torch | vllm).items() if not needs_second_model(spec)}
    assert {"prompt_lookup", "token_recycling", "stand", "self", "vllm:ngram", "vllm:suffix"} <= without
    assert not {"model", "model:recycling", "head", "vllm:draft_model", "vllm:eagle3"} & without


@given(st.lists(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_interval_of_a_mean_lies_within_the_ratios(ratios: list[list[float]]) -> None:
    low, high = bootstrap_of_mean(ratios, seed=0)
    least = sum(map(min, ratios)) / len(ratios)
    most = sum(map(max, ratios)) / len(ratios)
    assert least - 1e-9 <= low <= high <= most + 1e-9
