"""Training batches: a curriculum of problems and drills, encoded and packed by length."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reason_spec.pair.generator import Example, make_drill, make_problem
from reason_spec.pair.tokenizer import END_TOKEN, chat_prompt
from reason_spec.pair.wording import Wording

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORED = -100
"""Label of a token that is not learnt: the question and the padding."""
POOL_BATCHES = 16
"""Batches in a pool: rows are sorted by length within one pool."""
_EXAMPLES_AT_ONCE = 64
_LENGTH_MULTIPLE = 32
_MAX_ROW_TOKENS = 640


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the curriculum, in force until ``until`` of the training is done.

    ``arithmetic`` and ``recall`` are the shares of drills; ``longer`` is the share of problems
    with one or two operations more than ``operations`` allows.
    """

    until: float
    operations: tuple[int, int]
    arithmetic: float
    recall: float
    longer: float
    batch_tokens: int


CURRICULUM = (
    Stage(0.12, (1, 2), arithmetic=0.25, recall=0.15, longer=0.05, batch_tokens=4096),
    Stage(0.40, (1, 4), arithmetic=0.10, recall=0.05, longer=0.05, batch_tokens=4096),
    Stage(0.70, (1, 6), arithmetic=0.04, recall=0.02, longer=0.04, batch_tokens=4096),
    Stage(1.00, (1, 6), arithmetic=0.03, recall=0.02, longer=0.04, batch_tokens=8192),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and labels, both [rows, length]; labels are shifted: they name the next token."""

    inputs: Tensor
    labels: Tensor

    @property
    def num_tokens(self) -> int:
        return self.inputs.numel()


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: list[int]
    num_prompt_tokens: int


def stage_at(progress: float) -> Stage:
    return next((stage for stage in CURRICULUM if progress < stage.until), CURRICULUM[-1])


def _draw_example(rng: Random, stage: Stage, seed: int, index: int, wording: Wording) -> Example:
    choice = rng.random()
    if choice < stage.arithmetic:
        return make_drill("arithmetic", seed, index, wording=wording)
    if choice < stage.arithmetic + stage.recall:
        return make_drill("recall", seed, index, wording=wording)
    low, high = stage.operations
    span = (high + 1, high + 2) if rng.random() < stage.longer else (low, high)
    return make_problem("train", seed, index, operations=span, wording=wording)


def _encode(examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> list[_Row]:
    backend = tokenizer.backend_tokenizer
    # A padded call of the tokenizer, as in decoding, leaves its padding switched on in the backend.
    backend.no_padding()
    prompts = backend.encode_batch_fast([chat_prompt(example.question) for example in examples])
    solutions = backend.encode_batch_fast([example.solution + END_TOKEN for example in examples])
    rows = [_Row(p.ids + s.ids, len(p.ids)) for p, s in zip(prompts, solutions, strict=True)]
    return [row for row in rows if len(row.tokens) <= _MAX_ROW_TOKENS]


def _pack(rows: list[_Row], pad: int) -> Batch:
    longest = max(len(row.tokens) for row in rows)
    length = -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    inputs = torch.full((len(rows), length), pad)
    labels = torch.full((len(rows), length), IGNORED)
    for i, row in enumerate(rows):
        tokens = torch.tensor(row.tokens)
        inputs[i, : len(tokens)] = tokens
        labels[i, row.num_prompt_tokens - 1 : len(tokens) - 1] = tokens[row.num_prompt_tokens :]
    return Batch(inputs, labels)


def make_pool(
    tokenizer: PreTrainedTokenizerFast, seed: int, pool: int, progress: float, wording: Wording
) -> list[Batch]:
    """Make pool number ``pool``: about ``POOL_BATCHES`` batches in random order.

    The result depends on the arguments alone, so a resumed run sees the rows it would have seen.
    Rows are padded on the right: with causal attention a token never sees the padding behind it.
    """
    rng = Random(f"pool/{seed}/{pool}")
    stage = stage_at(progress)
    wanted, rows = POOL_BATCHES * stage.batch_tokens, list[_Row]()
    index = pool * 1_000_000
    while sum(len(row.tokens) for row in rows) < wanted:
        examples = [_draw_example(rng, stage, seed, index + i, wording) for i in range(_EXAMPLES_AT_ONCE)]
        index += len(examples)
        rows += _encode(examples, tokenizer)
    rows.sort(key=lambda row: len(row.tokens))
    assert tokenizer.pad_token_id is not None
    batches: list[Batch] = []
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * len(rows[end].tokens) <= stage.batch_tokens:
            end += 1
        batches.append(_pack(rows[start:end], int(tokenizer.pad_token_id)))
        start = end
    rng.shuffle(batches)
    return batches
