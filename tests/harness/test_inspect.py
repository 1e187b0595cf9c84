"""Inspect: the accelerator as one of its models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

inspect_ai = pytest.importorskip("inspect_ai")
pytestmark = pytest.mark.harness

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolCall, tool
from inspect_ai.util import json_schema

from reason_spec.errors import RequestError, SettingsError
from reason_spec.evaluation.sources import generate_problems
from reason_spec.integrations.base import InProcess
from reason_spec.integrations.inspect_ai import ReasonSpecAPI
from tests.server.processes import ROOT

SCRIPT = ROOT / "tests" / "integrations" / "script.yaml"
WEATHER = "How warm is it in Paris?"


@pytest.fixture(scope="module")
def scripted() -> Iterator[InProcess]:
    kinds: dict[str, Any] = {"target__kind": "scripted", "draft__kind": "scripted"}
    with InProcess(
        target__model=str(SCRIPT), draft__model=str(SCRIPT), verifier__name="exact", **kinds
    ) as opened:
        yield opened


def test_the_pair_answers_a_task_found_by_its_name(tmp_path: Path) -> None:
    """As a user runs it: the provider is found by its entry point, in a process of its own."""
    problems = generate_problems("validation", 4, 0).problems
    records = [{"id": item.id, "input": item.question, "target": item.answer} for item in problems]
    (tmp_path / "problems.json").write_text(json.dumps(records))
    (tmp_path / "sums.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import json_dataset\n"
        "from inspect_ai.scorer import match\n"
        "from inspect_ai.solver import generate\n\n"
        "@task\ndef sums():\n"
        "    return Task(json_dataset('problems.json'), solver=generate(), scorer=match(numeric=True))\n"
    )
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "inspect"), "eval", "sums.py",
            "--model", "reason-spec/embedded", "-M", "strategy=lookahead",
            "-M", "strategy__planner=false", "--max-tokens", "256", "--display", "none",
            "--log-dir", "logs", "--log-format", "json",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    (file,) = (tmp_path / "logs").glob("*.json")
    log = read_eval_log(str(file))
    assert log.status == "success"
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value > 0.5
    tokens = 0
    for sample in log.samples or []:
        report = (sample.output.metadata or {})["reason_spec"]
        assert report["strategy"] == "lookahead"
        assert report["steps_by_origin"].keys() <= {"draft", "target", "cache"}
        assert sum(report["steps_by_origin"].values()) > 0
        assert sample.output.usage is not None
        assert 0 < sample.output.usage.output_tokens <= 256
        tokens += sample.output.usage.output_tokens
    assert log.stats.model_usage["reason-spec/embedded"].output_tokens == tokens


def evaluate(models: InProcess, tmp_path: Path, *solvers: Any, question: str, **options: Any) -> EvalLog:
    task = Task([Sample(input=question, target="21")], solver=[*solvers, generate()], scorer=match("any"))
    model = get_model("reason-spec/embedded", models=models, memoize=False)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", **options)
    return log


def test_a_tool_is_called_and_its_result_read(scripted: InProcess, tmp_path: Path) -> None:
    @tool
    def temperature() -> Any:
        async def execute(city: str) -> str:
            """Measure the temperature.

            Args:
                city: where.
            """
            return f"{city}: 21 degrees, measured at noon"

        return execute

    log = evaluate(scripted, tmp_path, use_tools(temperature()), question=WEATHER)
    assert log.status == "success", log.error
    assert log.samples is not None
    assert log.samples[0].output.completion == "It is 21 degrees in Paris."
    assert [message.role for message in log.samples[0].messages] == ["user", "assistant", "tool", "assistant"]


async def test_stops_limits_and_policies_are_honoured(scripted: InProcess) -> None:
    model = get_model("reason-spec/embedded", models=scripted, memoize=False)
    question = "How many apples does Ben have?"
    stopped = await model.generate(question, config=GenerateConfig(stop_seqs=["Ben"]))
    assert stopped.completion == "Ana has 12 apples.\n\n"
    cut = await model.generate(question, config=GenerateConfig(max_tokens=3))
    assert cut.stop_reason == "max_tokens"
    assert cut.usage is not None
    assert cut.usage.output_tokens == 3
    alone = await model.generate(question, config=GenerateConfig(extra_body={"strategy": "autoregressive"}))
    assert (alone.metadata or {})["reason_spec"]["strategy"] == "autoregressive"
    assert alone.completion == (await model.generate(question)).completion


def test_limits_of_the_thinking_reach_the_model(scripted: InProcess) -> None:
    model = ReasonSpecAPI("embedded", models=scripted)
    config = GenerateConfig(reasoning_tokens=50, reasoning_effort="low")
    request = model._request([ChatMessageUser(content="?")], [], "none", config)
    assert (request.sampling.thinking_token_budget, request.reasoning_effort) == (50, "low")


@pytest.mark.parametrize("logprobs", [True, False])
def test_wanted_log_probabilities_are_part_of_the_request(scripted: InProcess, logprobs: bool) -> None:
    model = ReasonSpecAPI("embedded", models=scripted)
    config = GenerateConfig(logprobs=logprobs)
    assert model._request([ChatMessageUser(content="?")], [], "none", config).logprobs == logprobs


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_choices", 2),
        ("frequency_penalty", 0.5),
        ("best_of", 3),
        ("reasoning_summary", "auto"),
        ("top_logprobs", 3),
        ("extra_body", {"no_such": 1}),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_name(
    field: str, value: Any, scripted: InProcess
) -> None:
    model = ReasonSpecAPI("embedded", models=scripted)
    config = GenerateConfig(**{field: value})
    with pytest.raises(RequestError, match=field if field != "extra_body" else "no_such"):
        await model.generate([ChatMessageUser(content="?")], [], "none", config)


def test_messages_and_schemas_reach_the_model_in_its_form(scripted: InProcess) -> None:
    call = ToolCall(id="c1", function="temperature", arguments={"city": "Paris"})
    messages = [
        ChatMessageUser(content=WEATHER),
        ChatMessageAssistant(content="I look.", tool_calls=[call]),
        ChatMessageTool(content="21", tool_call_id="c1", function="temperature"),
    ]
    schema = ResponseSchema(name="degrees", json_schema=json_schema(int))
    model = ReasonSpecAPI("embedded", models=scripted, depth=3)
    request = model._request(messages, [], "none", GenerateConfig(response_schema=schema, temperature=0.5))
    assert [turn["role"] for turn in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1]["tool_calls"][0]["function"] == {
        "name": "temperature",
        "arguments": '{"city": "Paris"}',
    }
    assert request.constraint is not None
    assert (request.constraint.json_schema, request.sampling.temperature, request.policy.depth) == (
        '{"type": "integer"}', 0.5, 3,
    )  # fmt: skip


def test_arguments_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting .*no_such"):
        ReasonSpecAPI("embedded", strategy__no_such=1)
    with pytest.raises(SettingsError, match="base_url"):
        ReasonSpecAPI("embedded", base_url="http://localhost:1/v1")
