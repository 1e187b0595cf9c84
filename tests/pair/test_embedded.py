"""The weights in the package: they load, they know the problems, and their absence is explained."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest
import torch
from scipy.stats import binomtest
from transformers import AutoModelForCausalLM, AutoTokenizer

from reason_spec import pair
from reason_spec.errors import DataError
from reason_spec.pair import embedded_path
from reason_spec.pair.decoding import complete, load_pair_model
from reason_spec.pair.generator import problems
from reason_spec.pair.model import SHAPES
from reason_spec.pair.tokenizer import build_tokenizer, chat_prompt


@pytest.mark.parametrize("role", ["target", "draft", "judge"])
def test_the_weights_load_unchanged_with_transformers(role: Literal["target", "draft", "judge"]) -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_path(role), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(embedded_path(role))
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert model.config.num_hidden_layers == SHAPES[role].layers
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def _rows_of_card(label: str) -> list[list[float]]:
    """Return the percentages of each row of the card's tables that begins with ``label``."""
    card = Path(pair.__file__).with_name("MODEL_CARD.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {label} \|.*\|$", card, re.MULTILINE)
    return [[float(share) / 100 for share in re.findall(r"([\d.]+)%", row)] for row in rows]


@pytest.mark.slow
def test_the_card_holds_on_problems_of_another_seed() -> None:
    torch.set_num_threads(1)
    chosen = list(islice(problems("test", 77), 32))
    ((*promised,), _) = _rows_of_card("all")
    roles: tuple[Literal["target", "draft"], ...] = ("target", "draft")
    for role, accuracy in zip(roles, promised, strict=True):
        loaded = load_pair_model(embedded_path(role))
        texts = complete(loaded, [chat_prompt(problem.question) for problem in chosen])
        num_right = sum(
            text.endswith(f"The answer is {problem.answer}.")
            for text, problem in zip(texts, chosen, strict=True)
        )
        assert binomtest(num_right, len(chosen), accuracy).pvalue > 0.001


def test_batched_decoding_equals_decoding_alone() -> None:
    torch.set_num_threads(1)
    loaded = load_pair_model(embedded_path("draft"))
    prompts = [chat_prompt(problem.question) for problem in islice(problems("test", 0), 5)]
    together = complete(loaded, prompts, max_new_tokens=12, batch_rows=3)
    assert together == [complete(loaded, [prompt], max_new_tokens=12)[0] for prompt in prompts]


def test_every_layer_of_the_target_does_work() -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_path("target"), dtype=torch.float32)
    for layer in model.model.layers:
        assert layer.self_attn.o_proj.weight.abs().max() > 0
        assert layer.mlp.down_proj.weight.abs().max() > 0


def test_all_models_share_one_tokenizer() -> None:
    files = [(embedded_path(role) / "tokenizer.json").read_bytes() for role in ("target", "draft", "judge")]
    assert files[0] == files[1] == files[2]


def test_missing_weights_are_reported_with_their_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "shipped_weights", lambda part: tmp_path)
    with pytest.raises(DataError, match=r"has no weights at .* --model draft"):
        embedded_path("draft")
    weights = tmp_path / "draft" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    with pytest.raises(DataError, match="too small"):
        embedded_path("draft")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, reason_spec.pair, reason_spec.pair.generator; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
