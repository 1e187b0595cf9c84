"""The commands of ``draft``."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from reason_spec.cli.flags import GENERATE_FLAGS, PROBLEM_FLAGS, Flags, takes_flags
from reason_spec.cli.options import (
    SAMPLING,
    FreshOption,
    JsonOption,
    OutputOption,
    QuietOption,
    SourcesArgument,
    setting_option,
)
from reason_spec.lab.drafts.schedule import ScheduleName


class DraftKind(StrEnum):
    MODEL = "model"
    HEAD = "head"


draft_app = typer.Typer(no_args_is_help=True, help="Make a draft for a target, measure it, and adapt it.")


@draft_app.command(
    "train",
    help="Train a draft on the target's own answers.\n\n"
    "The target answers the problems (OUTPUT/answers), then the draft is trained on what it wrote. "
    "The answers to one prompt in twenty are held out and measure the draft. A stopped command continues. "
    "Use the draft with --draft OUTPUT.",
)
@takes_flags(*PROBLEM_FLAGS, *GENERATE_FLAGS, "prompt", "target", "engine", "seed", "max_tokens")
def draft_train(
    output: Annotated[Path, typer.Option(help="Folder for the draft.", show_default=False)],
    flags: Flags,
    sources: SourcesArgument = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="File of problems, as those of the arguments; several times for several.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        setting_option(
            "sampling.temperature",
            "--temperature",
            "Temperature of the answers, 0 is greedy; several times: every problem is answered at each.",
            SAMPLING,
        ),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.0, help="Training time, all starts together; 0: only the answers.")
    ] = 1.0,
    kind: Annotated[
        DraftKind,
        typer.Option(
            help="model: some of the target's layers, which write tokens and whole steps. head: one layer on "
            "the target's hidden states (EAGLE-3), which writes tokens, and needs less training."
        ),
    ] = DraftKind.MODEL,
    layers: Annotated[
        str,
        typer.Option(
            metavar="N|A,B,...",
            help="Of kind model: number of layers, spread evenly, or the layers themselves.",
        ),
    ] = "4",
    vocabulary: Annotated[
        int,
        typer.Option(min=0, help="Tokens that the draft predicts, the most frequent ones; 0: all."),
    ] = 8192,
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFT",
            help="A trained draft of the same kind and target, a folder or models:smollm2-gsm8k-draft. The "
            "training begins with its weights, keeps its layers and predicted tokens, and ends no worse.",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        ScheduleName,
        typer.Option(
            help="What the draft learns: the target's tokens, its distribution (kl), that on text of the "
            "draft itself (on-policy), or all three in turn (phased). Each begins with cross-entropy."
        ),
    ] = "cross-entropy",
    samples: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at once.")] = 16,
    device: Annotated[str, typer.Option(help="Device of the training: auto, cpu, cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the training.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train anew: replace the draft, and keep the answers.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue what OUTPUT holds, and fail if it holds nothing. "
            "Without it a stopped command continues as well.",
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli import draft_screens
    from reason_spec.cli.screen import Screen
    from reason_spec.evaluation.sources import generate_problems, read_sources

    # Each value is checked as the setting is.
    at_each = [flags.resolve({"sampling.temperature": value}) for value in temperature or (None,)]
    settings = at_each[0]
    options = draft_screens.TrainOptions(
        kind.value,
        hours * 3600,
        draft_screens.parse_layers(layers),
        vocabulary,
        objective,
        samples,
        concurrency,
        device,
        threads,
        fresh,
        resume,
        tuple(sorted(each.sampling.temperature for each in at_each)),
        start_from,
    )
    draft_screens.check_options(settings, options, output)
    files = [*(sources or ()), *map(str, prompts or ())]
    chosen = flags.problems(settings, files or None, read_sources, partial(generate_problems, "train"))
    screen = Screen(quiet=quiet, as_json=as_json)
    draft_screens.make_draft(settings, chosen, options, output, screen)


@draft_app.command(
    "eval",
    help="Measure a draft: accepted tokens and steps, its cost, and the speed-up that is expected and "
    "measured.\n\n"
    "DRAFT is a folder of draft train, or any model with the target's tokenizer and --target. Without files "
    "the problems of the package are used. Texts are measured up to where they begin to loop. A stopped "
    "command continues.",
)
@takes_flags("task", "limit", "skip_bad", "prompt", "target", "verifier", "depth", "seed", "max_tokens")
def draft_eval(
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help="Folder of the draft.", show_default=False)],
    flags: Flags,
    sources: SourcesArgument = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.draft_eval_screens import measure_draft
    from reason_spec.cli.screen import Screen

    screen = Screen(quiet=quiet, as_json=as_json)
    measure_draft(flags, draft, sources, screen, output=output, fresh=fresh)


@draft_app.command(
    "adapt",
    help="Train a draft further while its target is served, on the answers that the server keeps.\n\n"
    "Start the server with --set server.learn_folder=FOLDER. This process waits for new answers, trains on "
    "one CPU thread at the lowest priority, and writes a version (DRAFT/versions/N) if it agrees better with "
    "answers that were held out. The server tries it, and drops it if fewer draft tokens are accepted.",
)
def draft_adapt(
    draft: Annotated[Path, typer.Argument(help="Folder of a draft that 'draft train' made.")],
    answers: Annotated[
        Path, typer.Option("--from", help="Folder of server.learn_folder.", show_default=False)
    ],
    minutes: Annotated[float, typer.Option(min=0.0, help="Training time for each version.")] = 1.0,
    device: Annotated[str, typer.Option(help="Device of the training: auto, cpu, cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the training.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Stop instead of waiting for more answers.")] = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.draft_adaptation import AdaptOptions, adapt_draft
    from reason_spec.cli.screen import Screen

    adapt_draft(draft, AdaptOptions(answers, minutes * 60, device, threads, once), Screen(quiet=quiet))
