"""Fixtures that make each tiny model once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch.load import load_model
from reason_spec.settings import EngineSettings
from tests.engines.tiny_models import LENGTH, NUM_PROMPTS, Served, prompt, save_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder_of(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_model(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder_of


@pytest.fixture(scope="session")
def serve(model_folder: Callable[[str], Path]) -> Callable[[str], Served]:
    import transformers as tf

    torch.set_num_threads(1)
    served: dict[str, Served] = {}

    def serve_kind(kind: str) -> Served:
        if kind not in served:
            folder = model_folder(kind)
            reference = tf.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            )
            served[kind] = Served(
                load_model(EngineSettings(model=str(folder), cache_tokens=2048, dtype="float32")),
                load_tokenizer(str(folder)),
                reference.eval(),
            )
        return served[kind]

    return serve_kind


@pytest.fixture(scope="session")
def qwen(serve: Callable[[str], Served]) -> Served:
    return serve("qwen3")


@pytest.fixture(scope="session")
def expected(qwen: Served) -> list[tuple[int, ...]]:
    return [qwen.generate(prompt(index), LENGTH) for index in range(NUM_PROMPTS)]
