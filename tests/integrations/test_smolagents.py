"""smolagents' own agents over the models in process."""

from __future__ import annotations

import pytest

pytest.importorskip("smolagents")
pytestmark = pytest.mark.agents

from smolagents import ChatMessage, CodeAgent, MessageRole, Tool, ToolCallingAgent
from smolagents.models import agglomerate_stream_deltas

from reason_spec.integrations.base import InProcess
from reason_spec.integrations.smolagents import ReasonSpecModel
from tests.integrations.test_in_process import SOLUTION, WARM, WEATHER

APPLES = [
    ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "How many apples does Ben have?"}])
]


class Temperature(Tool):
    name = "temperature"
    description = "Says how warm it is in a city."
    inputs = {"city": {"type": "string", "description": "its name"}}
    output_type = "string"

    def forward(self, city: str) -> str:
        return f"{city}: 21 degrees, measured at noon"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_that_calls_tools_completes_its_loop(models: InProcess, streamed: bool) -> None:
    model = ReasonSpecModel(models)
    agent = ToolCallingAgent([Temperature()], model, verbosity_level=0, stream_outputs=streamed)
    run = agent.run(WEATHER, return_full_result=True)
    assert (run.output, run.state) == (WARM, "success")
    assert run.token_usage.output_tokens > 0


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_that_writes_code_stops_where_it_has_to(models: InProcess, streamed: bool) -> None:
    agent = CodeAgent([Temperature()], ReasonSpecModel(models), verbosity_level=0, stream_outputs=streamed)
    assert agent.run("Which city is asked about in code?") == WARM


def test_text_is_the_same_streamed_and_not(models: InProcess) -> None:
    model = ReasonSpecModel(models, seed=1)
    whole = model.generate(APPLES)
    pieces = agglomerate_stream_deltas(list(model.generate_stream(APPLES)))
    assert whole.content == pieces.content == SOLUTION
    assert whole.token_usage == pieces.token_usage
    assert whole.raw.end.report.strategy == "lookahead"


def test_a_call_may_have_options_and_stops_of_its_own(models: InProcess) -> None:
    message = ReasonSpecModel(models).generate(APPLES, stop_sequences=["12 + 5"], strategy="autoregressive")
    assert message.content == "Ana has 12 apples.\n\nBen has 5 more, so "
    assert message.raw.end.report.strategy == "autoregressive"
