"""Further training of a draft on the latest answers of a target that is being served.

As in Online Speculative Decoding (arXiv 2310.07177) the draft learns from live requests, at a low learning
rate. Unlike there the loss covers all tokens of the answers, not the rejected ones alone, and older answers
are repeated, so that the draft does not forget them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import torch

from reason_spec.accelerator.answer_store import AnswerStore, StoredAnswer
from reason_spec.engines.draft_versions import DraftVersion, DraftVersions, VersionInfo
from reason_spec.engines.model_files import base_folder
from reason_spec.engines.pruned import PrunedDraft
from reason_spec.errors import DataError
from reason_spec.lab.drafts.student import Student
from reason_spec.lab.drafts.texts import TrainingText, batches, hold_out
from reason_spec.lab.drafts.training import CHECKPOINT, CURVE, NUM_DRAFTS, CurvePoint, DraftTraining

LEAST_NEW: Final = 32
"""New answers of a round, at least."""
_MOST_NEW = 512
_HELD_OUT = 0.25
"""Share of the new prompts that decides whether the version is better."""
_LEAST_GAIN = 1.01
"""Factor in tokens per pass that is worth a new version: the server tries it and empties its caches."""
_RATE = 1e-4
_NUM_CHECKS = 8
_BATCH_TOKENS = 2048
_LONGEST = 1024
"""Tokens of a prompt, from its end, and of an answer, from its beginning: memory grows with the square."""


@dataclass(frozen=True, slots=True)
class AdaptationRound:
    """The answers of one round, and the version that it begins from."""

    start: DraftVersion
    trained: tuple[TrainingText, ...]
    held_out: tuple[TrainingText, ...]
    num_new: int
    last_answer: int
    acceptance_rate: float | None
    """Mean over the new answers, as served; None if nothing was drafted for them."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Tokens of a pass on held-out answers before and after; ``version`` is None if it is not better."""

    before: float
    after: float
    version: DraftVersion | None


class DraftAdapter:
    """Trains a draft round by round. One process at a time may adapt a draft.

    Args:
        store: answers of the draft's target.
        seconds: training time of a round.
        rate: the highest learning rate.
        clock: monotonic seconds.

    Raises:
        EngineError, UnsupportedModelError: the target cannot be loaded.
    """

    def __init__(
        self,
        draft: PrunedDraft,
        store: AnswerStore,
        device: torch.device,
        seconds: float,
        rate: float = _RATE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draft = draft
        self._store = store
        self._seconds = seconds
        self._rate = rate
        self._clock = clock
        self._versions = DraftVersions(draft)
        config = draft.config
        self._student = Student(
            str(base_folder(config)),
            config.base,
            config.layers,
            config.vocabulary,
            device,
            temperatures=config.temperatures,
            revision=config.revision,
        )

    def next_round(self) -> AdaptationRound | str:
        """Choose the answers of the next round; or return what it waits for.

        Raises:
            DataError: the answers cannot be read.
        """
        if (untried := self._versions.untried) is not None:
            return f"version {untried.number} has not been tried by the server yet"
        new = self._store.newest(_MOST_NEW, after=self._versions.last_seen(self._store.id))
        if len(new) < LEAST_NEW:
            return f"{len(new)} of {LEAST_NEW} new answers"
        if len({answer.prompt for answer in new}) < 2:
            return "new answers to more than one prompt"
        trained, held_out = hold_out([_text_of(answer) for answer in new], _HELD_OUT, seed=new[-1].number)
        kept_out = {text.prompt for text in held_out}
        older = [_text_of(answer) for answer in self._store.sample(len(new), up_to=new[0].number - 1)]
        repeated = [text for text in older if text.prompt not in kept_out]
        return AdaptationRound(
            self._versions.current,
            (*trained, *repeated),
            tuple(held_out),
            len(new),
            new[-1].number,
            _mean_rate(new),
        )

    def run(self, chosen: AdaptationRound) -> Iterator[CurvePoint | RoundResult | None]:
        """Train on the answers of a round; yields as `DraftTraining.run` does, and at last the result.

        A version is written if it is better on held-out answers.

        Raises:
            DataError: a file cannot be read or written.
        """
        scratch = self._draft.versions / "unfinished"
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            self._student.load(chosen.start.folder)
            checks = list(batches(chosen.held_out, _BATCH_TOKENS, 0))
            before = self._student.agreement(checks, NUM_DRAFTS).tokens_per_pass
            training = DraftTraining(
                self._student,
                scratch,
                self._seconds,
                clock=self._clock,
                rate=self._rate,
                num_checks=_NUM_CHECKS,
            )
            yield from training.run(chosen.trained, chosen.held_out)
            after = max((point.tokens_per_pass for point in training.curve), default=0.0)
            version = None
            if after >= _LEAST_GAIN * before:
                (scratch / CHECKPOINT).unlink()
                (scratch / CURVE).unlink()
                info = VersionInfo(
                    parent=chosen.start.number,
                    tokens_per_pass_before=before,
                    tokens_per_pass=after,
                )
                version = self._versions.publish(scratch, info)
            self._versions.note_seen(self._store.id, chosen.last_answer)
            yield RoundResult(before, after, version)
        except OSError as error:
            place = error.filename or scratch
            raise DataError(f"{place}: cannot be written ({error.strerror}); make room there") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _text_of(answer: StoredAnswer) -> TrainingText:
    return TrainingText(answer.prompt[-_LONGEST:], answer.answer[:_LONGEST])


def _mean_rate(answers: Sequence[StoredAnswer]) -> float | None:
    rates = [rate for answer in answers if (rate := answer.acceptance_rate) is not None]
    return fmean(rates) if rates else None
