"""Models and servers that the tests of wrappers and recipes share."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reason_spec.integrations.base import InProcess
from tests.server.processes import ServeProcess, serving
from tests.tools_ahead.some_conversations import messages_of

# Before any framework is imported: none may report to its makers or fetch lists.
os.environ |= {
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel."""
PICTURE_URL = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
SCRIPT = Path(__file__).parent / "script.yaml"


@pytest.fixture(scope="session")
def models() -> Iterator[InProcess]:
    """The script, drafted and checked."""
    scripted: dict[str, Any] = {"target__kind": "scripted", "draft__kind": "scripted"}
    with InProcess(
        target__model=str(SCRIPT), draft__model=str(SCRIPT), verifier__name="exact", **scripted
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A script that thinks before it answers."""
    script = tmp_path_factory.mktemp("thinker") / "thinks.yaml"
    script.write_text('{answers: {"?": "Hm.\\n</think>\\n\\nYes."}, thinking: true}')
    with InProcess(
        target__model=str(script), target__kind="scripted", strategy__name="autoregressive"
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def pair() -> Iterator[InProcess]:
    """The demonstration pair."""
    with InProcess(sampling__max_tokens=64, strategy__planner=False, load_control__use="off") as opened:
        yield opened


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The script behind a server."""
    options = ["--target", str(SCRIPT), "--strategy", "autoregressive", "--set", "target.kind=scripted"]
    with serving(*options, cwd=tmp_path_factory.mktemp("scripted")) as server:
        yield server


@pytest.fixture(scope="session")
def shop_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A model behind a server that says what the agent of the shop's conversation 70 says."""
    folder = tmp_path_factory.mktemp("shop")
    script = folder / "shop.json"
    script.write_text(json.dumps({"answers": shop_script(70), "seconds_per_pass": 0.01}))
    options = ["--target", str(script), "--strategy", "autoregressive", "--set", "target.kind=scripted"]
    with serving(*options, cwd=folder) as server:
        yield server


def shop_script(number: int) -> list[dict[str, str]]:
    """Return the answers of the agent in a conversation of the shop; smolagents wants a call as the last."""
    messages = messages_of(number)
    script = []
    for heard, said in zip(messages[1::2], messages[2::2], strict=True):
        functions = [one["function"] for one in said.get("tool_calls", ())]
        calls = [written_call(one["name"], json.loads(one["arguments"])) for one in functions]
        script.append({"match": heard["content"], "answer": "\n".join(calls) or said["content"]})
    last = script[-1]
    answer = written_call("final_answer", {"answer": last["answer"]})
    return [*script, {"match": f"Observation:\n{last['match']}", "answer": answer}]


def written_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as most models write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="session")
def pair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The demonstration pair behind a server."""
    with serving("--max-tokens", "64", cwd=tmp_path_factory.mktemp("pair")) as server:
        yield server
