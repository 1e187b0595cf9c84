"""The training of a pruned draft: cross-entropy on the target's own answers, for a given time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch

from reason_spec.errors import DataError
from reason_spec.lab.drafts.student import Agreement, Student
from reason_spec.lab.drafts.texts import TrainingText, batches

CURVE: Final = "curve.jsonl"
CHECKPOINT: Final = "checkpoint.pt"
_BATCH_TOKENS = 2048
_RATE, _WARM_UP, _LAST_RATE = 1e-3, 0.02, 0.05
"""Learning rate, the share of the time in which it rises, and its last value as a share of it."""
_NUM_CHECKS = 40
NUM_DRAFTS: Final = 8
"""Drafted tokens in a row whose acceptance is measured."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A measurement on held-out answers.

    Attributes:
        seconds: training time so far, all starts together.
        num_tokens: answer tokens seen so far.
        train_loss: mean loss since the last point, in nats a token.
        held_out_loss: loss on held-out answers.
        accepted: see `Agreement`.
    """

    seconds: float
    num_tokens: int
    train_loss: float
    held_out_loss: float
    accepted: tuple[float, ...]

    @property
    def tokens_per_pass(self) -> float:
        return Agreement(self.held_out_loss, self.accepted).tokens_per_pass


class DraftTraining:
    """Trains a student and keeps the best draft in a folder; a stopped training continues.

    Args:
        seconds: how long to train, all starts together.
        clock: monotonic seconds.
        rate: the highest learning rate.
        num_checks: measurements on held-out answers over the whole time.
    """

    def __init__(
        self,
        student: Student,
        folder: Path,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        rate: float = _RATE,
        num_checks: int = _NUM_CHECKS,
    ) -> None:
        self.student, self.folder, self.seconds = student, folder, seconds
        self._clock = clock
        self._rate, self._num_checks = rate, num_checks
        self._optimizer = torch.optim.AdamW(student.parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        self.spent, self._num_batches, self._num_tokens = 0.0, 0, 0
        self.curve: list[CurvePoint] = []
        self._continue()

    @property
    def share_done(self) -> float:
        return min(1.0, self.spent / self.seconds) if self.seconds > 0 else 1.0

    def run(
        self, texts: Sequence[TrainingText], held_out: Sequence[TrainingText]
    ) -> Iterator[CurvePoint | None]:
        """Train to the end; yields a point where one was measured, else None after each batch."""
        checks = list(batches(held_out, _BATCH_TOKENS, 0))
        losses: list[float] = []
        num_new = 0
        for batch in self._batches(texts):
            if self.share_done >= 1.0:
                return
            started = self._clock()
            total, num_tokens = self._train(batch)
            losses.append(total)
            num_new += num_tokens
            self._num_batches += 1
            self._num_tokens += num_tokens
            self.spent += self._clock() - started
            due = len(self.curve) + 1 if self.share_done < 1.0 else 0
            if self.share_done < due / self._num_checks:
                yield None
                continue
            yield self._measure(checks, sum(losses) / max(1, num_new))
            losses, num_new = [], 0

    def _batches(self, texts: Sequence[TrainingText]) -> Iterator[list[TrainingText]]:
        """Yield batches, epoch after epoch, without those of earlier starts."""
        num_seen = 0
        for epoch in count(1):
            for batch in batches(texts, _BATCH_TOKENS, epoch):
                num_seen += 1
                if num_seen > self._num_batches:
                    yield batch

    def _train(self, batch: list[TrainingText]) -> tuple[float, int]:
        rate = min(1.0, self.share_done / _WARM_UP + 0.01) * max(_LAST_RATE, 1.0 - self.share_done)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * rate
        loss, num_tokens = self.student.loss(batch)
        if num_tokens:
            (loss / num_tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.student.parameters, 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach()), num_tokens

    def _measure(self, checks: Sequence[Sequence[TrainingText]], train_loss: float) -> CurvePoint:
        found = self.student.agreement(checks, NUM_DRAFTS)
        point = CurvePoint(self.spent, self._num_tokens, train_loss, found.loss, found.accepted)
        best = max((one.tokens_per_pass for one in self.curve), default=0.0)
        self.curve.append(point)
        if point.tokens_per_pass > best:
            self.student.save(self.folder)
        with (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")
        kept: dict[str, Any] = {
            "config": self.student.config.model_dump(),
            "spent": self.spent,
            "num_batches": self._num_batches,
            "num_tokens": self._num_tokens,
            "num_points": len(self.curve),
            "weights": [weight.data for weight in self.student.parameters],
            "optimizer": self._optimizer.state_dict(),
        }
        unfinished = self.folder / f"{CHECKPOINT}.part"
        torch.save(kept, unfinished)
        unfinished.replace(self.folder / CHECKPOINT)
        return point

    def _continue(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            (self.folder / CURVE).unlink(missing_ok=True)
            return
        try:
            kept = torch.load(path, weights_only=True)
            lines = (self.folder / CURVE).read_text(encoding="utf-8").splitlines()[: kept["num_points"]]
            points = [json.loads(line) for line in lines]
        except (OSError, ValueError, KeyError, RuntimeError, UnpicklingError) as error:
            raise DataError(f"{path}: the checkpoint is damaged; --fresh trains anew") from error
        if kept["config"] != self.student.config.model_dump():
            raise DataError(
                f"{self.folder} holds the training of a draft with other layers or another vocabulary; name "
                "another folder, or train anew with --fresh"
            )
        self.spent, self._num_batches, self._num_tokens = (
            kept["spent"],
            kept["num_batches"],
            kept["num_tokens"],
        )
        self._optimizer.load_state_dict(kept["optimizer"])
        for weight, value in zip(self.student.parameters, kept["weights"], strict=True):
            weight.data.copy_(value)
        self.curve = [CurvePoint(**{**point, "accepted": tuple(point["accepted"])}) for point in points]
        # A point after the checkpoint is measured again.
        (self.folder / CURVE).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
