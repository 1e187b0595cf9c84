"""Tiny random process reward models, and what transformers says of a step by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen2Model,
)

from reason_spec.loading import LOADING
from tests.engines.tiny_models import byte_level_tokenizer

STEP_TOKEN = "<extra_0>"
_OWN_CODE = """
from torch import nn
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):
    config_class = Qwen2Config

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        size = config.hidden_size
        self.score = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, config.num_labels))
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, **kwargs)[0]
        return TokenClassifierOutput(logits=self.score(hidden))
"""


def _config(num_labels: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=288,
        # vLLM's attention on CPUs takes heads of 32 and more.
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        num_labels=num_labels,
    )


def _save_tokenizer(folder: Path, *, padded: bool = False) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([STEP_TOKEN], special_tokens=True)
    if padded:
        tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.save_pretrained(folder)


def save_sequence_classifier(folder: Path, num_labels: int) -> Path:
    torch.manual_seed(3)
    Qwen2ForSequenceClassification(_config(num_labels)).save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


def save_step_classifier(folder: Path, num_labels: int, *, padded: bool = True) -> Path:
    """Write a token classifier that transformers knows."""
    torch.manual_seed(4)
    Qwen2ForTokenClassification(_config(num_labels)).save_pretrained(folder)
    _save_tokenizer(folder, padded=padded)
    return folder


def save_process_reward_model(folder: Path) -> Path:
    """Write a model with code of its own, in the form of Qwen2.5-Math-PRM, which vLLM knows by name."""
    torch.manual_seed(5)
    config = _config(2)
    body, head = Qwen2Model(config), _head()
    config.architectures = ["Qwen2ForProcessRewardModel"]
    config.auto_map = {"AutoModel": "modeling_tiny_prm.Qwen2ForProcessRewardModel"}
    config.save_pretrained(folder)
    (folder / "modeling_tiny_prm.py").write_text(_OWN_CODE)
    weights = {f"model.{name}": weight for name, weight in body.state_dict().items()}
    weights |= {f"score.{name}": weight for name, weight in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _save_tokenizer(folder)
    return folder


def step_token_id(folder: Path) -> int:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return int(tokenizer.convert_tokens_to_ids(STEP_TOKEN))


def _head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def reward_at_last_step_token(folder: Path, question: str, answer: str) -> float:
    """The reward by the whole conversation, whose template goes on behind the step token."""
    ids, place = _conversation(folder, question, answer)
    with LOADING:
        module = Qwen2ForTokenClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return _chance(module(ids).logits[0, place])


def process_reward(folder: Path, question: str, answer: str) -> float:
    """The same of a model with code of its own, put together from its weights."""
    ids, place = _conversation(folder, question, answer)
    weights = load_file(folder / "model.safetensors")
    body, head = Qwen2Model(_config(2)).eval(), _head()
    for module, start in ((body, "model."), (head, "score.")):
        module.load_state_dict(
            {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}
        )
    with torch.inference_mode():
        return _chance(head(body(ids)[0])[0, place])


def outcome_reward(folder: Path, question: str, answer: str) -> float:
    """What a sequence classifier says of the whole conversation."""
    ids, _ = _conversation(folder, question, answer)
    with LOADING:
        module = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return _chance(module(ids).logits[0])


def _conversation(folder: Path, question: str, answer: str) -> tuple[torch.Tensor, int | None]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    shown = tokenizer.apply_chat_template(turns, tokenize=False)
    ids = tokenizer(shown, add_special_tokens=False).input_ids
    places = [place for place, token in enumerate(ids) if token == step_token_id(folder)]
    if places:
        assert places[-1] < len(ids) - 1, "the template is to go on behind the last step token"
    return torch.tensor([ids]), places[-1] if places else None


def _chance(logits: torch.Tensor) -> float:
    return float(logits.sigmoid() if len(logits) == 1 else logits.softmax(-1)[1])
