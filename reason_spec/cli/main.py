"""The ``reason-spec`` command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reason_spec import __version__
from reason_spec.cli.cache import cache_app
from reason_spec.cli.command import CommandGroup, counting, run_app, run_interruptible, waiting
from reason_spec.cli.eval import EVAL_HELP, evaluate
from reason_spec.cli.export import EXPORT_HELP, export
from reason_spec.cli.options import (
    CompareOption,
    ConcurrencyOption,
    ConfigOption,
    DepthOption,
    DraftOption,
    DraftUrlOption,
    DryRunOption,
    EngineOption,
    FreshOption,
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
    TopKOption,
    TopPOption,
    VerifierOption,
    WidthOption,
    compared_strategies,
    resolve_settings,
    settings_flags,
)
from reason_spec.cli.plan import PLAN_HELP, plan
from reason_spec.cli.report import REPORT_HELP, report
from reason_spec.cli.router import router_app
from reason_spec.cli.server import SERVE_HELP, keys_app, serve
from reason_spec.cli.tune import tune_app
from reason_spec.errors import SettingsError

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    from reason_spec.evaluation.sources import read_sources, sample_of

    if strategy is not None and compare is not None:
        raise SettingsError("--strategy and --compare exclude each other; --compare names all strategies")
    settings = resolve_settings(config, settings_flags(locals()), assignments)
    strategies = compared_strategies(compare) if compare is not None else (settings.strategy.name,)
    if dry_run:
        from reason_spec.cli.dry_run import show_placement

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
    chosen = read_sources(
        sources or [], settings.task.name, sample=sample_of(settings, sample), limit=limit, skip_bad=skip_bad
    )
    raise typer.Exit(run_interruptible(solve_sources(settings, chosen, options)))


app.command("eval", help=EVAL_HELP)(evaluate)
app.command("serve", help=SERVE_HELP)(serve)
app.command("plan", help=PLAN_HELP)(plan)
app.command("report", help=REPORT_HELP)(report)
app.command("export", help=EXPORT_HELP)(export)


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
    from reason_spec.accelerator.verifier_models import models_to_ask
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


@app.command()
def settings(
    config: ConfigOption = None,
    assignments: SetOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table of all settings and their defaults instead.")
    ] = False,
) -> None:
    """Print the resolved settings as YAML: defaults, file, environment and --set together."""
    from reason_spec.cli.settings_table import markdown_table

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
    from reason_spec.cli import doctor as doctor_module

    checks = doctor_module.run_checks(output)
    if as_json:
        typer.echo(doctor_module.to_json(checks))
    else:
        from rich.console import Console

        Console().print(doctor_module.render(checks))
    raise typer.Exit(doctor_module.exit_code(checks))


def main() -> None:
    """Run the command line."""
    run_app(app)
