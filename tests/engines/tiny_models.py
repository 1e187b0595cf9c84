"""Tiny random models of several architectures, and schedulers that serve them in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reason_spec.engines.constraints import BackgroundCompiler, ConstraintCompiler
from reason_spec.engines.generation import EngineRequest, GenerationResult, Score
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.engines.torch.layout import PassLayout, Row
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler

EOS = "<|end|>"
_MERGES = ("ĊĊ", ".ĊĊ", "Ġt", "he", "Ġthe", "12", "123", "ï¸", "Ã©")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|start|>' + message.role + '\n' + message.content + '<|end|>' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|start|>assistant\n' }}{%- endif -%}"
)


def byte_level_tokenizer() -> Any:
    """A byte-level BPE of some 270 tokens, as transformers saves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for merged in _MERGES:
        cut = next(i for i in range(1, len(merged)) if merged[:i] in pieces and merged[i:] in pieces)
        merges.append((merged[:cut], merged[cut:]))
        pieces.append(merged)
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        additional_special_tokens=["<|start|>"],
        chat_template=CHAT_TEMPLATE,
    )
    wrapped.add_tokens(["<think>"])
    return wrapped


_BASE = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def model_config(kind: str) -> Any:
    """A tiny configuration of an architecture."""
    import transformers as tf

    match kind:
        case "qwen3":
            return tf.Qwen3Config(**_BASE)
        case "qwen3-wide":
            return tf.Qwen3Config(**(_BASE | {"head_dim": 32}))
        case "llama":
            return tf.LlamaConfig(**_BASE)
        case "llama-dynamic":
            scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
            return tf.LlamaConfig(**_BASE, rope_parameters=scaled)
        case "llama-gelu":
            return tf.LlamaConfig(**_BASE, hidden_act="gelu")
        case "llama-scaled-biased":
            scaled = {
                "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            }  # fmt: skip
            return tf.LlamaConfig(**_BASE, rope_parameters=scaled, attention_bias=True, mlp_bias=True)
        case "qwen2":
            return tf.Qwen2Config(**_BASE)
        case "qwen2-sliding":
            return tf.Qwen2Config(**_BASE, use_sliding_window=True, sliding_window=12, max_window_layers=1)
        case "gpt2":
            return tf.GPT2Config(
                vocab_size=272, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3,
                bos_token_id=None, eos_token_id=None,
            )  # fmt: skip
        case "mistral-sliding":
            return tf.MistralConfig(**_BASE, sliding_window=12)
        case "gemma2-sliding-softcap":
            return tf.Gemma2Config(
                **_BASE, sliding_window=12, query_pre_attn_scalar=8, attn_logit_softcapping=5.0
            )
        case "mixtral":
            return tf.MixtralConfig(**_BASE, num_local_experts=4, num_experts_per_tok=2)
        case "mamba":
            return tf.MambaConfig(
                vocab_size=272, hidden_size=16, state_size=4, num_hidden_layers=1,
                bos_token_id=None, eos_token_id=None, pad_token_id=None,
            )  # fmt: skip
        case "bloom":
            return tf.BloomConfig(vocab_size=272, hidden_size=32, n_layer=2, n_head=4)
        case "t5":
            return tf.T5Config(vocab_size=272, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
        case "lfm2":
            return tf.Lfm2Config(**_BASE, full_attn_idxs=[1])
    raise AssertionError(kind)


def save_model(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write a random model of an architecture, with its tokenizer."""
    import transformers as tf

    torch.manual_seed(seed)
    config = model_config(kind)
    factory = tf.AutoModelForSeq2SeqLM if kind == "t5" else tf.AutoModelForCausalLM
    model = factory.from_config(config)
    with torch.no_grad():
        # New models have biases of zero and norms of one, which would hide what is done with them.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    return folder


@dataclass
class Served:
    """A model as the worker serves it, and the same weights as transformers runs them."""

    model: Model
    tokenizer: HuggingFaceTokenizer
    reference: Any

    def scheduler(self, num_slots: int = 2048, **options: Any) -> Scheduler:
        """A new scheduler that checks its books after every step."""
        options.setdefault("prefill_chunk", 64)
        options.setdefault("constraints", self.constraints)
        return Scheduler(self.model, self.tokenizer, num_slots=num_slots, debug=True, **options)

    @cached_property
    def constraints(self) -> BackgroundCompiler:
        return BackgroundCompiler(lambda: ConstraintCompiler(self.tokenizer, self.model.vocab_size))

    def generate(self, prompt: Iterable[int], max_new_tokens: int) -> tuple[int, ...]:
        """What transformers' own generation writes, greedy."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            output = self.reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                eos_token_id=sorted(self.tokenizer.eos_ids),
                pad_token_id=0,
            )
        return tuple(output[0, ids.shape[1] :].tolist())

    def logits(self, tokens: Iterable[int]) -> torch.Tensor:
        """The plain forward's logits, [tokens, vocabulary]."""
        with torch.inference_mode():
            result: torch.Tensor = self.reference(torch.tensor([list(tokens)])).logits[0]
        return result


Results = dict[int, GenerationResult | Score | str]


def drain(scheduler: Scheduler, max_steps: int = 5000) -> Results:
    """Step until nothing is left to do."""
    results: Results = {}
    for _ in range(max_steps):
        if not scheduler.has_work:
            return results
        results.update(scheduler.step().results)
    raise AssertionError("the scheduler makes no progress")


def write(scheduler: Scheduler, request: EngineRequest, number: int = 0) -> GenerationResult:
    """Run one request alone to its end."""
    scheduler.submit(number, request)
    result = drain(scheduler)[number]
    assert isinstance(result, GenerationResult)
    return result


NUM_PROMPTS = 6
LENGTH = 24


@cache
def prompt(index: int) -> tuple[int, ...]:
    """Prompts 0 to 2 begin alike, as branches of one problem do; the others are unrelated."""
    rng = np.random.default_rng(100 + index)
    shared = np.random.default_rng(5).integers(0, 260, 30)
    own = rng.integers(0, 260, 4 + 3 * index)
    return tuple(int(t) for t in (np.concatenate([shared, own]) if index < 3 else own))


def spoiled(tokens: tuple[int, ...], place: int) -> tuple[int, ...]:
    """The tokens with one of them replaced."""
    place %= len(tokens)
    return (*tokens[:place], (tokens[place] + 1) % 260, *tokens[place + 1 :])


class Counting:
    """Counts how often each token is run, by the text that ends with it as attention sees it."""

    def __init__(self, served: Served) -> None:
        self._model = served.model
        self.vocab_size, self.max_context = served.model.vocab_size, served.model.max_context
        self.num_run = 0
        self.layouts: list[PassLayout] = []
        self.times_run: Counter[tuple[int, ...]] = Counter()
        self._token_in: dict[int, int] = {}

    def run(self, layout: PassLayout) -> torch.Tensor:
        self.num_run += len(layout.tokens)
        self.layouts.append(layout)
        self._token_in.update(zip(layout.slots, layout.tokens, strict=True))
        for block in layout.blocks:
            for row in block.rows:
                self.times_run.update(self._texts(row))
        return self._model.run(layout)

    def _texts(self, row: Row) -> Iterator[tuple[int, ...]]:
        num_entries, num_columns = row.num_entries, len(row.columns)
        causal = np.tri(num_entries, num_columns, num_columns - num_entries, dtype=np.bool_)
        for seen in causal if row.mask is None else row.mask:
            ordered = row.columns[seen][np.argsort(row.column_positions[seen])]
            yield tuple(self._token_in[slot] for slot in ordered.tolist())
