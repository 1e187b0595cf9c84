"""The replayed rules draft what the engine drafts, on the demonstration pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from draft_counts import Bench, FreePasses
from draft_places import CHAIN, Found, OwnModel, Record, Text, record
from draft_replay import replay, rows_of, speed
from draft_rules import Costs, OwnRule, TreeRule, as_chain, fixed, num_accepted, oracle
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.generation import GenerationResult
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.pair import embedded_path
from reason_spec.settings import load_settings
from reason_spec.speculation.tree_shapes import DraftTreeName
from reason_spec.suffix.base import Proposal
from reason_spec.tasks import REAL_SAMPLE_PATH, load_problems

MAX_TOKENS = 24


@pytest.fixture(scope="module")
def bench() -> Bench:
    # The draft of the pair errs more on questions that neither model knows.
    asked = load_problems(REAL_SAMPLE_PATH, "gsm8k", 3).problems
    return Bench(load_settings(flags={"target.cache_tokens": 4096}), asked, 1)


@pytest.fixture(scope="module")
def recorded(bench: Bench) -> Record:
    return record(bench, "embedded", MAX_TOKENS)


def passes_of_engine(bench: Bench, found: Record, shape: DraftTreeName, budget: int) -> int:
    """Return the passes after the first of each text, which has the prompt."""
    num_slots = bench.target.cache_tokens
    draft = load_model(bench.target.model_copy(update={"model": str(embedded_path("draft"))}))
    scheduler = Scheduler(
        bench.model,
        bench.tokenizer,
        num_slots=num_slots,
        pass_times=FreePasses(),
        draft_model=OwnModel(draft, bench.model, num_slots),
    )
    passes = 0
    for problem, text in zip(bench.problems, found.texts, strict=True):
        request = replace(
            bench.request(problem, 0, 0.0),
            max_tokens=len(text.tokens),
            model_drafts=True,
            draft_tree=shape,
            refusal_threshold=1.0,
            num_draft_tokens=budget,
        )
        scheduler.submit(0, request)
        results = []
        while scheduler.has_work:
            results += [result for _, result in scheduler.step().results]
        (result,) = results
        assert isinstance(result, GenerationResult)
        assert result.tokens == text.tokens
        passes += result.usage.num_passes - 1
    return passes


@pytest.mark.parametrize(("shape", "budget"), [("chain", 3), ("chain", 7), ("sequoia", 7), ("eagle2", 12)])
def test_a_replayed_shape_takes_as_many_passes_as_the_engine(
    bench: Bench, recorded: Record, shape: DraftTreeName, budget: int
) -> None:
    works = replay(recorded.texts, TreeRule(shape, budget, CHAIN), Costs(recorded))
    assert sum(work.passes for work in works) == passes_of_engine(bench, recorded, shape, budget)
    assert sum(work.passes for work in works) < sum(work.tokens for work in works)


def test_a_record_is_read_as_it_was_written(recorded: Record, tmp_path: Path) -> None:
    recorded.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json") == recorded


def test_every_row_has_the_texts_and_none_drafts_better_than_the_oracle(recorded: Record) -> None:
    flat = replace(recorded, pass_ms={1: 10.0, 64: 10.0}, draft_ms={1: 0.0, 10: 0.0})
    rows = rows_of(flat, [4], seed=0)
    assert {row.tokens for row in rows} == {sum(len(text.tokens) - 1 for text in recorded.texts)}
    by_name = {row.name: row for row in rows}
    chains = [row for row in rows if row.name in ("fixed", "classifier", "ours:chain")]
    assert by_name["oracle"].speedup >= max(row.speedup for row in chains)
    assert by_name["oracle"].drafted == pytest.approx(by_name["oracle"].tokens_per_pass - 1)
    assert all(row.low <= row.over_chain <= row.high for row in rows)


def test_dear_drafts_are_left_out_under_the_engines_rule(recorded: Record) -> None:
    dear = Costs(replace(recorded, pass_ms={1: 10.0, 64: 6400.0}, draft_ms={1: 500.0}))
    works = replay(recorded.texts, OwnRule("chain", dear), dear)
    always = replay(recorded.texts, fixed(4), dear)
    assert sum(work.levels for work in works) < sum(work.levels for work in always) / 4
    assert speed(works) > speed(always)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    tokens = tuple(draw(st.lists(st.integers(0, 2), min_size=2, max_size=12)))
    places = []
    for _ in tokens[1:]:
        order = draw(st.permutations([0, 1, 2]))
        paths = [tuple(order[:1] * length) for length in range(CHAIN)]
        places.append(tuple(Found(path, tuple(order), (0.6, 0.3, 0.1), 0.9) for path in paths))
    return Text(tokens, tuple(places))


@given(st.lists(texts(), min_size=1, max_size=3), st.integers(1, CHAIN))
def test_the_oracle_takes_no_more_passes_than_a_chain_and_drafts_nothing_in_vain(
    found: list[Text], length: int
) -> None:
    costs = Costs(Record("", {1: 10.0, 8: 12.0}, {1: 1.0}))
    known, chain = replay(found, oracle(), costs), replay(found, fixed(length), costs)
    for text, best, other in zip(found, known, chain, strict=True):
        assert best.passes + best.drafted == len(text.tokens) - 1
        assert best.passes <= other.passes


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_a_chain_is_accepted_up_to_its_first_wrong_token(drafted: list[int], coming: list[int]) -> None:
    shared = 0
    while shared < min(len(drafted), len(coming)) and drafted[shared] == coming[shared]:
        shared += 1
    assert num_accepted(as_chain(drafted, [0.5] * len(drafted)), coming) == shared


def test_the_right_branch_of_a_tree_counts() -> None:
    nodes = Proposal((5, 6, 7, 8), (-1, -1, 1, 0), (0.5, 0.3, 0.2, 0.1))
    assert num_accepted(nodes, [6, 7, 9]) == 2
    assert num_accepted(nodes, [9]) == 0
