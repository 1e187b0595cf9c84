"""Calls in drafted steps reach the listener before the target writes them; the answer is the target's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from reason_spec.chat.base import CallListener, ToolCallDelta
from reason_spec.chat.call_forms import HERMES, QWEN3_CODER
from reason_spec.chat.drafted_calls import WholeCall, calls_in
from reason_spec.chat.preparing import OfferedTools
from reason_spec.integrations.base import InProcess, chat_request
from reason_spec.tools_ahead.held import AheadLimits
from reason_spec.tools_ahead.sessions import SpeculativeTools

TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PARIS, ROME = WholeCall("temperature", {"city": "Paris"}), WholeCall("temperature", {"city": "Rome"})


def written(call: WholeCall) -> str:
    body = {"name": call.name, "arguments": call.arguments}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A target that needs some time for each token, and a draft that is right about Paris alone."""
    folder = tmp_path_factory.mktemp("pair")
    says = {"Paris?": written(PARIS), "Oslo?": written(ROME), "Hello": "Hello."}
    drafts = {**says, "Oslo?": written(PARIS)}
    (folder / "target.json").write_text(json.dumps({"answers": says, "seconds_per_pass": 0.02}))
    (folder / "draft.json").write_text(json.dumps({"answers": drafts}))
    with InProcess(
        target__model=str(folder / "target.json"),
        target__kind="scripted",
        draft__model=str(folder / "draft.json"),
        draft__kind="scripted",
        verifier__name="exact",
        strategy__planner=False,
        suffix__use="none",
    ) as opened:
        yield opened


def request(question: str, listener: CallListener | None, **options: Any) -> Any:
    options = {"loss_class": "verified", "tools": [TOOL], **options}
    return chat_request([{"role": "user", "content": question}], {**options, "on_drafted_call": listener})


@pytest.mark.parametrize(("question", "drafted", "made"), [("Paris?", PARIS, PARIS), ("Oslo?", PARIS, ROME)])
def test_a_drafted_call_comes_before_the_targets(
    models: InProcess, question: str, drafted: WholeCall, made: WholeCall
) -> None:
    order: list[Any] = []
    asked = request(question, lambda *call: order.append(WholeCall(*call)))
    deltas: list[ToolCallDelta] = []
    for event in models.stream(asked):
        if isinstance(event, ToolCallDelta):
            order.append(event)
            deltas.append(event)
    assert order[0] == drafted
    assert order.count(drafted) == 1
    assert json.loads("".join(delta.arguments for delta in deltas)) == made.arguments


def test_the_listener_gets_nothing_without_drafted_steps_or_without_a_call(models: InProcess) -> None:
    drafted: list[Any] = []
    listener: CallListener = lambda *call: drafted.append(call)  # noqa: E731
    models.chat(request("Paris?", listener, loss_class="exact", off=True))
    models.chat(request("Hello", listener))
    assert drafted == []


def test_a_listener_that_fails_does_not_hurt_the_answer(
    models: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, arguments: Any) -> None:
        raise RuntimeError("out of order")

    with caplog.at_level(logging.ERROR):
        (call,) = models.chat(request("Paris?", fail)).tool_calls
    assert json.loads(call.arguments) == PARIS.arguments
    assert "a drafted call of temperature was not taken" in caplog.text


def test_a_drafted_call_runs_while_the_target_writes_it(models: InProcess) -> None:
    served: list[str] = []

    def temperature(city: str) -> str:
        served.append(city)
        return f"{city}: 21"

    with SpeculativeTools(
        {"temperature": temperature}, read_only=["temperature"], limits=AheadLimits(threshold=0.5)
    ) as tools:
        for question, num_used, all_served in (
            ("Paris?", 1, ["Paris"]),
            # Drafted and not made: the chance falls below the threshold after it.
            ("Oslo?", 0, ["Paris", "Paris", "Rome"]),
            ("Oslo?", 0, ["Paris", "Paris", "Rome", "Paris", "Rome"]),
            ("Oslo?", 0, ["Paris", "Paris", "Rome", "Paris", "Rome", "Rome"]),
        ):
            with tools.session() as session:
                session.follow([{"role": "user", "content": question}])
                (made,) = models.chat(request(question, session.expect)).tool_calls
                # All that was expected has begun.
                tools.predicting.submit(lambda: None).result()
                result = session.call(made.name, json.loads(made.arguments))
                assert result == f"{json.loads(made.arguments)['city']}: 21"
                assert session.report.num_used == num_used
            assert sorted(served) == sorted(all_served)


@pytest.mark.parametrize("is_whole", [True, False])
def test_only_whole_calls_of_any_form_are_found(is_whole: bool) -> None:
    coder = (
        "<tool_call>\n<function=temperature>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    )
    for form, text in ((HERMES, written(ROME)), (QWEN3_CODER, coder)):
        text = f"I look.\n{text}" if is_whole else text[: text.index("Rome") + 2]
        found = list(calls_in(text, OfferedTools((TOOL,), form, parallel=True, is_forced=False)))
        assert found == ([ROME] if is_whole else [])


def test_a_draft_that_writes_brackets_for_ever_has_no_call() -> None:
    text = f'<tool_call>\n{{"name": "temperature", "arguments": {{"city": {"[" * 3000}\n</tool_call>'
    assert list(calls_in(text, OfferedTools((TOOL,), HERMES, parallel=True, is_forced=False))) == []
