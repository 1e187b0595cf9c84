"""What really happens while the demonstration pair answers, as a report shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.timeline import Timeline
from reason_spec.lab.pages.spans import LANES, TimelineView, view_of
from reason_spec.pair import SAMPLE_PATH
from reason_spec.settings import load_settings
from reason_spec.sync import SyncAccelerator

QUESTION = json.loads(SAMPLE_PATH.read_text().splitlines()[0])["question"]
STRATEGIES = ("autoregressive", "speculative", "lookahead", "hybrid", "scot", "speculative_thinking")


@pytest.fixture(scope="module")
def running() -> Iterator[SyncAccelerator]:
    settings = load_settings(
        flags={"strategy.planner": False, "load_control.use": "off", "sampling.max_tokens": 160}
    )
    with SyncAccelerator.from_settings(settings, strategies=STRATEGIES) as accelerator:
        yield accelerator


def answered(running: SyncAccelerator, strategy: str) -> tuple[TimelineView, float]:
    solution = running.answer(QUESTION, strategy=strategy)
    timeline = Timeline.of(UnitKey("p", 0, strategy), solution.recorder)
    return view_of(Timeline.from_json(timeline.to_json())), solution.seconds


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_step_of_an_answer_is_a_span_that_stands(running: SyncAccelerator, strategy: str) -> None:
    part, seconds = answered(running, strategy)
    standing = [
        span.step_index
        for span in part.spans
        if span.state == "kept" and span.lane != "verifier" and span.purpose in ("step", "answer")
    ]
    assert sorted(standing) == [final.step_index for final in part.finals]
    assert part.finals
    assert all(0 <= span.start <= span.end <= part.seconds for span in part.spans)
    assert part.seconds <= seconds + 0.5
    lanes = {lane for lane in LANES if part.num_rows(lane)}
    expected = {
        "autoregressive": {"target"},
        "speculative": {"draft", "target"},
        # A drafted step that is late is not judged.
        "lookahead": {"draft", "target"},
    }
    assert lanes >= expected.get(strategy, {"draft", "verifier"})


def test_steps_of_lookahead_are_written_at_the_same_time_by_both_models(running: SyncAccelerator) -> None:
    part, _ = answered(running, "lookahead")
    drafts = [span for span in part.spans if span.lane == "draft" and span.purpose == "step"]
    targets = [span for span in part.spans if span.lane == "target"]
    assert any(one.start < other.end and other.start < one.end for one in drafts for other in targets)
