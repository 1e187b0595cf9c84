"""A student learns the target's answers, continues where it was stopped, and is served as it was trained."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.pruned import CONFIG, WEIGHTS, find_pruned
from reason_spec.errors import DataError, EngineError, UnsupportedModelError
from reason_spec.lab.drafts.figures import draw_curve
from reason_spec.lab.drafts.student import Student, evenly_spread
from reason_spec.lab.drafts.texts import TrainingText
from reason_spec.lab.drafts.training import (
    CHECKPOINT,
    CURVE,
    NUM_DRAFTS,
    CurvePoint,
    DraftTraining,
    TrainedDraft,
)
from tests.engines.tiny_models import save_model
from tests.full_disk import full_beyond

CPU = torch.device("cpu")
TEXTS = [TrainingText((60, start, 61), tuple(range(start, start + 12))) for start in range(65, 95)]
HELD_OUT = TEXTS[::10]
TRAINED = [text for text in TEXTS if text not in HELD_OUT]
OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return save_model("llama", tmp_path / "base")


def student(base: Path, layers: tuple[int, ...] = (1,), vocabulary: list[int] | None = None) -> Student:
    return Student(str(base), str(base), layers, vocabulary, CPU)


def ticking(seconds: int = 1) -> Callable[[], float]:
    """A clock by which every batch takes so long."""
    times = itertools.count(step=seconds)
    return lambda: float(next(times))


def train(base: Path, folder: Path, seconds: float, *, stop_after: int | None = None) -> DraftTraining:
    folder.mkdir(exist_ok=True)
    training = DraftTraining(student(base), folder, seconds, clock=ticking())
    for _ in itertools.islice(training.run(TRAINED, HELD_OUT), stop_after):
        pass
    return training


def test_a_student_learns_what_the_target_writes(base: Path, tmp_path: Path) -> None:
    curve = train(base, tmp_path / "draft", 60).curve
    assert curve[-1].held_out_loss < 0.8 * curve[0].held_out_loss
    assert curve[-1].accepted[0] > curve[0].accepted[0]
    for point in curve:
        assert list(point.accepted) == sorted(point.accepted, reverse=True)
        assert len(point.accepted) == NUM_DRAFTS
    stored = [json.loads(line) for line in (tmp_path / "draft" / CURVE).read_text().splitlines()]
    assert [one["seconds"] for one in stored] == [point.seconds for point in curve]
    draw_curve(curve, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_stopped_training_ends_as_one_that_was_not_stopped(base: Path, tmp_path: Path) -> None:
    whole = train(base, tmp_path / "whole", 40)
    train(base, tmp_path / "stopped", 40, stop_after=25)
    resumed = train(base, tmp_path / "stopped", 40)
    assert len(resumed.curve) == len(whole.curve)
    assert resumed.curve[-1] == whole.curve[-1]
    for one, other in zip(whole.student.parameters, resumed.student.parameters, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_training_that_is_stopped_before_its_first_measurement_loses_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    trained, seconds = student(base), 4000
    training = DraftTraining(trained, folder, seconds, clock=ticking())
    points = training.run(TRAINED, HELD_OUT)
    assert [next(points) for _ in range(7)] == [None] * 7
    if interrupted:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(trained, "loss", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(points)
    points.close()
    assert find_pruned(str(folder)) is not None, "a draft, whose tokens the training keeps"
    resumed = DraftTraining(student(base), folder, seconds, clock=ticking())
    assert resumed.spent == 7
    for one, other in zip(trained.parameters, resumed.student.parameters, strict=True):
        assert torch.equal(one, other)
    assert len(train(base, folder, 5).curve) == 1, "with less time than it has had"


def test_a_killed_training_loses_five_minutes_at_most(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    points = DraftTraining(student(base), folder, 1e6, clock=ticking(100)).run(TRAINED, HELD_OUT)
    for _ in range(4):
        next(points)
    assert torch.load(folder / CHECKPOINT, weights_only=True)["spent"] == 300


@pytest.mark.parametrize("num_bytes", [2_000, 40_000], ids=["draft", "checkpoint"])
def test_a_full_disk_is_an_error_that_says_what_to_do(base: Path, tmp_path: Path, num_bytes: int) -> None:
    with full_beyond(num_bytes), pytest.raises(DataError, match=r"cannot be kept \(.*make room there"):
        train(base, tmp_path / "draft", 10)
    assert (tmp_path / "draft" / WEIGHTS).exists() == (num_bytes == 40_000)


def test_a_training_that_is_given_more_time_is_measured_and_kept_on_its_way(
    base: Path, tmp_path: Path
) -> None:
    train(base, tmp_path / "draft", 40)
    train(base, tmp_path / "draft", 80, stop_after=9)
    kept = torch.load(tmp_path / "draft" / CHECKPOINT, weights_only=True)
    assert kept["spent"] > 46


def test_a_draft_for_a_further_temperature_replaces_a_better_one_for_fewer(
    base: Path, tmp_path: Path
) -> None:
    sampled = [replace(text, answer=text.answer[::-1]) for text in HELD_OUT]

    def trained_at(temperatures: tuple[float, ...], seconds: float) -> DraftTraining:
        own = Student(str(base), str(base), (1,), None, CPU, temperatures=temperatures)
        training = DraftTraining(own, tmp_path, seconds, clock=ticking())
        for _ in training.run(TRAINED, HELD_OUT if len(temperatures) == 1 else sampled):
            pass
        return training

    greedy = trained_at((0.0,), 40).best
    both = trained_at((0.0, 0.6), 44)
    assert greedy is not None
    assert both.best is not None
    assert both.spent == 44, "the checkpoint is continued"
    assert both.best.tokens_per_pass < greedy.tokens_per_pass
    assert json.loads((tmp_path / CONFIG).read_text())["temperatures"] == [0.0, 0.6]
    assert both.agreement_of_best(sampled).loss == pytest.approx(both.best.held_out_loss, rel=0.05)
    assert trained_at((0.0,), 44).best != greedy, "its draft is not there any more"


def test_an_older_curve_counts_for_its_one_temperature(base: Path, tmp_path: Path) -> None:
    older = train(base, tmp_path / "draft", 40).best
    assert older is not None
    for temperatures, expected in (((0.6,), older), ((0.0, 0.6), None)):
        own = Student(str(base), str(base), (1,), None, CPU, temperatures=temperatures)
        assert DraftTraining(own, tmp_path / "draft", 40).best == expected


def test_a_checkpoint_of_a_gpu_is_continued_without_one(base: Path, tmp_path: Path) -> None:
    train(base, tmp_path / "draft", 10)
    path = tmp_path / "draft" / CHECKPOINT
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, part in parts.items():
            # As the pickle has it: a text with its length before it.
            file.writestr(name, part.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    assert train(base, tmp_path / "draft", 20).spent == 20.0


def test_the_best_draft_is_kept_and_loads_as_it_was_trained(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "draft"
    training = train(base, folder, 40)
    best = max(training.curve, key=lambda point: point.tokens_per_pass)
    assert best is not None
    assert all(tensor.dtype == torch.bfloat16 for tensor in load_file(folder / WEIGHTS).values())
    module = AutoModelForCausalLM.from_pretrained(resolve_model("draft", str(folder)))
    assert len(module.model.layers) == 1
    text = HELD_OUT[0]
    with torch.inference_mode():
        logits = module(torch.tensor([text.prompt + text.answer])).logits[0]
    hits = logits.argmax(-1)[len(text.prompt) - 1 : -1].tolist() == list(text.answer)
    assert hits == (student_hits(training.student, text))


def test_a_draft_to_start_from_stays_where_its_training_spoils_it(base: Path, tmp_path: Path) -> None:
    start, folder = tmp_path / "start", tmp_path / "draft"
    train(base, start, 40)
    folder.mkdir()

    def training() -> DraftTraining:
        begun = student(base)
        begun.load(start)
        return DraftTraining(begun, folder, 8, clock=ticking(), rate=1e3, is_trained=True)

    with closing(training().run(TRAINED, HELD_OUT)) as stopped:
        first = next(stopped)
    assert first is not None
    assert (first.seconds, first.num_tokens) == (0, 0)
    resumed = training()
    assert all(point is None or point.seconds > 0 for point in resumed.run(TRAINED, HELD_OUT))
    assert resumed.best == resumed.curve[0] == first
    kept, before = load_file(folder / WEIGHTS), load_file(start / WEIGHTS)
    assert all(torch.equal(kept[name], before[name]) for name in before)


def student_hits(trained: TrainedDraft, text: TrainingText) -> bool:
    assert isinstance(trained, Student)
    return trained.agreement([[text]], len(text.answer)).accepted[-1] > 0


def test_a_token_outside_the_vocabulary_counts_as_rejected(base: Path) -> None:
    text = TrainingText((60, 61), (65, 66, 200))
    assert student(base, vocabulary=list(range(70))).agreement([[text]], 3).accepted[-1] == 0.0


def test_layers_with_a_sliding_window_are_trained_as_they_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = save_model("gemma2-sliding-softcap", tmp_path / "base")
    trained, folder = student(base, (1,)), tmp_path / "draft"
    for weight in trained.parameters:
        weight.data = weight.data.bfloat16().float()
    folder.mkdir()
    trained.save(folder)
    served = AutoModelForCausalLM.from_pretrained(resolve_model("draft", str(folder)), dtype=torch.float32)
    tokens = torch.arange(40, 80)[None]
    with torch.inference_mode():
        torch.testing.assert_close(trained.module(tokens).logits, served(tokens).logits)


def test_another_draft_is_not_continued(base: Path, tmp_path: Path) -> None:
    train(base, tmp_path / "draft", 10)
    with pytest.raises(DataError, match=r"other layers or another vocabulary.*--fresh"):
        DraftTraining(student(base, (0,)), tmp_path / "draft", 10)
    for content in (b"damaged", b""):
        (tmp_path / "draft" / "checkpoint.pt").write_bytes(content)
        with pytest.raises(DataError, match=r"checkpoint\.pt: the checkpoint is damaged.*--fresh"):
            DraftTraining(student(base), tmp_path / "draft", 10)


def test_a_model_without_such_layers_is_refused(tmp_path: Path) -> None:
    base = save_model("gpt2", tmp_path / "base")
    with pytest.raises(UnsupportedModelError, match="no list of layers like Llama's"):
        student(base)


def test_its_configuration_names_target_and_layers(base: Path, tmp_path: Path) -> None:
    train(base, tmp_path / "draft", 10)
    content = json.loads((tmp_path / "draft" / CONFIG).read_text())
    expected = {"base": str(base), "layers": [1], "vocabulary": None, "revision": None, "temperatures": []}
    assert content == expected
    revised = Student(str(base), "org/model", (1,), None, CPU, revision="v1").config
    assert (revised.base, revised.revision) == ("org/model", "v1")


def test_a_target_with_code_of_its_own_is_not_loaded_unless_that_is_wanted(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (base / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": classes}))
    (base / "own.py").write_text(OWN_CODE)
    with pytest.raises(EngineError, match="could not be loaded"):
        student(base)
    assert Student(str(base), str(base), (1,), None, CPU, trust_remote_code=True).config.layers == (1,)


@pytest.mark.parametrize(
    ("num_layers", "count", "expected"),
    [(30, 4, (0, 10, 19, 29)), (2, 4, (0, 1)), (30, 1, (29,)), (5, 2, (0, 4))],
)
def test_layers_are_spread_from_the_first_to_the_last(
    num_layers: int, count: int, expected: tuple[int, ...]
) -> None:
    assert evenly_spread(num_layers, count) == expected


def test_tokens_of_a_pass_are_one_and_the_accepted_ones() -> None:
    assert CurvePoint(1.0, 10, 0.1, 0.2, (0.5, 0.25)).tokens_per_pass == 1.75
