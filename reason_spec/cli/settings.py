"""The command ``settings``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel

from reason_spec.cli.options import ConfigOption, SetOption, leaves, resolve_settings

_TYPE_NAMES = {
    str: "text",
    bool: "true or false",
    int: "integer",
    float: "number",
    Path: "path",
    type(None): "null",
}


def settings(
    config: ConfigOption = None,
    assignments: SetOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table of all settings and their defaults instead.")
    ] = False,
) -> None:
    """Print the resolved settings as YAML: defaults, file, environment and --set together."""
    if markdown:
        typer.echo(_markdown_table())
        return
    resolved = resolve_settings(config, {}, assignments)
    typer.echo(f"{resolved.to_yaml()}# hash: {resolved.hash}")


def _markdown_table() -> str:
    """Return a table of all settings with defaults and allowed values; engine settings are listed once."""
    rows = ["| setting | default | values | |", "|---|---|---|---|"]
    for leaf in leaves():
        if leaf.path.startswith("draft."):
            # The same as those of the target.
            continue
        default = (
            "{}" if isinstance(leaf.default, BaseModel) else json.dumps(leaf.default, ensure_ascii=False)
        )
        values = ", ".join(_values(leaf.field.annotation, leaf.field.metadata))
        rows.append(f"| `{leaf.path}` | `{default}` | {values} | {leaf.description} |")
    return "\n".join(rows)


def _values(kind: Any, constraints: Sequence[object]) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from (f"`{choice}`" for choice in get_args(kind))
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _values(part, ())
    elif get_origin(kind) is tuple:
        yield "list"
    elif get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        yield "mapping"
    else:
        yield _TYPE_NAMES.get(kind, str(kind))
    for sign, name in ((">=", "ge"), (">", "gt"), ("<=", "le")):
        limits = [getattr(item, name) for item in constraints if hasattr(item, name)]
        yield from (f"{sign} {limit:g}" for limit in limits)
