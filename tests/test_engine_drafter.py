"""A draft that drafts inside the target's engine goes to the target, with a strategy that it can serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.bundle import create_engines
from reason_spec.accelerator.engine_drafter import engine_drafter, with_drafter, with_fitting_strategy
from reason_spec.errors import EngineError
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
        assert with_drafter(settings).torch.drafter == name


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
