"""Inspect: runs exported as its logs, and the accelerator as one of its models."""

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
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
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

from reason_spec.errors import DataError, RequestError, SettingsError
from reason_spec.evaluation.metrics import measure
from reason_spec.evaluation.sources import generate_problems
from reason_spec.integrations.base import InProcess
from reason_spec.integrations.inspect_ai import ReasonSpecAPI
from reason_spec.lab.inspect_log import StoredRun, export_run, log_of
from tests.evaluation.problems import build_world
from tests.server.processes import ROOT, command, environment

SCRIPT = ROOT / "tests" / "integrations" / "script.yaml"
WEATHER = "How warm is it in Paris?"


def run_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


# Logs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six problems, two strategies and two samples, by the scripted models."""
    folder = tmp_path_factory.mktemp("solved")
    world = build_world(folder, 6)
    solved = run_command(
        *world.arguments(
            "--compare", "autoregressive,lookahead", "--samples", "2", "--output", "run", "--quiet"
        ),
        cwd=folder,
    )
    assert solved.returncode == 0, solved.stderr
    return folder / "run"


@pytest.mark.parametrize("form", ["eval", "json"])
def test_an_exported_log_says_what_the_run_says(form: str, run_folder: Path, tmp_path: Path) -> None:
    run = StoredRun.read(run_folder)
    (file,) = export_run(run, tmp_path / f"log.{form}", "lookahead")
    log = read_eval_log(str(file))
    answers = {
        (outcome.id, outcome.sample): outcome for outcome in run.outcomes if outcome.strategy == "lookahead"
    }
    assert (log.status, log.eval.model, log.eval.config.epochs) == (
        "success",
        f"reason-spec/{run.settings.target.model}",
        2,
    )
    assert log.samples is not None
    assert {(sample.id, sample.epoch - 1) for sample in log.samples} == answers.keys()
    for sample in log.samples:
        outcome = answers[str(sample.id), sample.epoch - 1]
        (score,) = (sample.scores or {}).values()
        assert score.value == ("C" if outcome.correct else "I")
        assert (score.answer, sample.target) == (outcome.prediction, outcome.answer)
        assert sample.output.completion == outcome.response
        assert sample.messages[-1].text == outcome.response
        assert outcome.question in sample.messages[0].text
        assert sample.total_time == outcome.seconds
        assert [step["origin"] for step in sample.metadata["steps"]] == [
            step.origin for step in outcome.steps
        ]
        assert sample.metadata["alpha_step"] == outcome.alpha_step
        work = sample.model_usage[log.eval.model]
        assert work.output_tokens == outcome.usage.target.num_generated_tokens
    used = log.stats.model_usage[log.eval.model]
    assert used.output_tokens == sum(
        outcome.usage.target.num_generated_tokens for outcome in answers.values()
    )


def test_the_logs_accuracy_is_the_reports(run_folder: Path) -> None:
    run = StoredRun.read(run_folder)
    for row in measure(run.outcomes, run.strategies).strategies:
        log = log_of(run, row.strategy)
        assert log.results is not None
        assert row.accuracy is not None
        (score,) = log.results.scores
        assert score.metrics["accuracy"].value == pytest.approx(row.accuracy.value)
        assert 0 < score.metrics["stderr"].value < 1


def test_the_command_writes_a_log_for_each_strategy_that_inspect_lists_and_dumps(
    run_folder: Path, tmp_path: Path
) -> None:
    done = run_command("export", str(run_folder), "--inspect", "logs", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert len(files) == len(list_eval_logs(str(tmp_path / "logs"))) == 2
    dumped = subprocess.run(
        [str(Path(sys.executable).parent / "inspect"), "log", "dump", files[0]],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert dumped.returncode == 0, dumped.stderr
    assert json.loads(dumped.stdout)["eval"]["tags"] == ["reason-spec", "autoregressive"]
    again = run_command("export", str(run_folder), "--inspect", "logs", cwd=tmp_path)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert (
        run_command("export", str(run_folder), "--inspect", "logs", "--force", cwd=tmp_path).returncode == 0
    )


def test_what_cannot_be_exported_is_refused(run_folder: Path, tmp_path: Path) -> None:
    run = StoredRun.read(run_folder)
    with pytest.raises(SettingsError, match=r"2 strategies .*--strategy"):
        export_run(run, tmp_path / "one.eval")
    with pytest.raises(
        SettingsError, match="unknown strategy in this run 'lookahed'; did you mean 'lookahead'"
    ):
        export_run(run, tmp_path / "one.eval", "lookahed")
    with pytest.raises(DataError, match="holds no run"):
        StoredRun.read(tmp_path)


def test_a_run_that_is_not_over_is_a_cancelled_log(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "settings.yaml").write_bytes((run_folder / "settings.yaml").read_bytes())
    lines = (run_folder / "results.jsonl").read_text().splitlines(keepends=True)
    (copy / "results.jsonl").write_text("".join(lines[:13]))
    run = StoredRun.read(copy)
    assert log_of(run, run.outcomes[-1].strategy).status == "cancelled"


# The provider --------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_choices", 2),
        ("frequency_penalty", 0.5),
        ("best_of", 3),
        ("reasoning_effort", "high"),
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
