"""A draft that drafts inside the target's engine goes to the target, with a strategy that it can serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.bundle import create_engines
from reason_spec.accelerator.engine_drafter import (
    engine_drafter,
    only_drafts_tokens,
    with_drafter,
    with_fitting_strategy,
)
from reason_spec.errors import EngineError
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.pair import embedded_path
from reason_spec.settings import load_settings


def head_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    return folder


def test_self_and_a_head_are_found_by_the_name_of_the_draft(tmp_path: Path) -> None:
    head = str(head_in(tmp_path / "head"))
    assert engine_drafter(load_settings()) is None
    for name in ("self", head):
        settings = with_fitting_strategy(load_settings(flags={"draft.model": name}))
        assert settings.strategy.name == "self_speculative"
        assert with_drafter(settings).drafter == name


def test_what_is_no_head_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "missing")):
        with pytest.raises(EngineError, match="holds no draft head"):
            create_engines(load_settings(flags={"target.drafter": name}), ("self_speculative",))


def test_a_named_strategy_is_kept_and_refused_where_it_needs_a_model_that_writes() -> None:
    settings = load_settings(flags={"draft.model": "self", "strategy.name": "lookahead"})
    assert with_fitting_strategy(settings).strategy.name == "lookahead"
    with pytest.raises(EngineError, match="use strategy self_speculative"):
        create_engines(settings, ("lookahead",))


def test_vllm_gets_a_head_as_its_eagle3_method(tmp_path: Path) -> None:
    head = str(head_in(tmp_path / "head"))
    of_vllm = with_drafter(load_settings(flags={"draft.model": head, "target.kind": "vllm"})).vllm
    assert of_vllm.token_method == "eagle3"
    assert of_vllm.arguments["speculative_config"] == {"model": head}
    with pytest.raises(EngineError, match="cannot"):
        with_drafter(load_settings(flags={"draft.model": "self", "target.kind": "vllm"}))


def test_vllm_gets_a_draft_model_that_drafts_inside_it_as_its_own_method() -> None:
    settings = load_settings(flags={"target.drafter": "embedded", "target.kind": "vllm"})
    of_vllm = with_drafter(settings).vllm
    assert (of_vllm.token_method, of_vllm.draft_tokens) == ("draft_model", 3)
    assert of_vllm.arguments["speculative_config"] == {"model": str(embedded_path("draft"))}
    assert with_fitting_strategy(settings).strategy.name == "self_speculative"
    # The same model may write steps beside it, in an engine of its own.
    both = load_settings(
        flags={"target.drafter": "embedded", "draft.model": "embedded", "target.kind": "vllm"}
    )
    assert with_fitting_strategy(both).strategy.name == "lookahead"
    assert not only_drafts_tokens(both)
    named = load_settings(
        flags={"target.drafter": "Qwen/Qwen3-0.6B", "target.kind": "vllm", "target.vllm.draft_tokens": 8}
    )
    assert with_drafter(named).vllm.arguments["speculative_config"] == {"model": "Qwen/Qwen3-0.6B"}
    assert with_drafter(named).vllm.draft_tokens == 8


def test_a_head_beside_a_draft_model_drafts_tokens_and_the_model_steps(tmp_path: Path) -> None:
    head = str(head_in(tmp_path / "head"))
    beside = with_fitting_strategy(load_settings(flags={"target.drafter": head, "draft.model": "embedded"}))
    assert beside.strategy.name == "lookahead"
    engines = create_engines(beside, ("lookahead",))
    assert engines.draft is not None
    assert engines.target.drafts_itself
    alone = with_fitting_strategy(load_settings(flags={"target.drafter": head}))
    assert alone.strategy.name == "self_speculative"
    of_vllm = with_drafter(load_settings(flags={"target.drafter": head, "target.kind": "vllm"})).vllm
    assert of_vllm.token_method == "eagle3"


@pytest.mark.parametrize(
    ("strategy", "drafter"), [("lookahead", "self"), ("lookahead", "head"), ("hybrid", "head")]
)
async def test_steps_of_a_draft_model_and_tokens_of_the_target_itself_write_the_targets_answer(
    strategy: str, drafter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if drafter == "head":
        target = str(embedded_path("target"))
        HeadStudent(target, target, None, torch.device("cpu")).save(tmp_path)
    flags = {
        "target.drafter": str(tmp_path) if drafter == "head" else drafter,
        "draft.model": "embedded",
        "strategy.name": strategy,
        "strategy.planner": False,
        "verifier.name": "exact" if strategy == "lookahead" else "auto",
        "sampling.max_tokens": 64,
    }
    question = "Ana has 12 apples and buys 4 more. How many?"
    async with Accelerator.from_settings(load_settings(flags=flags)) as accelerator:
        both = await accelerator.answer(question)
        alone = await accelerator.answer(question, strategy="autoregressive")
    assert both.recorder.num_proposed_steps > 0
    if strategy == "lookahead":
        assert both.text == alone.text


async def test_a_target_that_drafts_itself_answers_as_it_does_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = load_settings(flags={"draft.model": "self", "sampling.max_tokens": 48})
    question = "Ana has 12 apples and buys 4 more. How many?"
    async with Accelerator.from_settings(settings) as accelerator:
        drafted = await accelerator.answer(question)
        alone = await accelerator.answer(question, strategy="autoregressive")
    assert drafted.strategy == "self_speculative"
    assert drafted.text == alone.text
