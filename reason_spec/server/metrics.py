"""Metrics for Prometheus: under vLLM's names where it has them, else under ``reason_spec:``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from reason_spec.accelerator.adaptation import DraftAdaptation, Outcome
from reason_spec.chat.base import ChatEnd
from reason_spec.control.load_controller import MODES, LoadController
from reason_spec.server.admission import Admission, Shed
from reason_spec.settings import SpeculationMode
from reason_spec.tools_ahead.calls import Call

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FIRST_TOKEN = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_MAX_TOOLS = 100
_REQUEST = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)


class Metrics:
    """The metrics of one server, in their own registry.

    Everything has the label ``model_name``. Names that begin with ``vllm:`` mean what they mean in vLLM, with
    one difference: the time between tokens is the mean of a streamed answer, as steps arrive as a whole.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        counter, histogram = self._counter, self._histogram
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of answers.")
        self._generated = counter("vllm:generation_tokens", "Tokens of answers.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Passes of the target that checked drafts.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Draft tokens that the target checked.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted.")
        self._by_position = self._labelled(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Passes that accepted this draft token.",
            "position",
        )
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._success = self._labelled("vllm:request_success", "Answers by finish reason.", "finished_reason")
        self._first = histogram("vllm:time_to_first_token_seconds", "Until the first token.", _FIRST_TOKEN)
        self._between = histogram("vllm:inter_token_latency_seconds", "Between tokens.", _TOKEN)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Requests, queue included.", _REQUEST)
        self._queued = histogram("vllm:request_queue_time_seconds", "In the queue.", _REQUEST)
        self._steps = self._labelled("reason_spec:steps", "Final steps by origin.", "origin")
        self._verdicts = self._labelled("reason_spec:verdicts", "Verdicts on proposed steps.", "decision")
        self._late = counter("reason_spec:late_drafts", "Drafted steps that came too late for a verdict.")
        self._exits = self._labelled("reason_spec:early_exits", "Answers that a rule ended early.", "rule")
        self._probe_tokens = counter("reason_spec:probe_tokens", "Tokens of trial answers.")
        self._timed = counter(
            "reason_spec:answer_seconds", "Time of answers with an estimate of the target alone."
        )
        self._saved = counter("reason_spec:seconds_saved", "Time saved against the target alone.")
        self._lost = counter("reason_spec:seconds_lost", "Time lost against the target alone.")
        self._discarded = self._labelled("reason_spec:discarded_tokens", "Tokens discarded.", "engine")
        self._shed = self._labelled("reason_spec:shed_requests", "Refusals by reason.", "what")
        self._versions = self._labelled(
            "reason_spec:draft_versions", "Versions tried, by outcome.", "outcome"
        )
        self._predicted_calls = self._labelled(
            "reason_spec:predicted_calls",
            "Predicted calls sent to a client.",
            "tool",
        )
        self._right_calls = self._labelled(
            "reason_spec:predicted_calls_made", "Of these, calls that the model then made.", "tool"
        )
        self._read_only_calls = self._labelled(
            "reason_spec:read_only_calls", "Calls of the model to tools that only read.", "tool"
        )
        self._tools: set[str] = set()
        self._responses = self._labelled("reason_spec:http_responses", "Responses.", "path", "status")

    def observe(self, end: ChatEnd, *, seconds: float, first_token: float | None = None) -> None:
        """Count a whole answer.

        Args:
            seconds: from the arrival of the request to the end of the answer.
            first_token: from its arrival to the first token; None if the answer was sent as a whole.
        """
        report = end.report
        self._prompt.inc(end.num_prompt_tokens)
        self._generated.inc(end.num_tokens)
        self._queries.inc(end.num_prompt_tokens)
        self._hits.inc(end.num_cached_tokens)
        self._drafts.inc(sum(report.target_usage.acceptance_histogram))
        self._drafted.inc(report.target_usage.num_drafted_tokens)
        self._accepted.inc(report.target_usage.num_accepted_draft_tokens)
        histogram = report.target_usage.acceptance_histogram
        for position in range(len(histogram) - 1):
            self._by_position.labels(self._model, str(position)).inc(sum(histogram[position + 1 :]))
        self._success.labels(self._model, end.finish).inc()
        self._whole.observe(seconds)
        if first_token is not None:
            self._first.observe(first_token)
            if end.num_tokens > 1:
                self._between.observe((seconds - first_token) / (end.num_tokens - 1))
        for origin, number in report.steps_by_origin.items():
            self._steps.labels(self._model, origin).inc(number)
        for decision, number in report.verdicts.items():
            self._verdicts.labels(self._model, decision).inc(number)
        self._late.inc(report.num_late_drafts)
        if report.early_exit is not None:
            self._exits.labels(self._model, report.early_exit.rule).inc()
        self._probe_tokens.inc(report.num_probe_tokens)
        for engine, usage in (("target", report.target_usage), ("draft", report.draft_usage)):
            self._discarded.labels(self._model, engine).inc(usage.num_discarded_tokens)
        if report.target_alone_seconds is not None:
            saved = report.target_alone_seconds - report.seconds
            self._timed.inc(report.seconds)
            (self._saved if saved > 0 else self._lost).inc(abs(saved))

    def watch(self, queue: Admission) -> None:
        """Show how many answers run and wait."""
        self._gauge("vllm:num_requests_running", "Answers being written.", lambda: queue.num_running)
        self._gauge("vllm:num_requests_waiting", "Requests in the queue.", lambda: queue.num_waiting)

    def watch_controller(self, read: Callable[[], LoadController | None]) -> None:
        """Show what the load controller decided; NaN if there is none."""

        def mode() -> float:
            controller = read()
            return math.nan if controller is None else MODES.index(controller.mode)

        def num_changes() -> float:
            controller = read()
            return math.nan if controller is None else controller.num_mode_changes

        self._gauge("reason_spec:speculation_mode", "0 target alone, 1 draft tokens, 2 draft steps.", mode)
        self._gauge("reason_spec:speculation_mode_changes", "Changes of the speculation mode.", num_changes)
        seconds = Gauge(
            "reason_spec:speculation_mode_seconds", "Time with answers, by speculation mode.",
            ["model_name", "mode"], registry=self.registry,
        )  # fmt: skip
        for name in MODES:

            def seconds_in(name: SpeculationMode = name) -> float:
                controller = read()
                return math.nan if controller is None else controller.seconds_in_mode[name]

            seconds.labels(self._model, name).set_function(seconds_in)

    def watch_sessions(self, count: Callable[[], int]) -> None:
        """Show how many named sessions are known."""
        self._gauge("reason_spec:sessions", "Named sessions that have not ended.", count)

    def watch_adaptation(self, adaptation: DraftAdaptation) -> None:
        """Show which version of the draft is used."""
        text = "Version of the draft; 0 is the draft itself."
        self._gauge("reason_spec:draft_version", text, lambda: adaptation.version)

    def draft_tried(self, outcome: Outcome) -> None:
        """Count a version of the draft that was tried."""
        self._versions.labels(self._model, outcome).inc()

    def calls_predicted(self, calls: Iterable[Call]) -> None:
        """Count calls that are sent to a client before the model writes them."""
        for call in calls:
            self._predicted_calls.labels(self._model, self._tool_label(call.name)).inc()

    def calls_made(self, calls: Iterable[Call], predicted: Iterable[Call]) -> None:
        """Count calls to tools that only read, and those of them that were predicted."""
        for call in calls:
            self._read_only_calls.labels(self._model, self._tool_label(call.name)).inc()
        for call in predicted:
            self._right_calls.labels(self._model, self._tool_label(call.name)).inc()

    def shed(self, what: Shed) -> None:
        """Count a refusal of `Admission`."""
        self._shed.labels(self._model, what).inc()

    def waited(self, seconds: float) -> None:
        """Record the queue time of a request."""
        self._queued.observe(seconds)

    def responded(self, path: str, status: int) -> None:
        """Count a response; ``path`` is one of a closed list, which bounds the number of labels."""
        self._responses.labels(self._model, path, str(status)).inc()

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model)

    def _tool_label(self, name: str) -> str:
        """Return the label of a tool; clients choose the names, and the number of labels is bounded."""
        if len(self._tools) < _MAX_TOOLS:
            self._tools.add(name)
        return name if name in self._tools else "other"

    def _labelled(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ["model_name", *labels], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        found = Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets)
        return found.labels(self._model)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(name, text, ["model_name"], registry=self.registry).labels(self._model).set_function(read)
