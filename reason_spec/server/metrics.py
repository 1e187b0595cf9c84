"""What is counted, for Prometheus: under vLLM's names where it has them, under ours beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from reason_spec.chat.base import ChatEnd
from reason_spec.control.load_controller import WAYS, LoadController
from reason_spec.server.admission import Shed

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FIRST_TOKEN = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_REQUEST = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)


class Queue(Protocol):
    """What the gauges read."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...


class Metrics:
    """The counts of one server, in a registry of their own.

    Everything has the label ``model_name``. Names that begin with ``vllm:`` mean what they mean there, with
    one difference: the time between tokens is the mean of an answer, as steps arrive as a whole.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        counter, histogram = self._counter, self._histogram
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of answers.")
        self._generated = counter("vllm:generation_tokens", "Tokens of answers.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Passes of the target that checked drafts.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Token drafts that the target checked.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Token drafts that stood.")
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = counter("vllm:prefix_cache_hits", "Prompt tokens that needed no pass.")
        self._success = self._labelled(
            "vllm:request_success", "Answers by how they ended.", "finished_reason"
        )
        self._first = histogram("vllm:time_to_first_token_seconds", "Until the first words.", _FIRST_TOKEN)
        self._between = histogram("vllm:inter_token_latency_seconds", "Between tokens.", _TOKEN)
        self._whole = histogram(
            "vllm:e2e_request_latency_seconds", "Of a request, its wait included.", _REQUEST
        )
        self._queued = histogram("vllm:request_queue_time_seconds", "Waiting for a place.", _REQUEST)
        self._steps = self._labelled("reason_spec:steps", "Final steps by who wrote them.", "origin")
        self._verdicts = self._labelled("reason_spec:verdicts", "Verdicts about proposed steps.", "decision")
        self._late = counter("reason_spec:late_drafts", "Drafted steps that came too late for a verdict.")
        self._saved = counter("reason_spec:seconds_saved", "What the target alone would have taken longer.")
        self._lost = counter("reason_spec:seconds_lost", "What the target alone would have taken less.")
        self._discarded = self._labelled(
            "reason_spec:discarded_tokens", "Tokens written for nothing, by engine.", "engine"
        )
        self._shed = self._labelled("reason_spec:shed_requests", "What was refused, and why.", "what")
        self._responses = Counter(
            "reason_spec:http_responses",
            "Responses by path and status.",
            ["model_name", "path", "status"],
            registry=self.registry,
        )

    def observe(self, end: ChatEnd, *, seconds: float, first_token: float | None = None) -> None:
        """Count a whole answer.

        Args:
            seconds: from the request's arrival to the answer's end.
            first_token: from its arrival to the first words; None where the answer was sent as a whole.
        """
        report = end.report
        self._prompt.inc(end.num_prompt_tokens)
        self._generated.inc(end.num_tokens)
        self._queries.inc(end.num_prompt_tokens)
        self._hits.inc(end.num_cached_tokens)
        self._drafts.inc(sum(report.target_usage.acceptance_histogram))
        self._drafted.inc(report.target_usage.num_drafted_tokens)
        self._accepted.inc(report.target_usage.num_accepted_draft_tokens)
        self._success.labels(self._model, end.finish).inc()
        self._whole.observe(seconds)
        if first_token is not None:
            self._first.observe(first_token)
        if end.num_tokens > 1:
            self._between.observe((seconds - (first_token or 0.0)) / (end.num_tokens - 1))
        for origin, number in report.steps_by_origin.items():
            self._steps.labels(self._model, origin).inc(number)
        for decision, number in report.verdicts.items():
            self._verdicts.labels(self._model, decision).inc(number)
        self._late.inc(report.num_late_drafts)
        for engine, usage in (("target", report.target_usage), ("draft", report.draft_usage)):
            self._discarded.labels(self._model, engine).inc(usage.num_discarded_tokens)
        if report.target_alone_seconds is not None:
            saved = report.target_alone_seconds - report.seconds
            (self._saved if saved > 0 else self._lost).inc(abs(saved))

    def watch(self, queue: Queue) -> None:
        """Show what runs and waits now."""
        self._gauge("vllm:num_requests_running", "Answers that are written.", lambda: queue.num_running)
        self._gauge("vllm:num_requests_waiting", "Requests that wait.", lambda: queue.num_waiting)

    def watch_gate(self, read: Callable[[], LoadController | None]) -> None:
        """Show what the load gate lets be speculated now, where there is one."""

        def way() -> float:
            gate = read()
            return math.nan if gate is None else WAYS.index(gate.way)

        def num_changes() -> float:
            gate = read()
            return math.nan if gate is None else gate.num_changes

        self._gauge("reason_spec:gate_way", "What is speculated: 0 nothing, 1 tokens, 2 steps too.", way)
        self._gauge("reason_spec:gate_changes", "How often that was changed.", num_changes)

    def shed(self, what: Shed) -> None:
        """Count what admission refused."""
        self._shed.labels(self._model, what).inc()

    def waited(self, seconds: float) -> None:
        """Count how long a request waited for its place."""
        self._queued.observe(seconds)

    def responded(self, path: str, status: int) -> None:
        """Count a response; ``path`` is one of a closed list, or the labels would grow without end."""
        self._responses.labels(self._model, path, str(status)).inc()

    def render(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model)

    def _labelled(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, ["model_name", label], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        found = Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets)
        return found.labels(self._model)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(name, text, ["model_name"], registry=self.registry).labels(self._model).set_function(read)
