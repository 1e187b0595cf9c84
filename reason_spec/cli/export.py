"""The command ``export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from reason_spec.cli.options import JsonOption, QuietOption

EXPORT_HELP = (
    "Write a run's results in the format of another tool.\n\n"
    "A log of Inspect has the answers of one strategy, with grades, tokens, times, and the origin of each "
    "step; 'inspect view' shows it. The run may still be going on."
)


def _complete_strategies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a strategy that the run has."""
    from reason_spec.errors import ReasonSpecError
    from reason_spec.lab.inspect_log import StoredRun

    try:
        names = StoredRun.read(Path(ctx.params["run"])).strategies
    except (ReasonSpecError, KeyError, TypeError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)],
    inspect: Annotated[
        Path,
        typer.Option(
            "--inspect",
            metavar="PLACE",
            help="Output for Inspect: a file, NAME.eval or NAME.json, or a folder for one log per strategy.",
            show_default=False,
        ),
    ],
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help="Export only this strategy.",
            show_default=False,
            autocompletion=_complete_strategies,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a run's results in the format of another tool."""
    from reason_spec.cli.command import waiting
    from reason_spec.lab.inspect_log import StoredRun, export_run

    with waiting("Writing logs", quiet or as_json):
        stored = StoredRun.read(run)
        files = export_run(stored, inspect, strategy, force=force)
    if as_json:
        record = {
            "run": str(run),
            "num_answers": len(stored.outcomes),
            "files": [str(file) for file in files],
        }
        typer.echo(json.dumps(record, ensure_ascii=False))
    elif not quiet:
        for file in files:
            typer.echo(str(file))
