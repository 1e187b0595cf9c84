"""What the commands of ``draft`` do and print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.screen import Screen
from reason_spec.engines.machine import pick_device
from reason_spec.engines.model_files import local_folder, not_loadable, read_config, resolve_model
from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.amounts import counted
from reason_spec.evaluation.sources import Sources
from reason_spec.lab.drafts.schedule import ScheduleName
from reason_spec.loading import empty_causal_lm
from reason_spec.settings import EngineSettings, Settings

if TYPE_CHECKING:
    from reason_spec.lab.drafts.student import Agreement
    from reason_spec.lab.drafts.texts import TrainingText
    from reason_spec.lab.drafts.training import DraftTraining

ANSWERS, PICTURE = "answers", "curve.png"
_HELD_OUT, _MOST_HELD_OUT = 0.05, 48


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of ``draft train``.

    ``layers`` is a number of layers or the layers themselves. The target answers every problem at each of
    ``temperatures``, which ascend. ``start_from`` names a trained draft, whose layers and predicted tokens
    count in place of ``layers`` and ``vocabulary``.
    """

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
    resume: bool = False
    temperatures: tuple[float, ...] = (0.0,)
    start_from: str | None = None


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


def check_options(settings: Settings, options: TrainOptions, output: Path) -> None:
    """Check what can be checked before the problems are read.

    Raises:
        DataError: the folder has nothing that ``--resume`` could continue.
        SettingsError: options exclude each other, or the engine gives no weights to train on.
    """
    from reason_spec.lab.drafts.training import CHECKPOINT

    if settings.target.kind not in ("torch", "vllm"):
        raise SettingsError(
            f"target.kind is {settings.target.kind!r}; the training reads the target's weights: use "
            "--engine torch or vllm"
        )
    if options.kind == "head" and options.objective != "cross-entropy":
        raise SettingsError(
            f"--objective {options.objective} is for --kind model; a head is trained on its own drafts in "
            "any case"
        )
    for temperature, number in Counter(options.temperatures).items():
        if number > 1:
            raise SettingsError(
                f"--temperature {temperature:g} is given {number} times; give it once, and --samples for "
                "several answers"
            )
    if (
        options.fresh
        and options.start_from is not None
        and output.resolve() == Path(options.start_from).resolve()
    ):
        raise SettingsError("--fresh would delete the draft that --start-from names; name another --output")
    if options.resume and options.fresh:
        raise SettingsError("--resume and --fresh exclude each other")
    if options.resume and not any((output / name).exists() for name in (ANSWERS, CHECKPOINT)):
        raise DataError(
            f"{output} has neither {ANSWERS} nor {CHECKPOINT}, so --resume has nothing to continue; name "
            "another --output, or leave out --resume"
        )


def make_draft(
    settings: Settings, sources: Sources, options: TrainOptions, output: Path, screen: Screen
) -> None:
    """Let the target answer the problems, then train on the answers; in 0 hours nothing is trained.

    What would end the training is looked for before the target answers, which takes the longest.
    """
    from reason_spec.evaluation.records import lock_folder

    if options.seconds:
        check_training(settings.target, options)
    prepare(output, keeps_draft=bool(options.seconds) and not options.fresh)
    texts = run_interruptible(collect_texts(settings, sources, options, output, screen))
    num_answers = sum(map(len, texts.values()))
    if options.seconds:
        # Two trainings would replace each other's weights.
        with lock_folder(output):
            train_draft(settings, texts, options, output, screen)
    elif screen.as_json:
        screen.write_json({"output": str(output), "num_answers": num_answers})
    else:
        screen.print(f"{counted(num_answers, 'answer')} in {output / ANSWERS}; train on them with --hours")


async def collect_texts(
    settings: Settings, sources: Sources, options: TrainOptions, output: Path, screen: Screen
) -> dict[float, list[TrainingText]]:
    """Let the target answer the problems; return its answers by temperature. A stopped run continues."""
    from reason_spec.lab.drafts.texts import answered_texts

    return await answered_texts(
        settings,
        sources,
        output / ANSWERS,
        screen,
        temperatures=options.temperatures,
        concurrency=options.concurrency,
        samples=options.samples,
    )


def check_training(target: EngineSettings, options: TrainOptions) -> None:
    """Check the device and the layers, with the target's configuration and the names of its weights alone.

    Raises:
        DataError: the draft to start from is none, or of another target.
        EngineError: the device cannot be used, or the target's files cannot be read.
        SettingsError: the target has not so many layers.
        UnsupportedModelError: no draft of this kind can be made of the target.
    """
    from reason_spec.engines.torch.sublayers import layers_of
    from reason_spec.lab.drafts.starting import starting_draft
    from reason_spec.lab.drafts.student import check_layers, check_weights

    if options.device != "auto":
        pick_device(options.device)
    name, base = target.model, resolve_model("target", target.model)
    if options.start_from is not None:
        starting_draft(options.start_from, options.kind, _lasting_name(name))
    config = read_config(target.model_copy(update={"model": base}))
    layers = _chosen_layers(options, config.get_text_config().num_hidden_layers)
    try:
        module = empty_causal_lm(config, trust_remote_code=target.trust_remote_code)
    except Exception as error:
        raise not_loadable(name, error) from error
    if options.kind == "head":
        layers_of(name, module)
        return
    check_layers(module, name)
    check_weights(module, name, local_folder(base, target.revision), layers)


def prepare(output: Path, *, keeps_draft: bool) -> None:
    """Make the folder of a draft.

    Args:
        keeps_draft: whether a draft in it must be one whose training can continue.

    Raises:
        DataError: it cannot be made, or holds a model that is no draft, or a draft without its checkpoint.
    """
    from reason_spec.engines import eagle_files
    from reason_spec.engines.pruned import WEIGHTS
    from reason_spec.lab.drafts.training import CHECKPOINT

    is_head = eagle_files.is_head(output)
    if (output / eagle_files.CONFIG).exists() and not is_head:
        raise DataError(f"{output} holds another model, which a head would replace; name another --output")
    has_draft = is_head or (output / WEIGHTS).exists()
    if keeps_draft and has_draft and not (output / CHECKPOINT).exists():
        raise DataError(
            f"{output} holds a draft without {CHECKPOINT}, so its training cannot continue; name another "
            "--output, or replace the draft with --fresh"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{output}: cannot be made ({error.strerror}); name another folder with --output"
        ) from None


def discard_training(output: Path) -> None:
    """Delete an earlier training in a folder with its draft, and nothing else.

    Raises:
        DataError: a file cannot be deleted.
    """
    from reason_spec.engines import eagle_files, pruned
    from reason_spec.evaluation.records import writing
    from reason_spec.lab.drafts.training import CHECKPOINT, CURVE

    of_drafts = pruned.CONFIG, pruned.WEIGHTS, eagle_files.CONFIG, eagle_files.WEIGHTS
    with writing(output):
        for name in (*of_drafts, CURVE, CHECKPOINT, PICTURE):
            (output / name).unlink(missing_ok=True)


def train_draft(
    settings: Settings,
    texts: Mapping[float, Sequence[TrainingText]],
    options: TrainOptions,
    output: Path,
    screen: Screen,
) -> None:
    """Train a draft on answers of the target, and print how it agrees with those that were held out.

    Args:
        texts: by temperature. A prompt is held out at all of them.
    """
    from reason_spec.lab.drafts.texts import hold_out

    trained, held_out = hold_out(list(chain(*texts.values())), _HELD_OUT, most=_MOST_HELD_OUT)
    training = _training(settings, trained, options, output)
    screen.say(
        f"Training {training.student.description} on "
        f"{counted(len(trained), 'answer')}, {len(held_out)} held out"
    )
    objective = training.objective
    # An interrupt closes it at once, so that it keeps what it has.
    with closing(training.run(trained, held_out)) as points, screen.bar("%") as bar:
        task = bar.add_task("Training", total=100, completed=round(100 * training.share_done))
        for point in points:
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
    prompts = {text.prompt for text in held_out}
    agreements = {
        temperature: training.agreement_of_best([text for text in found if text.prompt in prompts])
        for temperature, found in texts.items()
    }
    _report(training, agreements, output, screen)


def _training(
    settings: Settings, trained: Sequence[TrainingText], options: TrainOptions, output: Path
) -> DraftTraining:
    """Return the training that the options ask for, where it was stopped."""
    import torch

    from reason_spec.lab.drafts.head_student import HeadStudent
    from reason_spec.lab.drafts.starting import starting_draft
    from reason_spec.lab.drafts.student import Student
    from reason_spec.lab.drafts.texts import target_tokenizer
    from reason_spec.lab.drafts.training import DraftTraining, TrainedDraft
    from reason_spec.lab.drafts.writing import Writing, written_at

    target, base = settings.target, resolve_model("target", settings.target.model)
    config = read_config(target.model_copy(update={"model": base})).get_text_config()
    tokenizer = target_tokenizer(settings)
    name = _lasting_name(target.model)
    start = starting_draft(options.start_from, options.kind, name) if options.start_from is not None else None
    vocabulary: Sequence[int] | None
    if start is None:
        layers = _chosen_layers(options, int(config.num_hidden_layers)) if options.kind == "model" else ()
        vocabulary = _vocabulary(trained, tokenizer.special_ids, int(config.vocab_size), options, output)
    else:
        layers, vocabulary = start.layers, start.vocabulary
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    student: TrainedDraft
    if options.kind == "head":
        student = HeadStudent(
            base,
            name,
            vocabulary,
            device,
            temperatures=options.temperatures,
            revision=target.revision,
            trust_remote_code=target.trust_remote_code,
        )
    else:
        student = Student(
            base,
            name,
            layers,
            vocabulary,
            device,
            keep_target=options.objective != "cross-entropy",
            temperatures=options.temperatures,
            revision=target.revision,
            trust_remote_code=target.trust_remote_code,
        )
    writing = Writing(
        end_ids=tuple(sorted(tokenizer.eos_ids)),
        max_tokens=max(len(text.answer) for text in trained),
        temperatures=written_at(options.temperatures),
    )
    if start is not None:
        # A checkpoint in the folder of the draft replaces these weights.
        student.load(start.folder)
    if options.fresh:
        discard_training(output)
    return DraftTraining(
        student, output, options.seconds, options.objective, writing, is_trained=start is not None
    )


def _lasting_name(target: str) -> str:
    """Return how a draft names its target: a relative path would depend on where the draft is used."""
    named = Path(target).expanduser()
    return str(named.resolve()) if target != "embedded" and named.exists() else target


def _chosen_layers(options: TrainOptions, num_layers: int) -> tuple[int, ...]:
    """Return the layers of a target that a draft begins as.

    Raises:
        SettingsError: the target has not so many.
    """
    from reason_spec.lab.drafts.student import evenly_spread

    layers = options.layers
    if isinstance(layers, int):
        return evenly_spread(num_layers, layers)
    if layers[-1] >= num_layers:
        raise SettingsError(f"--layers names {layers[-1]}, and the target has {num_layers} layers")
    return layers


def _vocabulary(
    trained: Sequence[TrainingText], always: Iterable[int], limit: int, options: TrainOptions, output: Path
) -> list[int] | None:
    """Return the ids of the tokens that a draft predicts; None for all.

    A training that continues keeps its own, whatever answers there are now.
    """
    from reason_spec.engines.eagle_files import is_head
    from reason_spec.engines.pruned import find_pruned
    from reason_spec.engines.torch.eagle_head import EagleHead
    from reason_spec.lab.drafts.texts import frequent_tokens

    if not 0 < options.vocabulary < limit:
        return None
    kept: Sequence[int] = ()
    if options.kind == "head" and is_head(output) and not options.fresh:
        kept = EagleHead.load(output).tokens.tolist()
    elif options.kind == "model" and not options.fresh and (draft := find_pruned(str(output))) is not None:
        kept = draft.config.vocabulary or ()
    if len(kept) == options.vocabulary:
        return list(kept)
    return frequent_tokens(trained, always, options.vocabulary, limit)


def _report(
    training: DraftTraining, agreements: Mapping[float, Agreement], output: Path, screen: Screen
) -> None:
    curve, best = training.curve, training.best
    assert best is not None, "a training that has ended was measured"
    if screen.as_json:
        accepted = {f"{temperature:g}": found.accepted for temperature, found in agreements.items()}
        content = {"output": str(output), "best": asdict(best), "num_points": len(curve)}
        screen.write_json({**content, "accepted_at": accepted})
    else:
        for temperature, found in agreements.items():
            rows = ", ".join(f"{place + 1}: {share:.0%}" for place, share in enumerate(found.accepted))
            screen.print(
                f"Accepted greedy drafts in a row on held-out answers at temperature {temperature:g}: {rows}"
            )
        screen.print(f"The draft is in {output}. Use it with --draft {output}")
    if find_spec("matplotlib") is None:
        screen.say("No picture of the training: pip install 'reason-spec[plots]' draws it.")
        return
    from reason_spec.lab.drafts.figures import draw_curve

    draw_curve(curve, output / PICTURE)
