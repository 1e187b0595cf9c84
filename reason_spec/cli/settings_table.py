"""The settings tree as a list of leaves and as a table for the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reason_spec.settings import Settings

_TYPE_NAMES = {
    str: "text",
    bool: "true or false",
    int: "integer",
    float: "number",
    Path: "path",
    type(None): "null",
}


class Leaf(NamedTuple):
    """One setting: its dotted name, and how it is declared."""

    path: str
    field: FieldInfo

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def description(self) -> str:
        return self.field.description or ""


def leaves(section: type[BaseModel] = Settings, path: str = "") -> Iterator[Leaf]:
    """Yield every setting in the order of the tree; a section with a description counts as one setting."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and field.description is None:
            yield from leaves(kind, f"{path}{name}.")
        else:
            yield Leaf(path + name, field)


def markdown_table() -> str:
    """Return a table of all settings with defaults and allowed values; those of engines stand there once."""
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
