from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.timeline import Mark, Timeline
from reason_spec.events import EventKind, Purpose
from reason_spec.lab.pages.spans import LANES, Span, TimelineView, view_of
from reason_spec.types import Decision, Origin
from tests.evaluation.problems import Sum, make_accelerator

KEY = UnitKey("p", 0, "lookahead")
TEXTS = ("", "one\n\n", "two\n\n")

marks = st.builds(
    Mark,
    # Only work that was started has spans.
    kind=st.sampled_from((*get_args(EventKind), *["started"] * 8)),
    lane=st.sampled_from(LANES),
    at=st.floats(0, 100, allow_nan=False).map(lambda at: round(at, 6)),
    step_index=st.integers(0, 3),
    branch=st.integers(0, 2),
    text=st.sampled_from(TEXTS),
    origin=st.sampled_from((None, *get_args(Origin))),
    decision=st.sampled_from((None, *get_args(Decision))),
    work=st.none() | st.integers(0, 9),
    about=st.none() | st.integers(0, 5),
    purpose=st.sampled_from((None, *get_args(Purpose))),
)

# An answer written as a whole is cut into its steps.
whole_answers = st.lists(
    marks.map(lambda mark: replace(mark, kind="final", lane="target")), min_size=2, max_size=6
).map(lambda finals: [Mark("started", "target", 0.0, 0, 0, work=0, purpose="answer"), *finals])
timelines = st.lists(marks, max_size=30) | st.lists(marks, min_size=12, max_size=30) | whole_answers


def shown(*marks: Mark) -> TimelineView:
    return view_of(Timeline(KEY, marks))


def by_work(spans: tuple[Span, ...]) -> dict[int, list[Span]]:
    found = defaultdict(list)
    for span in spans:
        found[span.work].append(span)
    return found


@given(timelines)
def test_whatever_was_noted_spans_lie_within_the_answer_and_rows_do_not_overlap(noted: list[Mark]) -> None:
    part = shown(*noted)
    for span in part.spans:
        assert 0 <= span.start <= span.end <= part.seconds
        assert 0 <= span.row < part.num_rows(span.lane)
    for lane in LANES:
        rows = defaultdict(list)
        for span in part.spans:
            if span.lane == lane:
                rows[span.row].append(span)
        for row in rows.values():
            assert all(one.end <= other.start for one, other in pairwise(row))


@given(timelines)
def test_every_work_that_was_started_has_spans_without_gaps_and_others_have_none(noted: list[Mark]) -> None:
    begun = {mark.work for mark in noted if mark.kind == "started" and mark.work is not None}
    works = by_work(shown(*noted).spans)
    assert set(works) == begun
    for spans in works.values():
        assert all(one.end == other.start for one, other in pairwise(spans))
        if spans[0].purpose != "answer":
            assert len(spans) == 1


@given(timelines)
def test_a_timeline_survives_the_way_to_the_disk(noted: list[Mark]) -> None:
    timeline = Timeline(KEY, tuple(noted))
    assert Timeline.from_json(timeline.to_json()) == timeline


def begun(lane: str, at: float, work: int, **more: object) -> Mark:
    return Mark("started", lane, at, 0, 0, work=work, purpose=more.pop("purpose", "step"), **more)  # type: ignore[arg-type]


def test_what_is_cancelled_is_marked_and_what_was_never_ended_is_cancelled_at_the_end() -> None:
    part = shown(
        begun("draft", 0.0, 0),
        begun("target", 0.0, 1),
        Mark("cancelled", "draft", 0.5, 0, 0, work=0),
        Mark("final", "target", 2.0, 0, 0, text="one", origin="target"),
    )
    assert {(span.work, span.end, span.state) for span in part.spans} == {
        (0, 0.5, "cancelled"),
        (1, 2.0, "cancelled"),
    }


def test_a_refused_draft_and_the_step_that_stands_in_its_place_are_told_apart() -> None:
    part = shown(
        begun("draft", 0.0, 0),
        begun("target", 0.1, 1),
        Mark("written", "draft", 0.4, 0, 0, text="wrong", work=0),
        Mark("written", "target", 0.9, 0, 0, text="right", work=1),
        begun("verifier", 0.9, 2, purpose="verdict", about=0),
        Mark(
            "verified", "verifier", 1.0, 0, 0, text="wrong", decision="reject", reason="no", work=2, about=0
        ),
        Mark("final", "target", 1.0, 0, 0, text="right", origin="target"),
    )
    assert {span.work: (span.state, span.reason) for span in part.spans} == {
        0: ("rejected", "no"),
        1: ("kept", ""),
        2: ("rejected", "no"),
    }


def test_of_equal_drafts_the_accepted_one_stands_and_the_targets_own_was_compared() -> None:
    part = shown(
        begun("draft", 0.0, 0),
        begun("draft", 0.0, 1),
        begun("target", 0.0, 2),
        Mark("written", "draft", 0.2, 0, 0, text="same", work=0),
        Mark("written", "draft", 0.3, 0, 0, text="same", work=1),
        Mark("written", "target", 0.5, 0, 0, text="the same", work=2),
        begun("verifier", 0.5, 3, purpose="verdict", about=0),
        Mark("verified", "verifier", 0.6, 0, 0, text="same", decision="accept", work=3, about=0),
        Mark("final", "draft", 0.6, 0, 0, text="same", origin="draft"),
    )
    states = {span.work: span.state for span in part.spans}
    assert states == {0: "kept", 1: "unused", 2: "matched", 3: "kept"}


def test_a_mended_draft_stands_though_only_its_end_was_written_anew() -> None:
    part = shown(
        begun("draft", 0.3, 0),
        Mark("written", "draft", 0.5, 0, 0, text="6 apples", work=0),
        begun("verifier", 0.5, 1, purpose="verdict", about=0),
        Mark("verified", "verifier", 0.6, 0, 0, text="Ana has 6 apples", decision="accept", work=1, about=0),
        Mark("final", "draft", 0.6, 0, 0, text="Ana has 6 apples", origin="draft"),
    )
    assert [span.state for span in part.spans] == ["kept", "kept"]


def test_a_run_ahead_stands_where_the_target_confirmed_it() -> None:
    part = shown(
        begun("draft", 0.0, 0, purpose="ahead"),
        begun("draft", 0.5, 1, purpose="ahead"),
        Mark("confirmed", "draft", 0.2, 0, 0, work=0),
        Mark("written", "draft", 0.4, 0, 0, text="a b", work=0),
        Mark("written", "draft", 0.9, 0, 0, text="c", work=1),
    )
    assert [span.state for span in part.spans] == ["kept", "unused"]


@pytest.mark.parametrize("strategy", ["autoregressive", "prompt_lookup", "speculative", "lookahead"])
@pytest.mark.parametrize("number", range(6))
def test_what_strategies_note_shows_every_final_step_with_the_work_that_wrote_it(
    strategy: str, number: int
) -> None:
    async def solve() -> Timeline:
        async with make_accelerator(flags={"strategy.planner": False, "strategy.width": 2}) as accelerator:
            solution = await accelerator.answer(Sum(number).question, strategy=strategy)
        return Timeline.of(KEY, solution.recorder)

    timeline = asyncio.run(solve())
    part = view_of(timeline)
    written = [
        span
        for span in part.spans
        if span.state == "kept" and span.lane != "verifier" and span.purpose in ("step", "answer")
    ]
    assert sorted(span.step_index for span in written) == [final.step_index for final in part.finals]
    assert {mark.work for mark in timeline.marks if mark.kind == "started"} == set(by_work(part.spans))
    verdicts = [mark for mark in timeline.marks if mark.kind in ("checked", "verified")]
    assert all(mark.work is not None and mark.about is not None for mark in verdicts)
    assert all(mark.work is not None for mark in timeline.marks if mark.kind in ("written", "cancelled"))
