"""What the commands of ``draft`` do and print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.screen import Screen
from reason_spec.engines.machine import pick_device
from reason_spec.engines.model_files import resolve_model
from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.sources import Sources
from reason_spec.lab.drafts.schedule import ScheduleName
from reason_spec.settings import Settings

if TYPE_CHECKING:
    from reason_spec.lab.drafts.texts import TrainingText
    from reason_spec.lab.drafts.training import CurvePoint, DraftTraining

ANSWERS, PICTURE = "answers", "curve.png"
_HELD_OUT, _MOST_HELD_OUT = 0.05, 48


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of ``draft train``; ``layers`` is a number of layers or the layers themselves."""

    kind: Literal["model", "head"]
    seconds: float
    layers: int | tuple[int, ...]
    vocabulary: int
    objective: ScheduleName
    samples: int
    concurrency: int
    device: str
    threads: int | None
    fresh: bool


def parse_layers(text: str) -> int | tuple[int, ...]:
    """Return the value of ``--layers``.

    Raises:
        SettingsError: it is neither a number nor a list of ascending layers.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"--layers is {text!r}; give a number such as 4, or layers such as 0,9") from None
    if len(numbers) == 1:
        if numbers[0] < 1:
            raise SettingsError(f"--layers is {numbers[0]}; a draft has 1 layer or more")
        return numbers[0]
    if list(numbers) != sorted(set(numbers)) or numbers[0] < 0:
        raise SettingsError(f"--layers is {text!r}; layers must ascend from 0 or more")
    return numbers


def make_draft(
    settings: Settings, sources: Sources, options: TrainOptions, output: Path, screen: Screen
) -> None:
    """Let the target answer the problems, then train on the answers; in 0 hours nothing is trained."""
    prepare(output, fresh=options.fresh)
    texts = run_interruptible(collect_texts(settings, sources, options, output, screen))
    if options.seconds:
        train_draft(settings, texts, options, output, screen)
    elif screen.as_json:
        screen.write_json({"output": str(output), "num_answers": len(texts)})
    else:
        screen.print(f"{counted(len(texts), 'answer')} in {output / ANSWERS}; train on them with --hours")


async def collect_texts(
    settings: Settings, sources: Sources, options: TrainOptions, output: Path, screen: Screen
) -> list[TrainingText]:
    """Let the target answer the problems; a stopped run continues."""
    from reason_spec.lab.drafts.texts import answered_texts

    return await answered_texts(
        settings,
        sources,
        output / ANSWERS,
        screen,
        concurrency=options.concurrency,
        samples=options.samples,
        fresh=options.fresh,
    )


def prepare(output: Path, *, fresh: bool) -> None:
    """Make the folder of a draft; ``fresh`` deletes an earlier training in it, and nothing else.

    Raises:
        DataError: it cannot be made, or holds a model that is no draft.
    """
    from reason_spec.engines import eagle_files
    from reason_spec.engines.pruned import CONFIG, WEIGHTS
    from reason_spec.lab.drafts.training import CHECKPOINT, CURVE

    if (output / eagle_files.CONFIG).exists() and not eagle_files.is_head(output):
        raise DataError(f"{output} holds another model, which a head would replace; name another --output")
    try:
        output.mkdir(parents=True, exist_ok=True)
        of_head = eagle_files.CONFIG, eagle_files.WEIGHTS
        for name in (CONFIG, WEIGHTS, *of_head, CURVE, CHECKPOINT, PICTURE) if fresh else ():
            (output / name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{output}: cannot be made ({error.strerror}); name another folder with --output"
        ) from None


def train_draft(
    settings: Settings, texts: Sequence[TrainingText], options: TrainOptions, output: Path, screen: Screen
) -> None:
    """Train a draft on answers of the target, and print how it agrees with those that were held out."""
    from reason_spec.lab.drafts.texts import hold_out

    trained, held_out = hold_out(texts, _HELD_OUT, most=_MOST_HELD_OUT)
    training = _training(settings, trained, options, output)
    screen.say(
        f"Training {training.student.description} on "
        f"{counted(len(trained), 'answer')}, {len(held_out)} held out"
    )
    objective = training.objective
    with screen.bar("%") as bar:
        task = bar.add_task("Training", total=100, completed=round(100 * training.share_done))
        for point in training.run(trained, held_out):
            bar.update(task, completed=round(100 * training.share_done))
            if point is None:
                continue
            screen.say(
                f"{point.seconds / 60:6.1f} min  {point.num_tokens:9,} tokens  "
                f"loss {point.train_loss:.3f}, held out {point.held_out_loss:.3f}  "
                f"first token {point.accepted[0]:.0%}, {point.tokens_per_pass:.2f} tokens a pass"
            )
            if point.objective != objective:
                objective = point.objective
                screen.say(f"Now {objective}; its loss is another one")
    _report(training.curve, output, screen)


def _training(
    settings: Settings, trained: Sequence[TrainingText], options: TrainOptions, output: Path
) -> DraftTraining:
    """Return the training that the options ask for, where it was stopped."""
    import torch

    from reason_spec.lab.drafts.head_student import HeadStudent
    from reason_spec.lab.drafts.student import Student, evenly_spread
    from reason_spec.lab.drafts.texts import frequent_tokens, target_tokenizer
    from reason_spec.lab.drafts.training import DraftTraining, TrainedDraft
    from reason_spec.lab.drafts.writing import Writing

    base = resolve_model("target", settings.target.model)
    num_layers, size = _shape_of(base)
    layers = (
        options.layers if isinstance(options.layers, tuple) else evenly_spread(num_layers, options.layers)
    )
    if layers[-1] >= num_layers:
        raise SettingsError(f"--layers names {layers[-1]}, and the target has {num_layers} layers")
    tokenizer = target_tokenizer(settings)
    vocabulary = None
    if options.vocabulary and options.vocabulary < size:
        vocabulary = frequent_tokens(trained, tokenizer.special_ids, options.vocabulary, size)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    named = Path(settings.target.model).expanduser()
    # A relative path would depend on where the draft is used.
    name = (
        str(named.resolve())
        if settings.target.model != "embedded" and named.exists()
        else settings.target.model
    )
    student: TrainedDraft
    if options.kind == "head":
        student = HeadStudent(base, name, vocabulary, device)
    else:
        keep_target = options.objective != "cross-entropy"
        student = Student(base, name, layers, vocabulary, device, keep_target=keep_target)
    writing = Writing(
        end_ids=tuple(sorted(tokenizer.eos_ids)),
        max_tokens=max(len(text.answer) for text in trained),
        temperature=settings.sampling.temperature or 1.0,
    )
    return DraftTraining(student, output, options.seconds, options.objective, writing)


def _shape_of(base: str) -> tuple[int, int]:
    """Return the numbers of layers and of tokens of a model."""
    from reason_spec.engines.model_files import read_config
    from reason_spec.settings import EngineSettings

    config = read_config(EngineSettings(model=base)).get_text_config()
    return int(config.num_hidden_layers), int(config.vocab_size)


def _report(curve: list[CurvePoint], output: Path, screen: Screen) -> None:
    best = max(curve, key=lambda point: point.tokens_per_pass)
    if screen.as_json:
        screen.write_json({"output": str(output), "best": asdict(best), "num_points": len(curve)})
    else:
        rows = ", ".join(f"{place + 1}: {share:.0%}" for place, share in enumerate(best.accepted))
        screen.print(f"Accepted greedy drafts in a row on held-out answers: {rows}")
        screen.print(f"The draft is in {output}. Use it with --draft {output}")
    if find_spec("matplotlib") is None:
        screen.say("No picture of the training: pip install 'reason-spec[plots]' draws it.")
        return
    from reason_spec.lab.drafts.figures import draw_curve

    draw_curve(curve, output / PICTURE)
