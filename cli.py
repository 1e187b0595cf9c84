"""The ``reason-spec`` command."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from typer.core import TyperGroup

from reason_spec import __version__
from reason_spec.errors import ReasonSpecError, SettingsError
from reason_spec.settings import Settings, load_settings

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULTS = Settings()
_EXIT_INTERRUPTED = 130


class _Group(TyperGroup):
    """Prints the user's and the environment's errors as one line; our own keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ReasonSpecError as error:
            _error_console().print(
                f"error: {error}", style="red", soft_wrap=True, highlight=False, markup=False
            )
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _error_console().print("Interrupted.")
            raise typer.Exit(_EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Answer reasoning problems sooner with step-level and token-level speculation.",
)


def _error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


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


# Options -------------------------------------------------------------------------------------


def _names_of(kind: str) -> list[str]:
    if kind == "strategy":
        from reason_spec.strategies.factory import strategy_names

        return strategy_names()
    if kind == "verifier":
        from reason_spec.verifiers.base import verifier_names

        return list(verifier_names())
    from reason_spec.tasks.base import task_names

    return list(task_names())


def _completion(kind: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in _names_of(kind) if name.startswith(incomplete)]

    return complete


def _complete_names(incomplete: str) -> list[str]:
    """Complete the last of several strategies separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    chosen = before.split(",")
    return [
        before + comma + name
        for name in _names_of("strategy")
        if name.startswith(last) and name not in chosen
    ]


def _setting(path: str, *flags: str, text: str, panel: str, **options: Any) -> Any:
    """Return a flag whose default, shown in the help, is read from the settings tree."""
    value: Any = _DEFAULTS
    for name in path.split("."):
        value = getattr(value, name)
    shown = (
        ", ".join(value) or "none" if isinstance(value, tuple) else "none" if value is None else str(value)
    )
    return typer.Option(
        *flags, help=f"{text} Default: {shown}.", show_default=False, rich_help_panel=panel, **options
    )


_MODELS, _STRATEGY, _SAMPLING = "Models", "Strategy", "Sampling"
_PROBLEMS, _OUTPUT = "Problems", "Output"

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file, YAML or JSON.", rich_help_panel=_MODELS)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting by its dotted name, such as strategy.num_draft_tokens=8.",
        rich_help_panel=_MODELS,
    ),
]
TaskOption = Annotated[
    str | None,
    _setting(
        "task.name",
        "--task",
        text="What the problems are.",
        panel=_PROBLEMS,
        autocompletion=_completion("task"),
    ),
]
VerifierOption = Annotated[
    str | None,
    _setting(
        "verifier.name",
        "--verifier",
        text="What decides whether a drafted step stands.",
        panel=_STRATEGY,
        autocompletion=_completion("verifier"),
    ),
]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave unusable lines out.", rich_help_panel=_PROBLEMS)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_OUTPUT)
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but the result.", rich_help_panel=_OUTPUT)
]


def _resolve(
    config: Path | None, flags: dict[str, Any], assignments: Sequence[str] | None = None
) -> Settings:
    """Resolve the settings and check the names in them.

    Raises:
        SettingsError: a name is unknown or a value is out of range.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = _parse_assignments(assignments or ())
    for name in given.keys() & assigned.keys():
        raise SettingsError(f"{name} is given twice: by --set and by its own flag")
    settings = load_settings(config, {**given, **assigned})
    _check_name("strategy", settings.strategy.name)
    _check_name("verifier", settings.verifier.name)
    _check_name("task", settings.task.name)
    return settings


def _parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    import yaml

    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name.strip() and equals):
            raise SettingsError(f"--set {assignment!r}: write NAME=VALUE, such as strategy.depth=6")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        # "Be brief: no words" is meant as a text, and nothing after the sign as an empty one.
        is_text = isinstance(value, dict) or (value is None and text.strip() not in ("null", "~"))
        values[name.strip()] = text if is_text else value
    return values


def _check_name(kind: str, name: str) -> None:
    known = _names_of(kind)
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise SettingsError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


# solve ---------------------------------------------------------------------------------------


@app.command(
    help="Solve problems step by step with a draft and a target.\n\n"
    "A question streams its steps as they become final. A file is solved as a whole: its results are "
    "written to a folder and summed up in a table, and a run that was stopped goes on where it was."
)
def solve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE_OR_QUESTION...",
            help="Files of problems (jsonl, json, also gzip), or questions; - reads a question from stdin.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample", help="Solve the problems that come with the package.", rich_help_panel=_PROBLEMS
        ),
    ] = False,
    task: TaskOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Solve this many problems of each file at the most.", rich_help_panel=_PROBLEMS
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Answers to each problem.", rich_help_panel=_PROBLEMS)
    ] = 1,
    skip_bad: SkipBadOption = False,
    prompt: Annotated[
        str | None,
        _setting("task.prompt", text="auto, plain or boxed: how a question is put.", panel=_PROBLEMS),
    ] = None,
    strategy: Annotated[
        str | None,
        _setting(
            "strategy.name",
            text="Who writes the steps.",
            panel=_STRATEGY,
            autocompletion=_completion("strategy"),
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Solve every problem with each of these strategies, in shuffled order.",
            rich_help_panel=_STRATEGY,
            autocompletion=_complete_names,
        ),
    ] = None,
    verifier: VerifierOption = None,
    depth: Annotated[
        int | None, _setting("strategy.depth", text="Steps the draft runs ahead.", panel=_STRATEGY)
    ] = None,
    width: Annotated[
        int | None, _setting("strategy.width", text="Drafts tried for each step.", panel=_STRATEGY)
    ] = None,
    target: Annotated[
        str | None, _setting("target.model", text="Large model: a folder or an id.", panel=_MODELS)
    ] = None,
    draft: Annotated[
        str | None, _setting("draft.model", text="Small model: a folder or an id.", panel=_MODELS)
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    temperature: Annotated[
        float | None, _setting("sampling.temperature", text="0 is greedy.", panel=_SAMPLING)
    ] = None,
    top_k: Annotated[
        int | None, _setting("sampling.top_k", text="Sample among so many tokens; 0 is off.", panel=_SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None, _setting("sampling.top_p", text="Sample among this share; 1 is off.", panel=_SAMPLING)
    ] = None,
    seed: Annotated[
        int | None,
        _setting("sampling.seed", text="Seed of the samples and of the order.", panel=_SAMPLING),
    ] = None,
    max_tokens: Annotated[
        int | None, _setting("sampling.max_tokens", text="Tokens of one answer at the most.", panel=_SAMPLING)
    ] = None,
    stop: Annotated[
        list[str] | None,
        _setting(
            "sampling.stop", text="End the answer before this text; may be given again.", panel=_SAMPLING
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results. Default: runs/NAME-HASH for files, none for questions.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Delete what the output folder holds and start anew.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Problems solved at once.", rich_help_panel=_OUTPUT)
    ] = 1,
    show_rejected: Annotated[
        bool, typer.Option("--show-rejected", help="Show refused drafts too.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.evaluation.console import RunOptions, answer_questions, solve_problems
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
        "target.model": target,
        "draft.model": draft,
        "sampling.temperature": temperature,
        "sampling.top_k": top_k,
        "sampling.top_p": top_p,
        "sampling.seed": seed,
        "sampling.max_tokens": max_tokens,
        "sampling.stop": tuple(stop) if stop else None,
    }
    settings = _resolve(config, flags, assignments)
    names = _compared(compare) if compare is not None else (settings.strategy.name,)
    options = RunOptions(
        strategies=names,
        samples=samples,
        concurrency=concurrency,
        output=output,
        fresh=fresh,
        show_rejected=show_rejected,
        as_json=as_json,
        quiet=quiet,
    )
    chosen = read_sources(sources or [], settings.task.name, sample=sample, limit=limit, skip_bad=skip_bad)
    streams = chosen.only_questions and compare is None
    if streams and concurrency > 1:
        raise SettingsError("--concurrency is for files: questions are answered one after another")
    if streams and fresh and output is None:
        raise SettingsError("--fresh needs --output: without it the answer to a question is not stored")
    if show_rejected and not streams:
        raise SettingsError("--show-rejected is for a question; the verdicts on a file are in its results")
    if streams:
        asyncio.run(answer_questions(settings, chosen, options))
    else:
        raise typer.Exit(asyncio.run(solve_problems(settings, chosen, options)))


def _compared(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) < 2:
        raise SettingsError(f"--compare {text!r}: name two strategies or more, separated by commas")
    for name in names:
        _check_name("strategy", name)
    return names


# Files of responses and of pairs of steps ----------------------------------------------------


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(help="Responses: jsonl with question, answer, response.")],
    output: Annotated[Path, typer.Option(help="The same lines with prediction and correct.")],
    task: TaskOption = None,
    skip_bad: SkipBadOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Grade existing responses against their reference answers."""
    from reason_spec.evaluation.statistics import wilson_interval
    from reason_spec.tasks.regrade import grade_file

    settings = _resolve(config, {"task.name": task})
    with _counting("Grading", quiet or as_json) as advance:
        counts = grade_file(
            file, output, settings.task.name, skip_bad, on_record=lambda grades: advance(len(grades))
        )
    if as_json:
        record = {**counts._asdict(), "accuracy": counts.accuracy, "output": str(output)}
        record["bad_lines"] = [line._asdict() for line in counts.bad_lines]
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    interval = wilson_interval(counts.num_correct, counts.num_responses)
    accuracy = f"{100 * counts.num_correct / counts.num_responses:.1f} %"
    typer.echo(
        f"{counts.num_correct} of {counts.num_responses} responses are correct: "
        f"{accuracy} (95 % interval {100 * interval.low:.1f} - {100 * interval.high:.1f} %); "
        f"{counts.num_without_answer} without an answer, {counts.num_ungraded} undecided"
        + _skipped(len(counts.bad_lines))
    )


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="Pairs of steps: jsonl with a, b and optionally context.")],
    output: Annotated[Path, typer.Option(help="The same lines with verdict and score, in order.")],
    verifier: VerifierOption = None,
    skip_bad: SkipBadOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Judge pairs of steps: may the first stand in the place of the second?"""
    from reason_spec.verifiers.base import create_verifier
    from reason_spec.verifiers.pairs import verify_file

    settings = _resolve(config, {"verifier.name": verifier})
    with _waiting(f"Verifying with {settings.verifier.name}", quiet or as_json):
        summary = verify_file(file, output, create_verifier(settings=settings.verifier), skip_bad)
    if as_json:
        typer.echo(json.dumps({**asdict(summary), "output": str(output)}))
        return
    counts = ", ".join(f"{summary.decisions.get(name, 0)} {name}" for name in ("accept", "reject", "unknown"))
    each = 1000 * summary.seconds / summary.num_pairs if summary.num_pairs else 0.0
    typer.echo(
        f"{summary.num_pairs} pairs: {counts}; {each:.1f} ms each" + _skipped(summary.num_skipped_lines)
    )


def _skipped(count: int) -> str:
    return f"; {count} unusable lines left out" if count else ""


@contextmanager
def _counting(text: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a running count on a terminal; yields what adds to it."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = _error_console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed}"),
        TimeElapsedColumn(),
    )
    disabled = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disabled) as progress:
        counted = progress.add_task(text, total=None)
        yield lambda number: progress.advance(counted, number)


@contextmanager
def _waiting(text: str, quiet: bool) -> Iterator[None]:
    console = _error_console()
    with nullcontext() if quiet or not console.is_terminal else console.status(text):
        yield


# The installation ----------------------------------------------------------------------------


@app.command()
def settings(
    config: ConfigOption = None,
    assignments: SetOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table of all settings and their defaults instead.")
    ] = False,
) -> None:
    """Print the resolved settings as YAML: defaults, file, environment and --set together."""
    if markdown:
        typer.echo("\n".join(_settings_table(Settings)))
        return
    resolved = _resolve(config, {}, assignments)
    typer.echo(f"{resolved.to_yaml()}# hash: {resolved.hash}")


def _settings_table(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the rows of a table of all settings, one for each leaf of the tree."""
    if not path:
        yield from ("| setting | default | values | |", "|---|---|---|---|")
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _settings_table(kind, f"{path}{name}.")
        else:
            default = json.dumps(field.get_default(call_default_factory=True), ensure_ascii=False)
            values = ", ".join(_describe_type(kind, field.metadata))
            yield f"| `{path}{name}` | `{default}` | {values} | {field.description or ''} |"


def _describe_type(kind: Any, constraints: Sequence[object]) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from (f"`{choice}`" for choice in get_args(kind))
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _describe_type(part, ())
    elif get_origin(kind) is tuple:
        yield "list"
    else:
        names = {str: "text", bool: "true or false", int: "integer", float: "number", type(None): "null"}
        yield names.get(kind, str(kind))
    for sign, name in ((">=", "ge"), (">", "gt"), ("<=", "le")):
        limits = [getattr(item, name) for item in constraints if hasattr(item, name)]
        yield from (f"{sign} {limit:g}" for limit in limits)


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


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not end a run
    app()
