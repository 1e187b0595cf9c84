"""The weights in the package: they load, they know the problems, and their absence is explained."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from reason_spec import pair
from reason_spec.errors import DataError
from reason_spec.pair import embedded_path
from reason_spec.pair.decoding import parse_answer, solve_greedily
from reason_spec.pair.generator import problems
from reason_spec.pair.model import SHAPES
from reason_spec.pair.tokenizer import build_tokenizer


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_weights_load_unchanged_with_transformers(role: Literal["target", "draft"]) -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_path(role), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(embedded_path(role))
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert model.config.num_hidden_layers == SHAPES[role].layers
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_target_solves_problems_it_has_never_seen() -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(embedded_path("target"), dtype=torch.float32)
    chosen = list(islice(problems("test", 11, operations=(1, 3)), 24))
    texts = solve_greedily(model, build_tokenizer(), [problem.question for problem in chosen])
    right = sum(parse_answer(text) == problem.answer for text, problem in zip(texts, chosen, strict=True))
    assert right >= 12


def test_every_layer_of_the_target_does_work() -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_path("target"), dtype=torch.float32)
    for layer in model.model.layers:
        assert layer.self_attn.o_proj.weight.abs().max() > 0
        assert layer.mlp.down_proj.weight.abs().max() > 0


def test_both_models_share_one_tokenizer() -> None:
    files = [(embedded_path(role) / "tokenizer.json").read_bytes() for role in ("target", "draft")]
    assert files[0] == files[1]


def test_missing_weights_are_reported_with_their_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "_FOLDER", tmp_path)
    with pytest.raises(DataError, match=r"has no weights at .* --model draft"):
        embedded_path("draft")
    weights = tmp_path / "weights" / "draft" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    with pytest.raises(DataError, match="too small"):
        embedded_path("draft")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, reason_spec.pair, reason_spec.pair.generator; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
