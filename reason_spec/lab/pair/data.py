"""Training batches: a curriculum of problems, drills and turns, encoded and packed by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from reason_spec.lab.pair.turns import (
    Turn,
    check_turns,
    correct_turns,
    follow_up_turns,
    judge_turns,
    score_turns,
)
from reason_spec.pair.generator import Example, make_drill, make_problem
from reason_spec.pair.tokenizer import END_TOKEN, chat_prompt, next_question
from reason_spec.pair.wording import Wording

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Phase: TypeAlias = Literal["solving", "judging", "settling"]
"""The phases of a training: solve, then, for the judge, learn to judge, then both together."""
POOL_BATCHES = 16
"""Batches in a pool: rows are sorted by length within one pool."""
_EXAMPLES_AT_ONCE = 64
_LENGTH_MULTIPLE = 32
_MAX_ROW_TOKENS = 896
_TURN_WEIGHT = 12.0
"""Weight of a token of a score or a judgement, to balance the many tokens of a solution."""
_EXPECTED_WEIGHT = 0.5
"""Weight of a token of the version of a step that is judged."""
_JUDGEMENTS = 6
"""Judgements in one conversation."""
NOT_JUDGED, SOUND, FLAWED, FLAW = -1.0, 0.0, 1.0, 2.0
_TURNS_FROM = 0.3
"""Share of the training after which scores, judgements, checks and corrections begin."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the curriculum, up to the share ``until`` of the training; others are shares of drills."""

    until: float
    operations: tuple[int, int]
    arithmetic: float
    recall: float
    batch_tokens: int


CURRICULUM = (
    Stage(0.06, (1, 2), arithmetic=0.30, recall=0.25, batch_tokens=2048),
    Stage(0.15, (1, 3), arithmetic=0.20, recall=0.10, batch_tokens=2048),
    Stage(0.40, (1, 5), arithmetic=0.08, recall=0.04, batch_tokens=4096),
    Stage(1.00, (1, 8), arithmetic=0.03, recall=0.03, batch_tokens=4096),
)


@dataclass(frozen=True, slots=True)
class Mix:
    """The rows of one model besides plain problems, as shares of all rows.

    ``scores``, ``judged``, ``corrected`` and ``checked`` are conversations with scores, with judgements, with
    a correction and with a check. ``followed`` is the share of the other solutions that more questions
    follow. ``two_sources`` multiplies operations on two quantities in half of the problems.
    """

    scores: float = 0.03
    judged: float = 0.02
    corrected: float = 0.05
    checked: float = 0.02
    followed: float = 0.0
    two_sources: float = 1.0


MIXES: Mapping[Wording, Mix] = {
    "target": Mix(scores=0.06, judged=0.03, followed=0.4, two_sources=4.0),
    "draft": Mix(),
}
"""Only the target practises to look up a number far back, which a small model learns last."""
JUDGING = Mix(scores=0.35, judged=0.3, corrected=0.1, checked=0.02, followed=0.3, two_sources=4.0)
"""The rows while the last layers learn to judge."""
SETTLING = Mix(scores=0.1, judged=0.08, followed=0.4, two_sources=4.0)
"""The rows after that, so that the model solves as well as before."""
_JUDGING_BATCH_TOKENS = 2048
_MOST_FOLLOW_UPS = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids, labels and their weights, all [rows, length].

    Labels are shifted: they name the next token. Weight 0 marks what is not in the loss: questions, wrong
    steps and padding. ``flaws`` are not shifted: `NOT_JUDGED`, `SOUND`, `FLAW` where the first mistake of a
    judged text shows, and `FLAWED` after it.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    flaws: Tensor

    @property
    def num_tokens(self) -> int:
        return self.inputs.numel()


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    weight: float
    flawed_from: int | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: list[int]
    weights: list[float]
    flaws: list[float]


def stage_at(progress: float) -> Stage:
    return next((stage for stage in CURRICULUM if progress < stage.until), CURRICULUM[-1])


def _conversation(question: str, turns: Sequence[Turn], weight: float = 1.0) -> list[_Piece]:
    pieces = [_Piece(turn.text, weight * turn.in_loss, turn.flawed_from) for turn in turns]
    return [_Piece(chat_prompt(question), 0.0), *pieces, _Piece(END_TOKEN, 1.0)]


def _draw_row(
    rng: Random, progress: float, seed: int, index: int, wording: Wording, mix: Mix
) -> list[_Piece]:
    stage = stage_at(progress)
    choice = rng.random()
    if choice < stage.arithmetic:
        drill = make_drill("arithmetic", seed, index)
        return _conversation(drill.question, [Turn(drill.solution, in_loss=True)])
    if choice < stage.arithmetic + stage.recall:
        drill = make_drill("recall", seed, index, wording=wording, bystanders=mix.followed > 0)
        return _with_follow_ups(drill, rng, wording, share=min(1.0, 2 * mix.followed))
    two_sources = mix.two_sources if rng.random() < 0.5 else 1.0
    example = make_problem(
        "train", seed, index, operations=stage.operations, wording=wording, two_sources=two_sources
    )
    choice = rng.random() if progress >= _TURNS_FROM else 1.0
    if (choice := choice - mix.scores) < 0:
        return _conversation(example.question, score_turns(example, rng), _TURN_WEIGHT)
    if (choice := choice - mix.judged) < 0:
        return _judgements([judge_turns(example, rng) for _ in range(_JUDGEMENTS)])
    if (choice := choice - mix.corrected) < 0:
        return _conversation(example.question, correct_turns(example, rng))
    if choice < mix.checked:
        return _conversation(example.question, check_turns(example, rng))
    return _with_follow_ups(example, rng, wording, mix.followed)


def _with_follow_ups(example: Example, rng: Random, wording: Wording, share: float) -> list[_Piece]:
    turns = [Turn(example.solution, in_loss=True)]
    if share and rng.random() < share:
        turns += follow_up_turns(example, rng.randint(1, _MOST_FOLLOW_UPS), rng, wording)
    return _conversation(example.question, turns)


def _judgements(asked: Sequence[Sequence[Turn]]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for number, (first, version, rest, answer) in enumerate(asked):
        opening, closing = (chat_prompt if number == 0 else next_question)("\0").split("\0")
        flawed_from = 0 if rest.flawed_from == 0 else len(rest.text + closing)
        pieces.append(_Piece(opening + first.text, 0.0))
        pieces.append(_Piece(version.text, _EXPECTED_WEIGHT, version.flawed_from))
        pieces.append(_Piece(rest.text + closing, 0.0, flawed_from))
        pieces.append(_Piece(answer.text, _TURN_WEIGHT))
    return [*pieces, _Piece(END_TOKEN, 1.0)]


def _flaws(offsets: Sequence[tuple[int, int]], flawed_from: int | None) -> list[float]:
    if flawed_from is None:
        return [NOT_JUDGED] * len(offsets)
    num_sound = sum(end <= flawed_from for _, end in offsets)
    num_flawed = len(offsets) - num_sound
    return [SOUND] * num_sound + ([FLAW] + [FLAWED] * (num_flawed - 1) if num_flawed else [])


def _encode(rows: Sequence[Sequence[_Piece]], tokenizer: PreTrainedTokenizerFast) -> list[_Row]:
    backend = tokenizer.backend_tokenizer
    # A padded call of the tokenizer, as in decoding, leaves its padding switched on in the backend.
    backend.no_padding()
    encoded = iter(backend.encode_batch([part.text for row in rows for part in row]))
    result: list[_Row] = []
    for row in rows:
        tokens: list[int] = []
        weights: list[float] = []
        flaws: list[float] = []
        for part in row:
            found = next(encoded)
            tokens += found.ids
            weights += [part.weight] * len(found.ids)
            flaws += _flaws(found.offsets, part.flawed_from)
        if len(tokens) <= _MAX_ROW_TOKENS:
            result.append(_Row(tokens, weights, flaws))
    return result


def _pack(rows: Sequence[_Row], pad: int) -> Batch:
    longest = max(len(row.tokens) for row in rows)
    length = -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    inputs = torch.full((len(rows), length), pad)
    labels = torch.full((len(rows), length), pad)
    weights = torch.zeros((len(rows), length))
    flaws = torch.full((len(rows), length), NOT_JUDGED)
    for i, row in enumerate(rows):
        tokens = torch.tensor(row.tokens)
        inputs[i, : len(tokens)] = tokens
        labels[i, : len(tokens) - 1] = tokens[1:]
        weights[i, : len(tokens) - 1] = torch.tensor(row.weights[1:])
        flaws[i, : len(tokens)] = torch.tensor(row.flaws)
    return Batch(inputs, labels, weights, flaws)


def make_pool(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    pool: int,
    progress: float,
    wording: Wording,
    phase: Phase = "solving",
) -> list[Batch]:
    """Make pool number ``pool``: about ``POOL_BATCHES`` batches in random order.

    In the phase ``judging`` most rows are scores and judgements, in smaller batches. The result depends on
    the arguments alone. Rows are padded on the right, where causal attention never sees the padding.
    """
    rng = Random(f"pool/{seed}/{pool}")
    mix = {"solving": MIXES[wording], "judging": JUDGING, "settling": SETTLING}[phase]
    batch_tokens = _JUDGING_BATCH_TOKENS if phase == "judging" else stage_at(progress).batch_tokens
    wanted, rows = POOL_BATCHES * batch_tokens, list[_Row]()
    index = pool * 1_000_000
    while sum(len(row.tokens) for row in rows) < wanted:
        drawn = [_draw_row(rng, progress, seed, index + i, wording, mix) for i in range(_EXAMPLES_AT_ONCE)]
        index += len(drawn)
        rows += _encode(drawn, tokenizer)
    rows.sort(key=lambda row: len(row.tokens))
    assert tokenizer.pad_token_id is not None
    batches: list[Batch] = []
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * len(rows[end].tokens) <= batch_tokens:
            end += 1
        batches.append(_pack(rows[start:end], int(tokenizer.pad_token_id)))
        start = end
    rng.shuffle(batches)
    return batches
