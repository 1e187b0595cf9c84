"""The tokenizer of the pair: byte-level BPE split as in Qwen, small, with digits one by one.

Every text can be encoded, since all 256 bytes are tokens. Every word of the problems is one token
with its leading space, and a full stop joins the blank line after it as in Qwen's vocabulary, so
that a step ends inside a token and not always at one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reason_spec.pair.wording import lexicon

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_TOKEN = "<|endoftext|>"
START_TOKEN = "<|im_start|>"
END_TOKEN = "<|im_end|>"
MAX_LENGTH = 2048
_ROLES = ("user", "assistant", "system")
_JOINED = (".\n", ".\n\n", "\n\n", "?\n")
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenizer; it splits numbers into digits."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer; the result is the same every time."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        special_tokens=[PAD_TOKEN, START_TOKEN, END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Merges stop by themselves once every word of this list is one token.
    tokenizer.train_from_iterator([*lexicon(), *_ROLES, *_JOINED], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=END_TOKEN,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def chat_prompt(question: str) -> str:
    """Return the text that the chat template makes of one question."""
    return f"{START_TOKEN}user\n{question}{END_TOKEN}\n{START_TOKEN}assistant\n"


def next_question(question: str) -> str:
    """Return the text that ends an answer and asks something more, up to where the next answer begins."""
    return f"{END_TOKEN}\n{chat_prompt(question)}"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return loaded
