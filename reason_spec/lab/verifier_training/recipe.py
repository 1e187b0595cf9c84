"""All of a verifier's training: pairs, encoder, export, calibration, and figures on problems left out."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.records import other_or_fresh, write_text, writing
from reason_spec.evaluation.statistics import Interval, exact_interval
from reason_spec.lab.verifier_training.encoder import prune_encoder
from reason_spec.lab.verifier_training.export import calibrate, export_encoder, open_pairs, read_logits
from reason_spec.lab.verifier_training.hard_pairs import OnPairs, draw_hard_pairs
from reason_spec.lab.verifier_training.mining import StepPair
from reason_spec.lab.verifier_training.training import OnStep, TrainingPlan, choose_pairs, train_encoder
from reason_spec.verifiers.encoder import find_packaged_model
from reason_spec.verifiers.evidence import find_evidence
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.pair_encoder import MODEL, TOKENIZER, Calibration

RISK: Final = 0.003
"""Share of changed steps that may be accepted, on the pairs that the threshold is fitted on."""
_REPORTED, _CALIBRATED = 5, 20
"""Every fifth problem is reported on only; of the others, one of each twenty calibrates."""
_FIRST_CALIBRATED: Final = 7


@dataclass(frozen=True, slots=True)
class TrainedVerifier:
    """What came of a training; the counts are of problems that nothing was fitted on."""

    calibration: Calibration
    num_trained: int
    num_same: int
    num_same_accepted: int
    num_changed: int
    num_changed_accepted: int
    same_interval: Interval
    changed_interval: Interval


def split_by_problem(pairs: Sequence[StepPair]) -> tuple[list[StepPair], list[StepPair], list[StepPair]]:
    """Return the pairs to train on, to calibrate on and to report on; a problem is in one of them.

    Raises:
        DataError: there are too few problems for three parts.
    """
    parts: tuple[list[StepPair], list[StepPair], list[StepPair]] = ([], [], [])
    places: dict[str, int] = {}
    for pair in pairs:
        place = places.setdefault(pair.problem, len(places))
        is_reported = place % _REPORTED == 0
        parts[2 if is_reported else int(place % _CALIBRATED == _FIRST_CALIBRATED)].append(pair)
    for name, part in (
        ("training", parts[0]),
        ("calibration (where numbers do not decide)", open_pairs(parts[1])),
        ("the report", parts[2]),
    ):
        if len({pair.same for pair in part}) < 2:
            raise DataError(
                f"{len(pairs)} pairs of {len(places)} problems are too few: the part for {name} has no pair "
                "that is the same, or none that is not. Give more problems"
            )
    return parts


def train_verifier(
    pairs: Sequence[StepPair],
    output: Path,
    plan: TrainingPlan,
    *,
    start: Path | None = None,
    trained: Path | None = None,
    risk: float = RISK,
    on_step: OnStep = lambda _step, _steps: None,
    on_scored: OnPairs = lambda _scored, _pairs: None,
) -> TrainedVerifier:
    """Train a verifier's encoder into a folder; a stopped training goes on.

    Args:
        start: folder of an encoder to begin with; None: the packaged MiniLM.
        trained: folder with what a training wrote, to go on from; None: from ``start`` itself. With 0 epochs
            only its calibration is made anew.
        on_scored: called while hard pairs are looked for, with the number of scored pairs and that of all.

    Raises:
        DataError: there are too few pairs, or the folder cannot be written.
        SettingsError: 0 epochs or hard pairs, and no ``trained``; a training with other options or pairs was
            begun in the folder.
        MissingDependencyError: a package for training is missing.
    """
    for_training, for_calibration, for_report = split_by_problem(pairs)
    if plan.epochs:
        _keep_plan(output / "checkpoints", plan, trained, for_training)
    chosen = choose_pairs(for_training, plan.seed) if plan.epochs else []
    if plan.epochs and plan.hard_pairs:
        if trained is None:
            raise SettingsError(
                "hard pairs are those that a trained encoder has wrong: begin with one (--start)"
            )
        chosen = draw_hard_pairs(chosen, trained, plan.hard_pairs, plan.seed, on_scored)
    if not plan.epochs:
        if trained is None:
            raise SettingsError(
                "0 epochs calibrate a trained encoder: name its folder, or take the packaged one"
            )
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
            if not output.samefile(trained):
                for name in (MODEL, TOKENIZER):
                    shutil.copyfile(trained / name, output / name)
    else:
        _train(chosen, output, plan, start, on_step, trained)
    calibration = calibrate(output, for_calibration, risk)
    accepted = _accepts(output, for_report, calibration)
    same = np.array([pair.same for pair in for_report])
    num_same, num_changed = int(same.sum()), int((~same).sum())
    hits, misses = int((accepted & same).sum()), int((accepted & ~same).sum())
    return TrainedVerifier(
        calibration,
        len(set(map(id, chosen))),
        num_same,
        hits,
        num_changed,
        misses,
        exact_interval(hits, num_same),
        exact_interval(misses, num_changed),
    )


def _keep_plan(
    checkpoints: Path, plan: TrainingPlan, trained: Path | None, pairs: Sequence[StepPair]
) -> None:
    """Store what a training is of, or compare it: checkpoints of another one would be mixed with it."""
    begun_with = None if trained is None else hashlib.sha256((trained / MODEL).read_bytes()).hexdigest()
    content = hashlib.sha256("\n".join(map(repr, pairs)).encode()).hexdigest()
    own = asdict(replace(plan, threads=1)) | {"pairs": content, "start": begun_with}
    path = checkpoints / "plan.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else own
    if others := [name for name, value in own.items() if stored.get(name) != value]:
        raise SettingsError(
            f"{str(checkpoints.parent)!r} holds a training that differs in {', '.join(others)}. "
            + other_or_fresh()
        )
    with writing(checkpoints):
        checkpoints.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(own) + "\n")


def _train(
    pairs: Sequence[StepPair],
    output: Path,
    plan: TrainingPlan,
    start: Path | None,
    on_step: OnStep,
    trained: Path | None,
) -> None:
    if start is None:
        start = output / "checkpoints" / "start"
        if not (start / "config.json").exists():
            prune_encoder(find_packaged_model(), start)
    model = train_encoder(start, pairs, output, plan, on_step, trained)
    export_encoder(model, start / TOKENIZER, output)


def _accepts(
    folder: Path, pairs: Sequence[StepPair], calibration: Calibration
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which pairs are accepted, [n]: those that numbers leave open and the encoder takes."""
    logits = read_logits(folder, pairs)
    return np.array([
        not np.isnan(logit)
        and calibration.accepts(float(logit), find_evidence(pair.a, pair.b, pair.question))
        and find_objection(pair.a, pair.b, pair.question, pair.before) is None
        for pair, logit in zip(pairs, logits, strict=True)
    ])  # fmt: skip
