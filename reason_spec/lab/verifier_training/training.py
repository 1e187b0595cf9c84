"""The training of the encoder of `semantic` on labelled pairs, with the trainer of transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from reason_spec.engines.machine import mixed_precision
from reason_spec.errors import MissingDependencyError, SettingsError
from reason_spec.lab.verifier_training.encoder import PairClassifier
from reason_spec.lab.verifier_training.export import load_written
from reason_spec.lab.verifier_training.mining import StepPair
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.pair_encoder import MAX_TOKENS, TOKENIZER, encode_pair

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

_RATE: Final = 8e-5
_WARM_UP: Final = 0.06
_BATCH: Final = 32
_LOG_STEPS, _SAVE_STEPS = 50, 100
_OTHERS_PER_SAME: Final = 1.6
"""Pairs of two meanings for each pair of one."""
_REFUSED_SHARE: Final = 0.04
"""Of the pairs that numbers refuse, which the encoder never sees at run time, some are kept."""


OnStep: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How long and on what: ``epochs`` over the pairs, ``threads`` of the processor.

    ``hard_pairs`` are drawn by the mistakes of the encoder that the training begins with; 0: each pair once.
    """

    epochs: float = 2.0
    threads: int = 1
    seed: int = 0
    hard_pairs: int = 0


def choose_pairs(pairs: Sequence[StepPair], seed: int) -> list[StepPair]:
    """Return the pairs to train on: those that numbers leave open, and few of the others."""
    rng = Random(seed)
    open_pairs = [
        pair
        for pair in pairs
        if find_objection(pair.a, pair.b, pair.question, pair.before) is None
        or (not pair.same and rng.random() < _REFUSED_SHARE)
    ]
    same = [pair for pair in open_pairs if pair.same]
    others = [pair for pair in open_pairs if not pair.same]
    kept = rng.sample(others, min(len(others), int(_OTHERS_PER_SAME * len(same))))
    return rng.sample([*same, *kept], len(same) + len(kept))


def train_encoder(
    start: Path,
    pairs: Sequence[StepPair],
    output: Path,
    plan: TrainingPlan,
    on_step: OnStep = lambda _step, _steps: None,
    trained: Path | None = None,
) -> PairClassifier:
    """Train a cross-encoder with checkpoints in ``output``; a stopped training goes on from the last one.

    Args:
        start: folder of the encoder to begin with (`prune_encoder`).
        trained: folder that an earlier training wrote, whose weights replace those of ``start``.
        on_step: called after each step with its number and that of all.

    Raises:
        MissingDependencyError: accelerate is not installed.
        SettingsError: there are no pairs of one of both labels.
    """
    import torch
    from tokenizers import Tokenizer

    if find_spec("accelerate") is None:
        raise MissingDependencyError("accelerate", "training a verifier")
    if len({pair.same for pair in pairs}) < 2:
        raise SettingsError("a verifier is trained on pairs of both kinds: same true and same false")
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    model = PairClassifier(start)
    if trained is not None:
        load_written(model, trained)
    examples = _examples(Tokenizer.from_file(str(start / TOKENIZER)), pairs)
    folder = output / "checkpoints"
    trainer = _trainer(model, examples, folder, plan, on_step)
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    return model.eval()


def _last_checkpoint(folder: Path) -> str | None:
    """Return the last whole checkpoint; one that a kill left without its state, written last, is deleted."""
    from transformers.trainer_utils import get_last_checkpoint

    while folder.is_dir() and (last := get_last_checkpoint(str(folder))) is not None:
        if (Path(last) / "trainer_state.json").is_file():
            return str(last)
        shutil.rmtree(last)
    return None


def _trainer(
    model: PairClassifier, examples: list[dict[str, Any]], folder: Path, plan: TrainingPlan, on_step: OnStep
) -> Any:
    """Return the trainer of transformers, with our loss and report; it prints nothing."""
    import torch
    from torch.nn import functional
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

    class PairTrainer(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            labels = inputs.pop("labels")
            with mixed_precision(torch.device("cpu")):
                logits = model(**inputs)
            loss = functional.binary_cross_entropy_with_logits(logits.float(), labels)
            return (loss, {"logits": logits}) if return_outputs else loss

    class Report(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
            on_step(state.global_step, state.max_steps)

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=plan.epochs,
        per_device_train_batch_size=_BATCH,
        learning_rate=_RATE,
        warmup_steps=_WARM_UP,
        lr_scheduler_type="linear",
        use_cpu=True,
        seed=plan.seed,
        logging_steps=_LOG_STEPS,
        save_steps=_SAVE_STEPS,
        save_total_limit=1,
        report_to="none",
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
    )
    trainer = PairTrainer(model, arguments, data_collator=_pad, train_dataset=examples, callbacks=[Report()])
    # Both write to the standard output, which is for results.
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _examples(tokenizer: Tokenizer, pairs: Sequence[StepPair]) -> list[dict[str, Any]]:
    """Return the inputs of pairs that are not too long."""
    found = []
    for pair in pairs:
        given = encode_pair(tokenizer, pair.question, pair.a, pair.b)
        if len(given.ids) <= MAX_TOKENS:
            found.append({"input_ids": given.ids, "types": given.types, "label": float(pair.same)})
    return found


def _pad(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    import torch

    shape = (len(examples), max(len(example["input_ids"]) for example in examples))
    ids, mask, types = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        ids[row, :length] = torch.tensor(example["input_ids"])
        types[row, :length] = torch.tensor(example["types"])
        mask[row, :length] = 1
    labels = torch.tensor([example["label"] for example in examples])
    return {"ids": ids, "mask": mask, "types": types, "labels": labels}
