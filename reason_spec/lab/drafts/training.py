"""The training of a draft on the target's own answers, for a given time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, Protocol

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from torch import nn

from reason_spec.engines.eagle_files import HeadConfig
from reason_spec.engines.pruned import PrunedConfig
from reason_spec.errors import DataError
from reason_spec.lab.drafts.objectives import Loss
from reason_spec.lab.drafts.schedule import SCHEDULES, Objective, ScheduleName, objective_at
from reason_spec.lab.drafts.student import Agreement
from reason_spec.lab.drafts.texts import TrainingText, batches
from reason_spec.lab.drafts.writing import Writing

CURVE: Final = "curve.jsonl"
CHECKPOINT: Final = "checkpoint.pt"
_BATCH_TOKENS = 2048
_NUM_WRITTEN = 32
"""Answers that the draft writes at once; more are faster, and older when they are trained on."""
_RATE, _WARM_UP, _LAST_RATE = 1e-3, 0.02, 0.05
"""Learning rate, the share of the time in which it rises, and its last value as a share of it."""
_NUM_CHECKS = 40
_KEEP_SECONDS = 300.0
"""Training time after which a checkpoint is written, at the latest."""
NUM_DRAFTS: Final = 8
"""Drafted tokens in a row whose acceptance is measured."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A measurement on held-out answers.

    Attributes:
        seconds: training time so far, all starts together.
        num_tokens: answer tokens seen so far.
        train_loss: mean loss since the last point, in nats a token; ``held_out_loss`` before the first batch.
        held_out_loss: cross-entropy on held-out answers.
        accepted: see `Agreement`.
        objective: what it was trained for at this point; ``train_loss`` is of it, or of the one before too.
        temperatures: of the held-out answers; empty where they are not known.
    """

    seconds: float
    num_tokens: int
    train_loss: float
    held_out_loss: float
    accepted: tuple[float, ...]
    objective: Objective = "cross-entropy"
    temperatures: tuple[float, ...] = ()

    @property
    def tokens_per_pass(self) -> float:
        return Agreement(self.held_out_loss, self.accepted).tokens_per_pass


_POINT = TypeAdapter(CurvePoint)


class TrainedDraft(Protocol):
    """What `DraftTraining` trains: a pruned model (`Student`) or a head (`HeadStudent`)."""

    parameters: list[nn.Parameter]

    module: Any
    """Writes answers, for objective ``on-policy``."""

    @property
    def config(self) -> PrunedConfig | HeadConfig:
        """What the folder of the draft says of it."""

    @property
    def description(self) -> str: ...

    @property
    def keeps_target(self) -> bool:
        """Whether it can be trained for other objectives than ``cross-entropy``."""

    def loss(self, batch: Sequence[TrainingText], objective: Objective) -> Loss: ...

    def agreement(self, batches: Sequence[Sequence[TrainingText]], num_drafts: int) -> Agreement: ...

    def load(self, folder: Path) -> None: ...

    def save(self, folder: Path) -> None: ...


class DraftTraining:
    """Trains a student and keeps the best draft in a folder; a stopped training continues.

    Args:
        seconds: how long to train, all starts together.
        schedule: the objectives, one after the other.
        writing: how the student writes answers; only for schedules with ``on-policy``.
        clock: monotonic seconds.
        is_trained: the student begins as a trained draft, which is kept unless another agrees better.
        rate: the highest learning rate.
        num_checks: measurements on held-out answers over the whole time.

    Raises:
        DataError: the folder's checkpoint is damaged or of another draft.
        ValueError: the schedule takes a target or a way of writing, and there is none.
    """

    def __init__(
        self,
        student: TrainedDraft,
        folder: Path,
        seconds: float,
        schedule: ScheduleName = "cross-entropy",
        writing: Writing | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_trained: bool = False,
        rate: float = _RATE,
        num_checks: int = _NUM_CHECKS,
    ) -> None:
        objectives = {phase.objective for phase in SCHEDULES[schedule]}
        if objectives != {"cross-entropy"} and not student.keeps_target:
            raise ValueError(f"{schedule} takes a student that keeps its target")
        if "on-policy" in objectives and writing is None:
            raise ValueError(f"{schedule} takes a way of writing")
        self.student, self.folder, self.seconds = student, folder, seconds
        self._schedule, self._writing, self._clock = schedule, writing, clock
        self._rate, self._num_checks = rate, num_checks
        self._optimizer = torch.optim.AdamW(student.parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        self.spent, self._num_batches, self._num_tokens = 0.0, 0, 0
        self.curve: list[CurvePoint] = []
        self._continue()
        self._kept_seconds, self._num_kept = self.spent, self._num_batches
        self._is_trained = is_trained and not self.curve
        if self._is_trained:
            self._num_kept = -1

    @property
    def share_done(self) -> float:
        return min(1.0, self.spent / self.seconds) if self.seconds > 0 else 1.0

    @property
    def objective(self) -> Objective:
        return objective_at(self._schedule, self.share_done)

    @property
    def best(self) -> CurvePoint | None:
        """The point of the draft that the folder keeps.

        Sampled answers are harder to predict: points from before a change of the temperatures do not count.
        """
        own = self.student.config.temperatures
        # An older curve does not name the one temperature of its answers.
        known = {own, ()} if len(own) == 1 else {own}
        points = [*takewhile(lambda point: point.temperatures in known, reversed(self.curve))]
        return max(reversed(points), key=lambda point: point.tokens_per_pass, default=None)

    def agreement_of_best(self, texts: Sequence[TrainingText]) -> Agreement:
        """Measure the draft that the folder keeps; its weights replace those in training."""
        self.student.load(self.folder)
        return self.student.agreement(list(batches(texts, _BATCH_TOKENS, 0)), NUM_DRAFTS)

    def run(
        self, texts: Sequence[TrainingText], held_out: Sequence[TrainingText]
    ) -> Generator[CurvePoint | None]:
        """Train to the end; yields a point where one was measured, else None after each batch.

        Where it is interrupted or closed before, a checkpoint is written.

        Raises:
            DataError: a file cannot be written.
        """
        try:
            yield from self._run(texts, held_out)
        except (KeyboardInterrupt, GeneratorExit):
            self._keep()
            raise

    def _run(
        self, texts: Sequence[TrainingText], held_out: Sequence[TrainingText]
    ) -> Iterator[CurvePoint | None]:
        checks = list(batches(held_out, _BATCH_TOKENS, 0))
        stream = self._stream(texts)
        losses: list[float] = []
        num_new, due = 0, self._next_due()
        if self._is_trained:
            yield self._measure(checks, None)
        # A stopped training may be given less time than it has had; it has a point all the same.
        while self.share_done < 1.0 or self.best is None:
            started = self._clock()
            total, num_tokens = self._train(next(stream))
            losses.append(total)
            num_new += num_tokens
            self._num_batches += 1
            self._num_tokens += num_tokens
            self.spent += self._clock() - started
            if self.share_done < due:
                if self.spent - self._kept_seconds >= _KEEP_SECONDS:
                    self._keep()
                yield None
                continue
            yield self._measure(checks, sum(losses) / max(1, num_new))
            losses, num_new, due = [], 0, self._next_due()

    def _next_due(self) -> float:
        """Return the share of the time at which the next measurement is due.

        The number of points says nothing of it: those of an earlier start may have been for less time.
        """
        return min(1.0, (int(self.share_done * self._num_checks) + 1) / self._num_checks)

    def _stream(self, texts: Sequence[TrainingText]) -> Iterator[list[TrainingText]]:
        """Yield batches for the objective of the moment."""
        stored = self._batches(texts)
        while True:
            if self.objective == "on-policy":
                yield from self._written(texts)
            else:
                yield next(stored)

    def _batches(self, texts: Sequence[TrainingText]) -> Iterator[list[TrainingText]]:
        """Yield batches, epoch after epoch, without those of earlier starts."""
        num_seen = 0
        for epoch in count(1):
            for batch in batches(texts, _BATCH_TOKENS, epoch):
                num_seen += 1
                if num_seen > self._num_batches:
                    yield batch

    def _written(self, texts: Sequence[TrainingText]) -> Iterator[list[TrainingText]]:
        """Let the student answer some of the prompts; yield its answers in batches.

        It depends on the number of batches so far alone, so that a stopped training can write them again.
        """
        assert self._writing is not None
        rng = random.Random(self._num_batches)
        chosen = rng.sample(texts, min(_NUM_WRITTEN, len(texts)))
        own = self._writing.answers(self.student.module, [text.prompt for text in chosen], rng)
        return batches(own, _BATCH_TOKENS, self._num_batches)

    def _train(self, batch: list[TrainingText]) -> tuple[float, int]:
        rate = min(1.0, self.share_done / _WARM_UP + 0.01) * max(_LAST_RATE, 1.0 - self.share_done)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * rate
        loss, num_tokens = self.student.loss(batch, self.objective)
        if num_tokens:
            (loss / num_tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.student.parameters, 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach()), num_tokens

    def _measure(self, checks: Sequence[Sequence[TrainingText]], train_loss: float | None) -> CurvePoint:
        found = self.student.agreement(checks, NUM_DRAFTS)
        point = CurvePoint(
            self.spent,
            self._num_tokens,
            found.loss if train_loss is None else train_loss,
            found.loss,
            found.accepted,
            self.objective,
            self.student.config.temperatures,
        )
        best = self.best
        with _explained(self.folder):
            if best is None or point.tokens_per_pass > best.tokens_per_pass:
                self.student.save(self.folder)
            with (self.folder / CURVE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(point)) + "\n")
        self.curve.append(point)
        self._keep()
        return point

    def _keep(self) -> None:
        """Write a checkpoint, if there is anything new.

        Raises:
            DataError: it cannot be written.
        """
        if self._num_batches == self._num_kept:
            return
        kept: dict[str, Any] = {
            "config": self._config(),
            "spent": self.spent,
            "num_batches": self._num_batches,
            "num_tokens": self._num_tokens,
            "num_points": len(self.curve),
            "weights": [weight.data for weight in self.student.parameters],
            "optimizer": self._optimizer.state_dict(),
        }
        unfinished = self.folder / f"{CHECKPOINT}.part"
        with _explained(self.folder):
            if not self.curve:
                # With the checkpoint there is always a draft, which has the vocabulary.
                self.student.save(self.folder)
                (self.folder / CURVE).touch()
            torch.save(kept, unfinished)
            unfinished.replace(self.folder / CHECKPOINT)
        self._kept_seconds, self._num_kept = self.spent, self._num_batches

    def _config(self) -> dict[str, Any]:
        """Return what a checkpoint must have been made with; answers at other temperatures may be added."""
        return self.student.config.model_dump(exclude={"temperatures"})

    def _continue(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            (self.folder / CURVE).unlink(missing_ok=True)
            return
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            lines = (self.folder / CURVE).read_text(encoding="utf-8").splitlines()[: kept["num_points"]]
            self.curve = [_POINT.validate_python(json.loads(line)) for line in lines]
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, UnpicklingError) as error:
            raise DataError(f"{path}: the checkpoint is damaged; --fresh trains anew") from error
        if kept["config"] != self._config():
            raise DataError(
                f"{self.folder} holds the training of a draft with other layers or another vocabulary, or of "
                "another target; give --kind, --layers, --vocabulary and --target as before, name another "
                "folder, or train anew with --fresh"
            )
        self.spent, self._num_batches, self._num_tokens = (
            kept["spent"],
            kept["num_batches"],
            kept["num_tokens"],
        )
        self._optimizer.load_state_dict(kept["optimizer"])
        for weight, value in zip(self.student.parameters, kept["weights"], strict=True):
            weight.data.copy_(value)
        # A point after the checkpoint is measured again.
        (self.folder / CURVE).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn errors of writing, of which torch and safetensors have their own, into one for the user."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error).partition("\n")[0]
        raise DataError(
            f"{folder}: the training cannot be kept ({reason}); make room there, and give the command again"
        ) from error
