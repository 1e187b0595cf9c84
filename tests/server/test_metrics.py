"""Metrics: what is counted, and under which names."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from reason_spec.chat.base import ChatEnd, SpeculationReport
from reason_spec.control.load_controller import LoadController
from reason_spec.events import EarlyExit
from reason_spec.server.admission import Admission
from reason_spec.server.metrics import Metrics
from reason_spec.settings import LoadControlSettings, ServerSettings
from reason_spec.types import Usage

REPORT = SpeculationReport(
    strategy="lookahead",
    loss_class="verified",
    exact_answer_by=None,
    reason=None,
    steps_by_origin={"draft": 3, "target": 1, "cache": 2},
    alpha_step=0.75,
    alpha_token=0.5,
    target_usage=Usage(
        num_passes=12,
        num_drafted_tokens=40,
        num_accepted_draft_tokens=30,
        acceptance_histogram=(1, 0, 3, 0, 6),
    ),
    draft_usage=Usage(num_discarded_tokens=9),
    seconds=2.0,
    target_alone_seconds=5.0,
    verdicts={"accept": 5, "reject": 1},
    num_late_drafts=2,
)
END = ChatEnd(
    finish="stop",
    num_prompt_tokens=100,
    num_tokens=51,
    num_reasoning_tokens=20,
    num_cached_tokens=64,
    report=REPORT,
)


def values(metrics: Metrics) -> dict[str, float]:
    """All samples by name, with the labels that are not the model's."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "small"
            shown = "".join(f"{{{name}={value}}}" for name, value in sorted(labels.items()))
            found[sample.name + shown] = sample.value
    return found


def test_an_answer_is_counted_under_vllms_names_and_ours() -> None:
    metrics = Metrics("small")
    metrics.observe(END, seconds=3.0, first_token=0.5)
    metrics.observe(replace(END, finish="length"), seconds=3.0)
    found = values(metrics)
    expected = {
        "vllm:prompt_tokens_total": 200,
        "reason_spec:late_drafts_total": 4,
        "vllm:generation_tokens_total": 102,
        "vllm:prefix_cache_queries_total": 200,
        "vllm:prefix_cache_hits_total": 128,
        "vllm:spec_decode_num_drafts_total": 20,
        "vllm:spec_decode_num_draft_tokens_total": 80,
        "vllm:spec_decode_num_accepted_tokens_total": 60,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=0}": 18,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=2}": 12,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=3}": 12,
        "vllm:request_success_total{finished_reason=stop}": 1,
        "vllm:request_success_total{finished_reason=length}": 1,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:time_to_first_token_seconds_sum": 0.5,
        "vllm:e2e_request_latency_seconds_sum": 6,
        "vllm:inter_token_latency_seconds_count": 1,
        "vllm:inter_token_latency_seconds_sum": 2.5 / 50,
        "reason_spec:steps_total{origin=cache}": 4,
        "reason_spec:verdicts_total{decision=accept}": 10,
        "reason_spec:seconds_saved_total": 6,
        "reason_spec:seconds_lost_total": 0,
        "reason_spec:answer_seconds_total": 4,
        "reason_spec:discarded_tokens_total{engine=draft}": 18,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_an_answer_that_took_longer_counts_as_lost_time_and_an_unknown_one_as_none() -> None:
    metrics = Metrics("small")
    for alone in (0.5, None):
        metrics.observe(replace(END, report=replace(REPORT, target_alone_seconds=alone)), seconds=2.0)
    found = values(metrics)
    assert found["reason_spec:seconds_lost_total"] == pytest.approx(1.5)
    assert found["reason_spec:seconds_saved_total"] == 0
    assert found["reason_spec:answer_seconds_total"] == pytest.approx(2.0), "the other has no estimate"


def test_gauges_show_the_queue_as_it_is() -> None:
    metrics = Metrics("small")
    queue = Admission(ServerSettings(), metrics)
    metrics.watch(queue)
    queue.num_running, queue.num_waiting = 3, 5
    found = values(metrics)
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (3, 5)


def test_the_mode_of_the_load_controller_is_shown_once_there_is_one() -> None:
    metrics = Metrics("small")
    made: list[LoadController] = []
    metrics.watch_controller(lambda: made[0] if made else None)
    assert math.isnan(values(metrics)["reason_spec:speculation_mode"])
    made.append(LoadController(LoadControlSettings(at_most="tokens"), lambda: None))
    assert values(metrics)["reason_spec:speculation_mode"] == 1
    assert values(metrics)["reason_spec:speculation_mode_changes"] == 0
    made[0].seconds_in_mode["tokens"] = 3.5
    found = values(metrics)
    assert found["reason_spec:speculation_mode_seconds{mode=tokens}"] == 3.5
    assert found["reason_spec:speculation_mode_seconds{mode=steps}"] == 0


def test_versions_of_the_draft_are_counted_by_their_outcome() -> None:
    metrics = Metrics("small")
    for outcome in ("accepted", "rejected", "accepted"):
        metrics.draft_tried(outcome)
    found = values(metrics)
    assert found["reason_spec:draft_versions_total{outcome=accepted}"] == 2
    assert found["reason_spec:draft_versions_total{outcome=rejected}"] == 1
    assert "reason_spec:draft_version" not in found


def test_what_is_refused_is_counted_by_its_reason() -> None:
    metrics = Metrics("small")
    metrics.shed("rate")
    metrics.waited(0.3)
    metrics.responded("/v1/models", 200)
    found = values(metrics)
    assert found["reason_spec:shed_requests_total{what=rate}"] == 1
    assert found["vllm:request_queue_time_seconds_sum"] == pytest.approx(0.3)
    assert found["reason_spec:http_responses_total{path=/v1/models}{status=200}"] == 1


def test_every_server_counts_for_itself() -> None:
    first, second = Metrics("small"), Metrics("small")
    first.shed("rate")
    assert "reason_spec:shed_requests_total{what=rate}" not in values(second)
    assert not [name for name in REGISTRY._names_to_collectors if "reason_spec" in name]


def test_early_exits_and_the_tokens_of_trials_are_counted() -> None:
    metrics = Metrics("small")
    metrics.observe(END, seconds=3.0)
    early = replace(REPORT, early_exit=EarlyExit("deer", 4, "10", 0.97), num_probe_tokens=12)
    metrics.observe(replace(END, report=early), seconds=3.0)
    found = values(metrics)
    assert found["reason_spec:early_exits_total{rule=deer}"] == 1
    assert found["reason_spec:probe_tokens_total"] == 12
