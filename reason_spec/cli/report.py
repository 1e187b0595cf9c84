"""The command ``report``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reason_spec.cli.command import waiting
from reason_spec.cli.options import JsonOption, QuietOption

if TYPE_CHECKING:
    from reason_spec.lab.pages.runs import Run

REPORT_HELP = (
    "Show finished runs: as a page for the browser, or as CSV tables.\n\n"
    "The page is one file and needs no network: tables, accuracy against speed, acceptance, and for single "
    "answers a timeline of both models and the text step by step. Several runs are shown side by side. "
    "Without other options the page is written to RUN/report.html."
)


RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Folders that 'eval' or 'solve' wrote.",
        show_default=False,
    ),
]


def report(
    runs: RunsArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            help="File of the page. Default: RUN/report.html of the first run; none with --csv.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for CSV tables.", show_default=False)
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Id of a problem to show in any case.", show_default=False),
    ] = None,
    limit_timelines: Annotated[
        int,
        typer.Option(
            min=0, help="Maximum number of answers of a run that are shown one by one, chosen evenly."
        ),
    ] = 200,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Report finished runs."""
    page = (output or runs[0] / "report.html") if output or open_page or csv is None else None
    with waiting("Reading the results", quiet):
        from reason_spec.lab.pages.runs import read_runs

        read = read_runs(runs, max_timelines=limit_timelines, shown_problem=problem)
        written = _write(read, page, csv)
    if as_json:
        found = [{"run": run.label, "notices": run.notices, **run.metrics.to_dict()} for run in read]
        content = {"files": list(map(str, written)), "runs": found}
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
    elif not quiet:
        for notice in (f"{run.label}: {notice}" for run in read for notice in run.notices):
            typer.echo(notice, err=True)
        for path in written:
            typer.echo(path)
    if open_page and page is not None:
        typer.launch(page.resolve().as_uri())


def _write(runs: Sequence[Run], page: Path | None, csv: Path | None) -> list[Path]:
    """Write the page and the tables that are wanted; return their paths."""
    written: list[Path] = []
    if page is not None:
        from reason_spec.lab.pages.page import write_page

        write_page(runs, page)
        written.append(page)
    if csv is not None:
        from reason_spec.lab.pages.tables import write_csv

        written += write_csv(runs, csv)
    return written
