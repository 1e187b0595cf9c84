"""The plugin in real ``vllm serve`` processes, with OpenAI's client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from json_under_drafts import accepted_drafts, check, make_cases

from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.pair import embedded_path
from reason_spec.pair.generator import problems
from tests.engines.serving import Serving, vllm_serve, wait_until_ready

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"),
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).parents[2]
MODEL = "m"
QUESTIONS = [problem.question for problem in islice(problems("test", 5), 2)]
NUM_SCHEMAS = 20
SPECULATIVE = {
    "method": "custom_class",
    "model": "reason_spec.vllm_plugin.proposer.Proposer",
    "num_speculative_tokens": 12,
}
THINKING_TOKENS = {"þ": "<think>", "ÿ": "</think>", "ý": "<tool_call>", "ü": "</tool_call>"}
"""Bytes that no text in UTF-8 has, and what they become."""
PROMPT_END = (
    "{%- if add_generation_prompt -%}{%- if enable_thinking is defined and enable_thinking -%}"
    "{{- '<think>\n' -}}{%- else -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{%- endif -%}"
)


class Servers(NamedTuple):
    plain: Serving
    drafting: Serving
    log: Path
    """What the drafting server printed."""


def thinking_copy(folder: Path) -> Path:
    """Copy the demonstration draft, the faster model, with the tokens that vLLM's reasoning parser needs."""
    shutil.copytree(embedded_path("draft"), folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    for byte, token in THINKING_TOKENS.items():
        number = tokenizer["model"]["vocab"].pop(byte)
        tokenizer["model"]["vocab"][token] = number
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        tokenizer["added_tokens"].append({"id": number, "content": token, **flags})
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with (folder / "chat_template.jinja").open("a", encoding="utf-8") as template:
        template.write(PROMPT_END)
    return folder


def installed_plugin(folder: Path) -> Path:
    """Write what an installation writes for our entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    information = folder / "reason_spec-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: reason-spec\nVersion: 0.1.0\n")
    lines = ["[vllm.general_plugins]"]
    lines += [f"{name} = {value}" for name, value in project["entry-points"]["vllm.general_plugins"].items()]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("plugin")
    model = thinking_copy(folder / "model")
    path = f"{installed_plugin(folder / 'installed')}:{ROOT}"
    arguments = ["--served-model-name", MODEL, "--reasoning-parser", "qwen3", "--structured-outputs-config"]
    arguments.append(json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}))
    drafting = ["--speculative-config", json.dumps(SPECULATIVE)]
    drafting += ["--additional-config", json.dumps({"reason_spec": {"max_bytes": 1 << 24}})]
    logs = folder / "plain.log", folder / "drafting.log"
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", path)
        started = [
            stack.enter_context(vllm_serve(log, model, *arguments, *more))
            for log, more in zip(logs, ([], drafting), strict=True)
        ]
        for serving, log in zip(started, logs, strict=True):
            wait_until_ready(serving, log)
        yield Servers(started[0], started[1], logs[1])


def client(serving: Serving) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=serving.url, api_key="none", timeout=300)


def ask(serving: Serving, question: str, *, temperature: float = 0.0, **more: Any) -> tuple[str, list[int]]:
    """Return the text of an answer and its tokens."""
    body = {"return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False}, **more}
    answer = client(serving).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=temperature,
        top_p=0.9 if temperature else 1.0,
        max_tokens=300,
        extra_body=body,
    )
    choice = answer.choices[0]
    return choice.message.content, choice.token_ids


def test_tokens_are_those_without_drafts_and_a_second_answer_has_more_drafts_accepted(
    servers: Servers,
) -> None:
    for question in QUESTIONS:
        expected = ask(servers.plain, question)
        accepted = []
        for _ in range(2):
            before = accepted_drafts(servers.drafting.url)
            assert ask(servers.drafting, question) == expected
            after = accepted_drafts(servers.drafting.url)
            assert 0 <= after[1] - before[1] <= after[0] - before[0]
            accepted.append(after[1] - before[1])
        assert accepted[1] > accepted[0]
        assert accepted[1] > len(expected[1]) // 2


def test_a_request_may_turn_drafts_off_or_draft_from_texts_of_its_owner_alone(servers: Servers) -> None:
    question = QUESTIONS[0]
    expected = ask(servers.drafting, question)

    def drafts(**options: Any) -> tuple[int, int]:
        """Return the draft tokens of an answer with these options, and how many were accepted."""
        before = accepted_drafts(servers.drafting.url)
        assert ask(servers.drafting, question, vllm_xargs=options) == expected
        after = accepted_drafts(servers.drafting.url)
        return after[0] - before[0], after[1] - before[1]

    assert drafts(reason_spec_draft_tokens=0) == (0, 0)
    first, second = (drafts(reason_spec_owner="a") for _ in range(2))
    assert second[1] > first[1]
    assert drafts(reason_spec_owner="b") == first


def test_samples_with_top_p_are_drawn_under_drafts(servers: Servers) -> None:
    """vLLM's CPU build ends here unless the plugin repairs it."""
    seen = {ask(servers.drafting, QUESTIONS[0], temperature=1.0)[0] for _ in range(3)}
    assert len(seen) > 1


def test_the_log_names_the_model_runner_and_what_was_loaded(servers: Servers) -> None:
    log = servers.log.read_text(errors="replace")
    assert "on the older (V1) model runner, vllm.v1.worker.cpu_model_runner.CPUModelRunner" in log
    assert "Failed to load plugin" not in log
    assert "reason-spec repairs nothing" not in log
    assert "expand_batch_to_tokens is replaced" in log
    assert "drafts nothing" not in log


def test_vllm_finds_the_entry_point_and_is_repaired_without_the_proposer(tmp_path: Path) -> None:
    code = (
        "from vllm.plugins import load_general_plugins\n"
        "load_general_plugins()\n"
        "from vllm.v1.sample import rejection_sampler\n"
        "print(rejection_sampler.expand_batch_to_tokens.__module__)\n"
    )
    path = f"{installed_plugin(tmp_path)}:{ROOT}"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "VLLM_PLUGINS": "reason_spec"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "reason_spec.engines.vllm.repairs"


def test_the_newer_model_runner_still_refuses_the_method() -> None:
    """Once it takes a custom class, the plugin must be tested on it."""
    from vllm.config import VllmConfig

    config = SimpleNamespace(
        speculative_config=SimpleNamespace(method="custom_class", parallel_drafting=False),
        parallel_config=SimpleNamespace(
            distributed_executor_backend="mp", pipeline_parallel_size=1, use_ubatching=False
        ),
    )
    refused = VllmConfig._get_v2_model_runner_unsupported_features(config)
    assert refused == ["speculative method 'custom_class'"]


@pytest.mark.parametrize("thinking_budget", [None, 20])
async def test_json_under_drafts_is_that_without_and_satisfies_its_schema(
    servers: Servers, thinking_budget: int | None
) -> None:
    cases = make_cases(NUM_SCHEMAS, seed=3)
    report = await check(
        servers.plain.url, servers.drafting.url, cases, thinking_budget=thinking_budget, concurrency=4
    )
    assert report.failures == {}
    assert report.num_answers == 3 * NUM_SCHEMAS
    assert report.num_accepted > NUM_SCHEMAS
