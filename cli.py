"""The ``reason-spec`` command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reason_spec import __version__
from reason_spec.cli_server import SERVE_HELP, keys_app, serve
from reason_spec.command import CommandGroup, counting, run_app, run_interruptible, waiting
from reason_spec.errors import SettingsError, unknown_name
from reason_spec.options import (
    CachePathOption,
    CompareOption,
    ConcurrencyOption,
    ConfigOption,
    DepthOption,
    DraftOption,
    DraftUrlOption,
    DryRunOption,
    EngineOption,
    FreshOption,
    GenerateOption,
    GenerateSeedOption,
    JsonOption,
    LimitOption,
    MaxTokensOption,
    OutputOption,
    PromptOption,
    QuietOption,
    RouterOption,
    SampleOption,
    SamplesOption,
    SeedOption,
    SetOption,
    ShowRejectedOption,
    SkipBadOption,
    SourcesArgument,
    StopOption,
    StrategyOption,
    TargetOption,
    TargetUrlOption,
    TaskOption,
    TemperatureOption,
    TenantOption,
    TenantToEraseOption,
    TopKOption,
    TopPOption,
    VerifierOption,
    WidthOption,
    compared_strategies,
    resolve_settings,
)

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


tune_app = typer.Typer(no_args_is_help=True, help="Choose thresholds on problems with known answers.")
router_app = typer.Typer(
    no_args_is_help=True,
    help="Train and measure a router: which drafted steps would the target write better?",
)
cache_app = typer.Typer(
    no_args_is_help=True,
    help="Look after the suffix cache on disk: texts that tokens and steps are proposed from.",
)
app.add_typer(tune_app, name="tune")
app.add_typer(router_app, name="router")
app.add_typer(cache_app, name="cache")
app.add_typer(keys_app, name="keys")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Answer reasoning problems sooner with step-level and token-level speculation."""


# Given here: of a docstring, the line breaks inside a paragraph would show.
@app.command(
    help="Solve problems step by step with a draft and a target.\n\n"
    "A question streams its steps as they become final. A file is solved as a whole: its results are "
    "written to a folder and summed up in a table, and a run that was stopped goes on where it was."
)
def solve(
    sources: SourcesArgument = None,
    sample: SampleOption = False,
    task: TaskOption = None,
    limit: LimitOption = None,
    samples: SamplesOption = 1,
    skip_bad: SkipBadOption = False,
    prompt: PromptOption = None,
    strategy: StrategyOption = None,
    compare: CompareOption = None,
    verifier: VerifierOption = None,
    router: RouterOption = None,
    depth: DepthOption = None,
    width: WidthOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    target_url: TargetUrlOption = None,
    draft_url: DraftUrlOption = None,
    engine: EngineOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = None,
    stop: StopOption = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    concurrency: ConcurrencyOption = 1,
    show_rejected: ShowRejectedOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.evaluation.console import RunOptions, solve_sources
    from reason_spec.evaluation.sources import read_sources

    if strategy is not None and compare is not None:
        raise SettingsError("--strategy and --compare exclude each other; --compare names all strategies")
    flags = {
        "task.name": task,
        "task.prompt": prompt,
        "strategy.name": strategy,
        "strategy.depth": depth,
        "strategy.width": width,
        "verifier.name": verifier,
        "router.name": router,
        "target.model": target,
        "draft.model": draft,
        "target.kind": "remote" if target_url else engine,
        "target.remote.base_urls": target_url or None,
        "draft.kind": "remote" if draft_url else engine,
        "draft.remote.base_urls": draft_url or None,
        "sampling.temperature": temperature,
        "sampling.top_k": top_k,
        "sampling.top_p": top_p,
        "sampling.seed": seed,
        "sampling.max_tokens": max_tokens,
        "sampling.stop": tuple(stop) if stop else None,
    }
    settings = resolve_settings(config, flags, assignments)
    strategies = compared_strategies(compare) if compare is not None else (settings.strategy.name,)
    if dry_run:
        from reason_spec.evaluation.dry_run import show_placement

        raise typer.Exit(show_placement(settings, strategies, as_json=as_json))
    options = RunOptions(
        strategies=strategies,
        samples=samples,
        concurrency=concurrency,
        output=output,
        fresh=fresh,
        show_rejected=show_rejected,
        as_json=as_json,
        quiet=quiet,
    )
    chosen = read_sources(sources or [], settings.task.name, sample=sample, limit=limit, skip_bad=skip_bad)
    raise typer.Exit(run_interruptible(solve_sources(settings, chosen, options)))


app.command("serve", help=SERVE_HELP)(serve)


@app.command()
def grade(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Responses: jsonl with question, answer, response.")
    ],
    output: Annotated[Path, typer.Option(help="The same lines with prediction and correct.")],
    task: TaskOption = None,
    skip_bad: SkipBadOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Grade existing responses against their reference answers."""
    from reason_spec.evaluation.report import grade_line
    from reason_spec.tasks.regrade import grade_file

    settings = resolve_settings(config, {"task.name": task})
    with counting("Grading", quiet or as_json) as advance:
        counts = grade_file(
            file, output, settings.task.name, skip_bad, on_record=lambda grades: advance(len(grades))
        )
    if as_json:
        record = {**counts._asdict(), "accuracy": counts.accuracy, "output": str(output)}
        record["bad_lines"] = [line._asdict() for line in counts.bad_lines]
        typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        typer.echo(grade_line(counts))


@app.command()
def verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Pairs of steps: jsonl with a, b and optionally context.")
    ],
    output: Annotated[Path, typer.Option(help="The same lines with verdict and score, in order.")],
    verifier: VerifierOption = None,
    skip_bad: SkipBadOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Judge pairs of steps: may the first stand in the place of the second?"""
    from reason_spec.accelerator import models_to_ask
    from reason_spec.evaluation.report import verify_line
    from reason_spec.verifiers.base import create_verifier
    from reason_spec.verifiers.pairs import verify_file_async

    settings = resolve_settings(config, {"verifier.name": verifier})
    judge = create_verifier(settings=settings.verifier, models=models_to_ask(settings))
    with waiting(f"Verifying with {judge.name}", quiet or as_json):
        summary = run_interruptible(verify_file_async(file, output, judge, skip_bad))
    if as_json:
        typer.echo(json.dumps({**asdict(summary), "output": str(output)}))
    else:
        typer.echo(verify_line(summary))


@tune_app.command(
    "verifier",
    help="Find the laxest threshold of a verifier at which a stated share of answers is not exceeded.\n\n"
    "The verifier has to judge drafted steps alone, as likelihood does. Without problems of your own the "
    "embedded pair is given fresh ones. A run that was stopped goes on where it was.",
)
def tune_verifier(
    sources: SourcesArgument = None,
    loss: Annotated[
        float,
        typer.Option(help="Points of answers that may be lost: right by the target alone, and now wrong."),
    ] = 1.0,
    confidence: Annotated[float, typer.Option(help="Chance that the loss is no higher.")] = 0.95,
    thresholds: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Thresholds to try, strictest first. Default: 0.99,0.95,0.9,0.8,0.7,0.5."
        ),
    ] = None,
    whole_curve: Annotated[
        bool, typer.Option("--whole-curve", help="Try all thresholds, also behind the first that fails.")
    ] = False,
    plot: Annotated[bool, typer.Option(help="Draw the curves; needs the extra plots.")] = True,
    sample: SampleOption = False,
    task: TaskOption = None,
    limit: LimitOption = None,
    skip_bad: SkipBadOption = False,
    strategy: Annotated[
        str | None, typer.Option(help="specreason, rsd or hybrid. Default: hybrid, where its verifier fits.")
    ] = None,
    verifier: VerifierOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    target_url: TargetUrlOption = None,
    draft_url: DraftUrlOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    concurrency: ConcurrencyOption = 1,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.evaluation import tune_verifier as tuning
    from reason_spec.evaluation.calibration import LossTest
    from reason_spec.evaluation.console import RunOptions

    flags = {
        "task.name": task,
        "strategy.name": strategy,
        "verifier.name": verifier,
        "target.model": target,
        "draft.model": draft,
        "target.kind": "remote" if target_url else None,
        "target.remote.base_urls": target_url or None,
        "draft.kind": "remote" if draft_url else None,
        "draft.remote.base_urls": draft_url or None,
    }
    settings = tuning.with_judging_strategy(resolve_settings(config, flags, assignments), strategy)
    options = tuning.TuneOptions(
        LossTest(loss / 100, confidence),
        RunOptions((), concurrency=concurrency, output=output, fresh=fresh, as_json=as_json, quiet=quiet),
        tuning.THRESHOLDS if thresholds is None else tuning.read_thresholds(thresholds),
        whole_curve=whole_curve,
        plot=plot,
    )
    chosen = tuning.read_problems(
        sources or [], settings, options.test, sample=sample, limit=limit, skip_bad=skip_bad
    )
    raise typer.Exit(run_interruptible(tuning.tune_verifier(settings, chosen, options)))


@app.command()
def settings(
    config: ConfigOption = None,
    assignments: SetOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table of all settings and their defaults instead.")
    ] = False,
) -> None:
    """Print the resolved settings as YAML: defaults, file, environment and --set together."""
    from reason_spec.settings_table import markdown_table

    if markdown:
        typer.echo(markdown_table())
        return
    resolved = resolve_settings(config, {}, assignments)
    typer.echo(f"{resolved.to_yaml()}# hash: {resolved.hash}")


@app.command()
def doctor(
    output: Annotated[Path, typer.Option(help="Folder that results will be written to.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check the installation and say what to do about each problem."""
    from reason_spec import doctor as doctor_module

    checks = doctor_module.run_checks(output)
    if as_json:
        typer.echo(doctor_module.to_json(checks))
    else:
        from rich.console import Console

        Console().print(doctor_module.render(checks))
    raise typer.Exit(doctor_module.exit_code(checks))


LabelsArgument = Annotated[
    list[Path], typer.Argument(metavar="LABELS", help="Folders that router collect wrote.")
]


@router_app.command(
    "collect",
    help="Label drafted steps: how much better is the target's own step at the same place?\n\n"
    "Both models write each step, and where they differ each of the two is continued several times by the "
    "target and graded, or rated by a reward model. A stopped run goes on where it was.",
)
def router_collect(
    output: Annotated[Path, typer.Option(help="Folder for the labels.", show_default=False)],
    sources: SourcesArgument = None,
    sample: SampleOption = False,
    generate: GenerateOption = None,
    generate_seed: GenerateSeedOption = 0,
    task: TaskOption = None,
    limit: LimitOption = None,
    skip_bad: SkipBadOption = False,
    prompt: PromptOption = None,
    label: Annotated[str, typer.Option(help="What a step is worth: rollouts or reward.")] = "rollouts",
    rollouts: Annotated[int, typer.Option(min=1, help="Continuations of each step.")] = 4,
    rollout_temperature: Annotated[
        float, typer.Option(min=0, help="Temperature of the continuations.")
    ] = 0.7,
    target: TargetOption = None,
    draft: DraftOption = None,
    engine: EngineOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at once.")] = 16,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.evaluation import router_console
    from reason_spec.evaluation.advantage import LabelOptions
    from reason_spec.evaluation.console import RunOptions, Screen
    from reason_spec.evaluation.sources import generate_problems, read_sources

    if label not in ("rollouts", "reward"):
        raise unknown_name("label", label, ("rollouts", "reward"))
    flags = {
        "task.name": task,
        "task.prompt": prompt,
        "target.model": target,
        "draft.model": draft,
        "target.kind": engine,
        "draft.kind": engine,
        "sampling.seed": seed,
        "sampling.max_tokens": max_tokens,
    }
    settings = resolve_settings(config, flags, assignments)
    if generate is not None and (sources or sample):
        raise SettingsError("--generate makes all problems itself: leave out files and --sample")
    chosen = (
        read_sources(sources or [], settings.task.name, sample=sample, limit=limit, skip_bad=skip_bad)
        if generate is None
        else generate_problems("train", generate, generate_seed)
    )
    screen = Screen(RunOptions((), as_json=as_json, quiet=quiet))
    options = LabelOptions(label, rollouts, rollout_temperature)  # type: ignore[arg-type]
    work = router_console.collect_labels(
        settings, chosen, options, output, concurrency=concurrency, fresh=fresh, screen=screen
    )
    labels = run_interruptible(work)
    if as_json:
        typer.echo(json.dumps({"output": str(output), **router_console.labels_record(labels)}))
    else:
        typer.echo(router_console.labels_line(labels, output))


@router_app.command("train")
def router_train(
    labels: LabelsArgument,
    output: Annotated[Path, typer.Option(help="File for the router.", show_default=False)],
    model: Annotated[
        str, typer.Option(help="logistic, boosting, mean of both, or auto: the best of them.")
    ] = "auto",
    loss: Annotated[
        float, typer.Option(min=0, help="Answers in a hundred that the threshold may lose.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Train a router on labelled steps."""
    from reason_spec.evaluation import router_console
    from reason_spec.evaluation.router_training import MODEL_KINDS

    if model not in ("auto", *MODEL_KINDS):
        raise unknown_name("model", model, ("auto", *MODEL_KINDS))
    with waiting("Training", as_json):
        trained = router_console.train_router(
            labels, output, next((kind for kind in MODEL_KINDS if kind == model), None), loss
        )
    if as_json:
        typer.echo(json.dumps({"output": str(output), "threshold": trained.threshold, **trained.trained}))
    else:
        typer.echo(router_console.trained_line(trained, output))


@router_app.command("eval")
def router_eval(
    labels: LabelsArgument,
    router: RouterOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A trained router. Default: the embedded pair's.", show_default=False),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw the curves into this file.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a router on labelled steps that it was not trained on."""
    from reason_spec.evaluation import router_console
    from reason_spec.evaluation.pictures import require_matplotlib

    if png is not None:
        require_matplotlib("a picture of the curves")
    settings = resolve_settings(
        config, {"router.name": router or "learned", "router.file": file}, assignments
    )
    with waiting("Measuring", as_json):
        report = router_console.measure_router(labels, settings.router)
    if png is not None:
        router_console.draw_report(report, png)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        router_console.print_report(report)


@cache_app.command("stats")
def cache_stats(
    path: CachePathOption = None,
    tenant: TenantOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the cache holds by tenant and source; nothing is changed."""
    from reason_spec.evaluation import cache_console
    from reason_spec.evaluation.console import RunOptions, Screen
    from reason_spec.suffix.store import list_files

    settings = resolve_settings(config, {"suffix.path": path}, assignments)
    folder = cache_console.folder_of(settings.suffix)
    with waiting("Reading", as_json):
        files = list_files(folder)
    if tenant is not None:
        files = [file for file in files if file.tenant == tenant]
        if not files:
            raise cache_console.nothing_kept(folder, tenant)
    if as_json:
        typer.echo(json.dumps(cache_console.stats_record(folder, files), ensure_ascii=False))
    else:
        cache_console.print_stats(folder, files, Screen(RunOptions(())))


@cache_app.command(
    "import",
    help="Learn past conversations, so that the cache is warm before the first question.\n\n"
    "A file holds one conversation a line: an object with messages in OpenAI's form, or the list of them; "
    "gzip too. What 'cache export' wrote is taken over as it is. The target's tokenizer and chat template "
    "make the tokens that a real conversation would have.",
)
def cache_import(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Conversations (jsonl, json, also gzip), or exports."),
    ],
    path: CachePathOption = None,
    tenant: TenantOption = None,
    target: TargetOption = None,
    skip_bad: SkipBadOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.evaluation import cache_console
    from reason_spec.evaluation.console import RunOptions, Screen

    flags = {"suffix.path": path, "suffix.tenant": tenant, "target.model": target}
    settings = resolve_settings(config, flags, assignments)
    screen = Screen(RunOptions((), as_json=as_json, quiet=quiet))
    report = cache_console.import_files(settings, files, skip_bad=skip_bad, screen=screen)
    folder = cache_console.folder_of(settings.suffix)
    cache_console.warn_of_bad_lines(report.bad_lines, screen)
    if as_json:
        typer.echo(json.dumps({"path": str(folder), **asdict(report)}, ensure_ascii=False))
    else:
        typer.echo(cache_console.import_line(report, folder))


@cache_app.command(
    "export",
    help="Write all texts of a tenant to a file that 'cache import' takes on another machine.\n\n"
    "One document a line, as token ids by source, and as text for people to read. The file holds what "
    "users and models said: it is readable by its owner alone.",
)
def cache_export(
    output: Annotated[
        Path, typer.Option(help="File to write; a name that ends in .gz is compressed.", show_default=False)
    ],
    path: CachePathOption = None,
    tenant: TenantOption = None,
    target: TargetOption = None,
    tokens_only: Annotated[
        bool, typer.Option("--tokens-only", help="Leave the texts out; needs no tokenizer.")
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.evaluation import cache_console
    from reason_spec.evaluation.amounts import counted

    flags = {"suffix.path": path, "suffix.tenant": tenant, "target.model": target}
    settings = resolve_settings(config, flags, assignments)
    with waiting("Exporting", quiet or as_json):
        header = cache_console.export_tenant(settings, output, tokens_only=tokens_only)
    if as_json:
        typer.echo(json.dumps({"output": str(output), **asdict(header)}, ensure_ascii=False))
    elif not quiet:
        texts = counted(header.num_documents, "text")
        typer.echo(f"{texts} of tenant {header.tenant!r} written to {output}")


@cache_app.command("erase")
def cache_erase(
    tenant: TenantToEraseOption,
    path: CachePathOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove everything that is kept of a tenant, for all models, files set aside included."""
    from reason_spec.evaluation import cache_console
    from reason_spec.evaluation.amounts import counted, size
    from reason_spec.suffix.store import erase

    settings = resolve_settings(config, {"suffix.path": path}, assignments)
    folder = cache_console.folder_of(settings.suffix)
    files = cache_console.files_to_erase(folder, tenant)
    if not yes:
        held = size(sum(file.stat().st_size for file in files))
        typer.confirm(f"Remove {held} of tenant {tenant!r} in {folder} for good?", abort=True, err=True)
    gone = erase(folder, tenant)
    if as_json:
        record = {"path": str(folder), "tenant": tenant, "files": [file.name for file in gone]}
        typer.echo(json.dumps(record, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"Removed {counted(len(gone), 'file')} of tenant {tenant!r} from {folder}.")


def main() -> None:
    """Run the command line."""
    run_app(app)
