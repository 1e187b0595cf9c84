"""The command ``doctor``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import reason_spec
from reason_spec.cli.checks import (
    Check,
    Status,
    available_cores,
    check_cores,
    check_embedding_model,
    check_extras,
    check_math_verify,
    check_memory,
    check_output,
    check_packages,
    check_pair,
    check_python,
    check_threads,
    check_torch,
    check_torchvision,
    check_transformers,
    guarded,
)
from reason_spec.engines.machine import available_memory_bytes

if TYPE_CHECKING:
    from rich.table import Table


def doctor(
    output: Annotated[Path, typer.Option(help="Folder that results will be written to.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check the installation; print a remedy for each problem."""
    checks = run_checks(output)
    if as_json:
        typer.echo(to_json(checks))
    else:
        from rich.console import Console

        Console().print(render(checks))
    raise typer.Exit(exit_code(checks))


def run_checks(output: Path = Path("runs"), environment: Mapping[str, str] | None = None) -> list[Check]:
    """Run all checks in the order in which one depends on another.

    ``output`` is the folder that results would be written to; it is not created. Must not be called
    from inside an event loop: the embedding model is tried in one of its own.
    """
    environment = os.environ if environment is None else environment
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", partial(check_python, tuple(sys.version_info[:3]))),
        ("packages", check_packages),
        ("torch", check_torch),
        ("torchvision", check_torchvision),
        ("transformers", check_transformers),
        ("cores", partial(check_cores, available_cores())),
        ("threads", partial(check_threads, available_cores().usable, environment)),
        ("memory", partial(check_memory, available_memory_bytes())),
        ("demonstration pair", check_pair),
        ("embedding model", check_embedding_model),
        ("math-verify", check_math_verify),
        ("output folder", partial(check_output, output)),
    ]
    return [guarded(name, check) for name, check in checks] + check_extras()


def exit_code(checks: Iterable[Check]) -> int:
    """Return 1 where a check failed, else 0; warnings do not count."""
    return int(any(check.status == "fail" for check in checks))


def to_json(checks: Sequence[Check]) -> str:
    """Return the checks and the version they were made with as one JSON object."""
    report = {
        "version": reason_spec.__version__,
        "ok": exit_code(checks) == 0,
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(report, indent=2, ensure_ascii=False)


def render(checks: Sequence[Check]) -> Table:
    """Return the checks as a table for the terminal, remedies under what was found."""
    from rich.markup import escape
    from rich.table import Table

    colours: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(title=f"reason-spec {reason_spec.__version__}", title_justify="left", show_lines=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        colour = colours[check.status]
        text = escape(check.found)
        if check.remedy:
            text += f"\n[{colour}]-> {escape(check.remedy)}[/]"
        table.add_row(check.name, f"[{colour}]{check.status}[/]", text)
    return table
