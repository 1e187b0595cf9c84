"""How the rows of a benchmark's file become the lines of a table in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

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


_CATEGORIES: Final = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "mean")


def token_level(temperature: bool) -> Form:
    """Return the form of Spec-Bench's categories; its rows are sorted by the gain of the mean."""

    def form(rows: Sequence[Fields]) -> list[str]:
        methods: dict[tuple[float, str], dict[str, Fields]] = {}
        for row in rows:
            if row["name"] != "autoregressive":
                methods.setdefault((row["temperature"], row["name"]), {})[row["category"]] = row
        headings = ["", *(["T"] if temperature else []), "tokens a pass", "drafts a pass"]
        headings += [category.replace("_", " ") for category in _CATEGORIES]
        table = []
        for (at, method), found in sorted(
            methods.items(), key=lambda it: (it[0][0], -it[1]["mean"]["speedup"])
        ):
            mean = found["mean"]
            table.append(
                [
                    f"`{method}`",
                    *([f"{at:g}"] if temperature else []),
                    number("tokens_per_pass")(mean),
                    number("drafts_per_pass", 1)(mean),
                    *(gain("speedup", "low", "high")(found[category]) for category in _CATEGORIES),
                ]
            )
        return lines(headings, table)

    return form


def step_map(rows: Sequence[Fields]) -> list[str]:
    """Return the map of where steps ahead pay: a line for each point, the values of alpha_step across."""
    points: dict[tuple[float, float, float], dict[float, Fields]] = {}
    for row in rows:
        points.setdefault((row["slope"], row["c"], row["alpha_token"]), {})[row["alpha_step"]] = row
    alphas = sorted({row["alpha_step"] for row in rows})
    headings = ["T(n)", "c", "alpha_token", "tokens alone"]
    headings += [f"steps at alpha_step {alphas[0]:g}", *(f"{alpha:g}" for alpha in alphas[1:])]
    table = []
    for (slope, cost, alpha_token), found in points.items():
        first = found[alphas[0]]
        steps = [
            f"{row['both'] / row['tokens']:.2f}x, {row['simulated_both'] / row['simulated_tokens']:.2f}x"
            for row in (found[alpha] for alpha in alphas)
        ]
        table.append(
            [
                "flat" if slope == 0 else f"1 + {slope:g} (n - 1)",
                f"{cost:g}",
                f"{alpha_token:g}",
                f"{first['tokens']:.2f}x, {first['simulated_tokens']:.2f}x",
                *steps,
                f"{first['pays_from']:.2f}",
                ", ".join(f"{found[alpha]['planned_over_best']:.2f}" for alpha in alphas),
            ]
        )
    return lines([*headings, "pays from", "planned"], table)


_LEARNED_FROM: Final = {"other_trials": "another trial of all tasks", "other_tasks": "other tasks only"}


def learned_from(row: Fields) -> str:
    """Return which conversations a case of `agent_replay` learned from."""
    return _LEARNED_FROM[row["case"]]


def calls_by_tool(rows: Sequence[Fields]) -> list[str]:
    """Return a line for each tool that only reads: its calls, and how many of those run ahead were right."""
    tools = sorted(rows[0]["by_tool"], key=lambda tool: -rows[0]["by_tool"][tool]["n_read_only"])
    table = []
    for tool in tools:
        found = [row["by_tool"][tool] for row in rows]
        table.append(
            [
                f"`{tool}`",
                f"{found[0]['n_read_only']:,}",
                *(f"{one['n_right']:,} of {one['n_run_ahead']:,}" for one in found),
            ]
        )
    return lines(["tool", "read-only calls", *(f"{learned_from(row)}: right of run" for row in rows)], table)


def seconds_saved(rows: Sequence[Fields]) -> list[str]:
    """Return a line for each case: seconds saved of all, by the seconds that a tool takes."""
    latencies = list(rows[0]["seconds"])
    table = [
        [
            learned_from(row),
            *(f"{row['seconds_saved'][one]:,.0f} of {row['seconds'][one]:,.0f}" for one in latencies),
        ]
        for row in rows
    ]
    return lines(["seconds saved, at tools of", *(f"{one} s" for one in latencies)], table)


def calibration(rows: Sequence[Fields]) -> list[str]:
    """Return a line for each group of near chances: the mean of the chances, and the share that was right."""
    table = [
        [learned_from(row), f"{group['n']:,}", f"{group['chance']:.2f}", f"{group['right']:.2f}"]
        for row in rows
        for group in row["calibration"]
    ]
    return lines(["", "calls run ahead", "mean chance that the model gave", "right"], table)
