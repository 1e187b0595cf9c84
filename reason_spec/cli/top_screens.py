"""The figures of ``top``: of the time between two looks at a server, and since its start."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from reason_spec.control.load_controller import MODES

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The samples of ``/metrics`` at one time, in monotonic seconds."""

    at: float
    model: str
    samples: tuple[tuple[str, dict[str, str], float], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text format of Prometheus."""
        from prometheus_client.parser import text_string_to_metric_families

        samples = tuple(
            (sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )
        model = next((labels["model_name"] for _, labels, _ in samples if "model_name" in labels), "")
        return cls(time.monotonic(), model, samples)

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all samples that have these labels; 0 if there are none."""
        return sum(
            value for found, has, value in self.samples if found == name and labels.items() <= has.items()
        )


class Change:
    """What happened between two looks; ``before`` is None: since the server started."""

    def __init__(self, before: Snapshot | None, now: Snapshot) -> None:
        self._now = now
        # After a restart between the looks, all that it counted happened between them.
        self._before = None if before is None or has_restarted(before, now) else before
        self.seconds = math.nan if before is None else now.at - before.at

    def of(self, name: str, **labels: str) -> float:
        before = 0.0 if self._before is None else self._before.total(name, **labels)
        return self._now.total(name, **labels) - before

    def mean(self, histogram: str) -> float | None:
        return _ratio(self.of(f"{histogram}_sum"), self.of(f"{histogram}_count"))

    def figures(self) -> dict[str, float | None]:
        """Return every figure by its name; None where nothing happened that it could be of."""
        saved = self.of("reason_spec:seconds_saved_total") - self.of("reason_spec:seconds_lost_total")
        gain = _ratio(saved, self.of("reason_spec:answer_seconds_total"))
        accepted = self.of("vllm:spec_decode_num_accepted_tokens_total")
        verdicts = self.of("reason_spec:verdicts_total")
        steps = self.of("reason_spec:steps_total")
        tokens = self.of("vllm:generation_tokens_total")
        discarded = self.of("reason_spec:discarded_tokens_total")
        made = self.of("reason_spec:predicted_calls_made_total")
        return {
            "answers": self.of("vllm:request_success_total"),
            "refused": self.of("reason_spec:shed_requests_total"),
            "tokens": tokens,
            "tokens_per_second": _ratio(tokens, self.seconds),
            "first_token_seconds": self.mean("vllm:time_to_first_token_seconds"),
            "seconds_between_tokens": self.mean("vllm:inter_token_latency_seconds"),
            "answer_seconds": self.mean("vllm:e2e_request_latency_seconds"),
            "speed_up": None if gain is None else 1 + gain,
            "draft_tokens_accepted": _ratio(accepted, self.of("vllm:spec_decode_num_draft_tokens_total")),
            "accepted_tokens_per_pass": _ratio(accepted, self.of("vllm:spec_decode_num_drafts_total")),
            "draft_steps_accepted": _ratio(
                self.of("reason_spec:verdicts_total", decision="accept"), verdicts
            ),
            **{
                f"steps_by_{origin}": _ratio(self.of("reason_spec:steps_total", origin=origin), steps)
                for origin in ("target", "draft", "cache")
            },
            "tokens_discarded": _ratio(discarded, tokens + discarded),
            "prompt_tokens_cached": _ratio(
                self.of("vllm:prefix_cache_hits_total"), self.of("vllm:prefix_cache_queries_total")
            ),
            "mode_changes": self.of("reason_spec:speculation_mode_changes"),
            "predicted_calls_made": _ratio(made, self.of("reason_spec:predicted_calls_total")),
            "read_only_calls_predicted": _ratio(made, self.of("reason_spec:read_only_calls_total")),
        }


def has_restarted(before: Snapshot, now: Snapshot) -> bool:
    """Return whether a counter fell, which only a restart of the server makes it do."""
    names = {name for name, _, _ in before.samples if name.endswith(("_total", "_count"))}
    return any(now.total(name) < before.total(name) for name in names)


def _ratio(part: float, whole: float) -> float | None:
    """Return a share or a mean; None where there is nothing to divide by, or no controller (NaN)."""
    return part / whole if whole > 0 and math.isfinite(part) else None


def mode_of(snapshot: Snapshot) -> str | None:
    """Return the mode of the load controller; None if there is none yet."""
    index = snapshot.total("reason_spec:speculation_mode")
    return None if math.isnan(index) else MODES[int(index)]


def figures_of(before: Snapshot | None, now: Snapshot) -> dict[str, object]:
    """Return what ``--json`` prints: the state, and the figures of `Change`."""
    figures = Change(before, now).figures()
    return {
        "model": now.model,
        "running": int(now.total("vllm:num_requests_running")),
        "waiting": int(now.total("vllm:num_requests_waiting")),
        "sessions": int(now.total("reason_spec:sessions")),
        "mode": mode_of(now),
        **{name: value if value is None or math.isfinite(value) else None for name, value in figures.items()},
    }


_ROWS = (
    ("answers", "Answers", "{:.0f}"),
    ("refused", "Refused requests", "{:.0f}"),
    ("tokens_per_second", "Tokens a second", "{:.1f}"),
    ("tokens", "Tokens", "{:.0f}"),
    ("first_token_seconds", "Time to the first token (streams)", "{:.2f} s"),
    ("seconds_between_tokens", "Between tokens", "{:.3f} s"),
    ("answer_seconds", "Time of an answer", "{:.2f} s"),
    ("speed_up", "Speed-up over the target alone", "{:.2f}x"),
    ("draft_tokens_accepted", "Draft tokens accepted", "{:.1%}"),
    ("accepted_tokens_per_pass", "Accepted tokens a pass", "{:.2f}"),
    ("draft_steps_accepted", "Draft steps accepted", "{:.1%}"),
    ("steps_by_target", "Steps by the target", "{:.1%}"),
    ("steps_by_draft", "Steps by the draft", "{:.1%}"),
    ("steps_by_cache", "Steps by the suffix cache", "{:.1%}"),
    ("tokens_discarded", "Tokens discarded", "{:.1%}"),
    ("prompt_tokens_cached", "Prompt tokens in the prefix cache", "{:.1%}"),
    ("mode_changes", "Changes of the speculation mode", "{:.0f}"),
    ("predicted_calls_made", "Predicted calls that were made", "{:.1%}"),
    ("read_only_calls_predicted", "Calls to read-only tools that were predicted", "{:.1%}"),
)


def table_of(before: Snapshot | None, now: Snapshot) -> Table:
    """Return the table of one look, with the time since the look before beside all time."""
    from rich.table import Table

    state = figures_of(None, now)
    modes = {None: "not decided", "none": "target alone", "tokens": "draft tokens", "steps": "draft steps"}
    load = f"{state['running']} running, {state['waiting']} waiting, {state['sessions']} sessions"
    title = f"{now.model}: {load}; speculation: {modes[mode_of(now)]}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = [("since the start", Change(None, now).figures())]
    if before is not None:
        change = Change(before, now)
        columns.insert(0, (f"last {change.seconds:.0f} s", change.figures()))
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    for name, label, form in _ROWS:
        values = [figures[name] for _, figures in columns]
        shown = ["-" if value is None or math.isnan(value) else form.format(value) for value in values]
        table.add_row(label, *shown)
    return table
