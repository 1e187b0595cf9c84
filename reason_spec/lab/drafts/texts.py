"""The target's answers, as texts that a draft is trained on (FastDraft, arXiv 2411.11055)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor

from reason_spec.accelerator.thinking import ThinkingOptions
from reason_spec.engines.chat_template import ChatOptions
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.errors import DataError, ResumeError
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.job import RunOptions, run_job
from reason_spec.evaluation.outcome import Outcome, StepRecord
from reason_spec.evaluation.prompts import messages_for
from reason_spec.evaluation.records import other_or_fresh
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import RESULTS, SETTINGS, read_outcomes, read_run_settings
from reason_spec.evaluation.view import RunView
from reason_spec.settings import Settings
from reason_spec.types import Problem

IGNORED: Final = -100
"""The label of a token without a loss, as `torch.nn.functional.cross_entropy` has it."""
_POOL = 256
"""Texts that are sorted by length before they are put into batches."""


@dataclass(frozen=True, slots=True)
class TrainingText:
    """A prompt and the target's answer to it, in the target's tokens."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def target_tokenizer(settings: Settings) -> HuggingFaceTokenizer:
    target = settings.target
    return load_tokenizer(resolve_model("target", target.model), target.revision, target.chat_template)


async def answered_texts(
    settings: Settings,
    sources: Sources,
    folder: Path,
    view: RunView,
    *,
    temperatures: Sequence[float],
    concurrency: int,
    samples: int,
) -> dict[float, list[TrainingText]]:
    """Let the target answer all problems once a temperature; return its answers. A stopped run continues.

    Args:
        folder: a run folder; see `run_folders`.

    Raises:
        DataError: the folder cannot be written, or no answer of a temperature has a token.
        EngineError: the target fails.
        ResumeError: the folder belongs to another run, or holds answers at a temperature that is not named.
    """
    texts = {}
    for temperature, place in run_folders(folder, temperatures).items():
        sampling = settings.sampling.model_copy(update={"temperature": temperature})
        own = settings.model_copy(update={"sampling": sampling})
        options = RunOptions((BASELINE,), samples, concurrency, place, num_retries=2, anew=_anew(place))
        await run_job(own, sources, options, view)
        # What was left out of the sources has been said.
        sources = replace(sources, bad_lines=(), notices=())
        found = texts_of(own, sources.problems, read_outcomes(place / RESULTS))
        if not found:
            raise DataError(f"{place}: the target wrote no token; give problems that it answers")
        # The order of answers depends on their lengths, which would sort what is held out.
        texts[temperature] = sorted(found, key=lambda text: (text.prompt, text.answer))
    return texts


def run_folders(folder: Path, temperatures: Sequence[float]) -> dict[float, Path]:
    """Return the run folder of each temperature.

    The temperature that was answered at first has ``folder``; the others have folders in it.

    Raises:
        ResumeError: its settings cannot be read, or its temperature is not among these.
    """
    remedy = other_or_fresh(anew=_anew(folder))
    earlier = read_run_settings(folder / SETTINGS, remedy)
    first = earlier["settings"]["sampling"]["temperature"] if earlier else temperatures[0]
    if first not in temperatures:
        raise ResumeError(
            f"{folder} holds answers at temperature {first:g}; give --temperature {first:g} as well. {remedy}"
        )
    return {each: folder if each == first else folder / f"temperature-{each}" for each in temperatures}


def _anew(folder: Path) -> str:
    # Training anew keeps the answers: they take the longest.
    return f"delete {folder} to have them written anew"


def texts_of(
    settings: Settings, problems: Iterable[Problem], outcomes: Iterable[Outcome]
) -> list[TrainingText]:
    """Return the target's own words in its answers, with the prompts that it got.

    Text that was inserted before its first word is part of the prompt. An answer ends where text was inserted
    later, since a draft is to learn from the target alone.
    """
    tokenizer = target_tokenizer(settings)
    options = ChatOptions(arguments=ThinkingOptions().chat_arguments({}, settings.thinking))
    prompts = {
        problem.id: tokenizer.encode_chat(messages_for(problem, settings), options) for problem in problems
    }
    texts = []
    for outcome in outcomes:
        before = tuple(takewhile(_is_inserted, outcome.steps))
        own = takewhile(lambda step: not _is_inserted(step), outcome.steps[len(before) :])
        answer = _tokens_of(own)
        if answer and outcome.id in prompts:
            texts.append(TrainingText(prompts[outcome.id] + _tokens_of(before), answer))
    return texts


def _is_inserted(step: StepRecord) -> bool:
    return step.origin == "inserted"


def _tokens_of(steps: Iterable[StepRecord]) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.token_ids)


def hold_out(
    texts: Sequence[TrainingText], share: float, seed: int = 0, most: int | None = None
) -> tuple[list[TrainingText], list[TrainingText]]:
    """Return the texts to train on, and those of a share of the prompts that are held out.

    Prompts are ranked by a hash, so that of more answers to other prompts much the same is held out.

    Args:
        most: prompts that are held out at most; None for any number.

    Raises:
        DataError: there is only one prompt.
    """

    def rank(prompt: tuple[int, ...]) -> bytes:
        return blake2b(f"{seed} {prompt}".encode()).digest()

    prompts = {text.prompt for text in texts}
    if len(prompts) < 2:
        raise DataError("training needs answers to two prompts at least: some are held out")
    number = max(1, round(share * len(prompts)))
    held = set(sorted(prompts, key=rank)[: number if most is None else min(number, most)])
    return [text for text in texts if text.prompt not in held], [
        text for text in texts if text.prompt in held
    ]


def frequent_tokens(texts: Iterable[TrainingText], always: Iterable[int], size: int, limit: int) -> list[int]:
    """Return the ``size`` tokens that a trimmed head keeps, ascending.

    These are ``always``, then the most frequent tokens of the texts, then the lowest ids: in a BPE vocabulary
    these are the first merges, which are frequent in any text.

    Args:
        limit: the size of the whole vocabulary.
    """
    counts = Counter(token for text in texts for token in (*text.prompt, *text.answer))
    wanted = dict.fromkeys((*always, *(token for token, _ in counts.most_common()), *range(limit)))
    return sorted(list(wanted)[: min(size, limit)])


class PaddedBatch(NamedTuple):
    """Tokens, labels and mask of some texts, each [texts, longest text].

    ``labels`` are the answers' tokens, and `IGNORED` elsewhere; ``mask`` is 0 where a text is padded.
    """

    tokens: Tensor
    labels: Tensor
    mask: Tensor

    @classmethod
    def of(cls, texts: Sequence[TrainingText]) -> Self:
        shape = len(texts), max(map(len, texts))
        tokens, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        labels = torch.full(shape, IGNORED)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text.prompt + text.answer)
            labels[row, len(text.prompt) : len(text)] = torch.tensor(text.answer)
            mask[row, : len(text)] = 1
        return cls(tokens, labels, mask)


def batches(texts: Sequence[TrainingText], max_tokens: int, seed: int) -> Iterator[list[TrainingText]]:
    """Yield all texts once, in random batches of similar length with at most ``max_tokens`` padded tokens."""
    rng, shuffled = random.Random(seed), list(texts)
    rng.shuffle(shuffled)
    found: list[list[TrainingText]] = []
    for start in range(0, len(shuffled), _POOL):
        batch: list[TrainingText] = []
        for text in sorted(shuffled[start : start + _POOL], key=len):
            if batch and len(text) * (len(batch) + 1) > max_tokens:
                found.append(batch)
                batch = []
            batch.append(text)
        found.append(batch)
    rng.shuffle(found)
    yield from found
