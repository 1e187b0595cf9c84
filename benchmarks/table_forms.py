"""How the rows of a benchmark's file become the lines of a table in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Fields: TypeAlias = Mapping[str, Any]
Cell: TypeAlias = Callable[[Fields], str]
Form: TypeAlias = Callable[[Sequence[Fields]], list[str]]


class Column(NamedTuple):
    """A heading, and the text of a cell below it."""

    heading: str
    cell: Cell


def number(field: str, digits: int = 2, unit: str = "", scale: float = 1.0) -> Cell:
    """Show a field with so many digits, ``-`` where it is None."""

    def cell(row: Fields) -> str:
        value = row[field]
        return "-" if value is None else f"{value * scale:,.{digits}f}{unit}"

    return cell


def percent(field: str, digits: int = 0) -> Cell:
    return number(field, digits, " %", 100.0)


def times(field: str) -> Cell:
    return number(field, 2, "x")


def name(field: str = "name") -> Cell:
    return lambda row: f"`{row[field]}`"


def text(field: str) -> Cell:
    return lambda row: "-" if row[field] is None else str(row[field])


def span(low: str, high: str) -> Cell:
    """Show an interval; ``-`` without one, and for the row that all others are compared with."""

    def cell(row: Fields) -> str:
        if row[low] is None or row[low] == row[high] == 1.0:
            return "-"
        return f"{row[low]:.2f}-{row[high]:.2f}"

    return cell


def gain(speedup: str, low: str, high: str) -> Cell:
    return lambda row: f"{row[speedup]:.2f}x ({row[low]:.2f}-{row[high]:.2f})"


def counted(count: str, total: str, interval: str | None = None) -> Cell:
    """Show a count of a total, with the interval of its share if a field is named that holds it."""

    def cell(row: Fields) -> str:
        if not row[total]:
            return "-"
        share = ""
        if interval is not None:
            low, high = row[interval]
            share = f": {row[count] / row[total]:.2%} ({100 * low:.2f}-{100 * high:.2f})"
        return f"{row[count]:,} of {row[total]:,}{share}"

    return cell


def lines(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        f"| {' | '.join(headings)} |".replace("|  |", "| |"),
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def plain(
    *columns: Column,
    where: Callable[[Fields], bool] | None = None,
    order: Callable[[Fields], Any] | None = None,
) -> Form:
    """Return a form with a line for each row that is wanted."""

    def form(rows: Sequence[Fields]) -> list[str]:
        wanted = [row for row in rows if where is None or where(row)]
        shown = wanted if order is None else sorted(wanted, key=order)
        return lines([one.heading for one in columns], [[one.cell(row) for one in columns] for row in shown])

    return form


def pivot(
    key: Sequence[str],
    headings: Sequence[str],
    across: str,
    cell: Cell,
    where: Callable[[Fields], bool] | None = None,
    shown: Callable[[Any], str] = str,
    label: Callable[[Fields], Sequence[str]] | None = None,
) -> Form:
    """Return a form with a line for each value of ``key``, and a column for each value of ``across``.

    Args:
        headings: above the columns of ``key``.
        shown: the heading of a value of ``across``.
        label: the cells of a line's key; by default the values of ``key``.
    """

    def form(rows: Sequence[Fields]) -> list[str]:
        wanted = [row for row in rows if where is None or where(row)]
        columns = list(dict.fromkeys(row[across] for row in wanted))
        found = {(*(row[one] for one in key), row[across]): row for row in wanted}
        groups = dict.fromkeys(tuple(row[one] for one in key) for row in wanted)
        table = []
        for group in groups:
            own = [found.get((*group, column)) for column in columns]
            first = next(row for row in own if row is not None)
            labels = [str(value) for value in group] if label is None else list(label(first))
            table.append([*labels, *("-" if row is None else cell(row) for row in own)])
        return lines([*headings, *map(shown, columns)], table)

    return form
