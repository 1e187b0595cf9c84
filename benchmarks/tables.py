"""Keep the rows of measurements in files, and make the tables of the documentation from them.

    python benchmarks/tables.py run NAME -- COMMAND...      run a benchmark, if its file does not exist yet
    python benchmarks/tables.py keep NAME FILE --command TEXT [--date DATE] [--processor TEXT]
                                                            take over rows that exist
    python benchmarks/tables.py write | check | list

Pages are the README and those of ``docs/measurements``. A measurement is ``data/NAME.json`` there: its rows,
the command that made them, the date and the processor (by default of this machine). ``run`` adds
``--json FILE`` to the command. ``write`` fills the blocks

    <!-- table NAME -->
    ...
    <!-- end of table -->

of the pages; ``check`` says which of them differ from their files and exits with 1, ``list`` names the tables
without a file. `table_list` says which table is made of what.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from table_list import TABLES, Part, Table

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ROOT / "docs" / "measurements"
DATA: Final = PAGES / "data"
README: Final = ROOT / "README.md"
_BLOCK: Final = re.compile(
    r"(?P<begin><!-- table (?P<name>\w+) -->\n)(?P<body>.*?)(?P<end><!-- end of table -->\n)", re.DOTALL
)
_PENDING: Final = "*Not yet generated from a file: measured earlier and typed.*"
_MISSING: Final = "*Not measured yet.*"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a benchmark found, and how."""

    command: str
    date: str
    processor: str | None
    rows: list[dict[str, Any]]


def load(measurement: str) -> Measurement | None:
    """Return a measurement; None if its file does not exist."""
    file = DATA / f"{measurement}.json"
    return Measurement(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def save(measurement: str, found: Measurement) -> None:
    """Write a measurement, without the folders of this machine."""
    DATA.mkdir(exist_ok=True)
    text = json.dumps({key: value for key, value in asdict(found).items() if key != "rows"}, indent=1)
    rows = ",\n".join(json.dumps({key: _named(value) for key, value in row.items()}) for row in found.rows)
    (DATA / f"{measurement}.json").write_text(f'{text[:-2]},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def run(measurement: str, command: Sequence[str]) -> None:
    """Run a benchmark and keep its rows, unless they are there.

    Raises:
        subprocess.CalledProcessError: the command failed; nothing is kept.
    """
    if load(measurement) is not None:
        sys.stderr.write(f"{measurement}: is there\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        subprocess.run([*command, "--json", str(file)], check=True)
        rows = json.loads(file.read_text(encoding="utf-8"))
    save(measurement, Measurement(shlex.join(map(_named, command)), _today(), _processor(), rows))


def _named(value: Any) -> Any:
    """Return the name of a file for its absolute path, and any other value as it is."""
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def _processor() -> str | None:
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"model name\s*: (.*)", information)
    return None if found is None else f"{found[1]}, {os.cpu_count()} cores"


def rows_of(parts: Sequence[Part], found: Mapping[str, Measurement]) -> list[dict[str, Any]]:
    """Return the rows of a table's parts in order: those that a part names, at each temperature.

    Raises:
        KeyError: a measurement lacks a row that its part names, at one of its temperatures.
    """
    rows: list[dict[str, Any]] = []
    for part in parts:
        own = found[part.measurement].rows
        if part.names:
            named = {(row.get("temperature"), row["name"]): row for row in own}
            temperatures = dict.fromkeys(temperature for temperature, _ in named)
            own = [named[temperature, one] for temperature in temperatures for one in part.names]
        rows += own
    return rows


def made(table: Table) -> str | None:
    """Return the text of a table with its sources below; None if a file is missing."""
    names = list(dict.fromkeys(part.measurement for part in table.parts))
    found = {one: measured for one in names if (measured := load(one)) is not None}
    if len(found) < len(names):
        return None
    shown = "\n".join(table.form(rows_of(table.parts, found)))
    folder = "docs/measurements/data" if table.page == README.stem else "data"
    sources = [f"[`{one}.json`]({folder}/{one}.json) ({measured.date})" for one, measured in found.items()]
    return f"{shown}\n\n" + "Made from " + ",\n".join(sources) + "."


def filled(page: str, name: str) -> str:
    """Return the text of a page with its blocks made anew; blocks without files say so.

    Raises:
        KeyError: a block has the name of no table, or of one that belongs to another page.
    """

    def block(match: re.Match[str]) -> str:
        table = TABLES[match["name"]]
        if table.page != name:
            raise KeyError(f"table {match['name']} belongs on page {table.page}, not on {name}")
        old = match["body"].strip("\n")
        if not old:
            old = _MISSING
        elif not old.startswith((_PENDING, _MISSING)):
            old = f"{_PENDING}\n\n{old}"
        body = made(table) or old
        return f"{match['begin']}\n{body}\n\n{match['end']}"

    return _BLOCK.sub(block, page)


def pages() -> dict[Path, str]:
    """Return the pages with their text as it should be."""
    return {file: filled(file.read_text(encoding="utf-8"), file.stem) for file in _files()}


def _files() -> list[Path]:
    return [README, *sorted(PAGES.glob("*.md"))]


def missing_blocks() -> list[str]:
    """Return the tables that stand on no page."""
    shown = {match["name"] for file in _files() for match in _BLOCK.finditer(file.read_text("utf-8"))}
    return sorted(TABLES.keys() - shown)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="do", required=True)
    running = commands.add_parser("run")
    running.add_argument("name")
    running.add_argument("command", nargs="+")
    keeping = commands.add_parser("keep")
    keeping.add_argument("name")
    keeping.add_argument("file", type=Path)
    keeping.add_argument("--command", required=True)
    keeping.add_argument("--date", default=_today())
    keeping.add_argument("--processor", default=_processor(), help="that made the rows; default: this one")
    for command in ("write", "check", "list"):
        commands.add_parser(command)
    options = parser.parse_args()
    match options.do:
        case "run":
            run(options.name, options.command)
        case "keep":
            rows = json.loads(options.file.read_text(encoding="utf-8"))
            save(options.name, Measurement(options.command, options.date, options.processor, rows))
        case "write":
            for file, text in pages().items():
                file.write_text(text, encoding="utf-8")
        case "check":
            old = [file.name for file, text in pages().items() if text != file.read_text(encoding="utf-8")]
            old += missing_blocks()
            sys.exit(f"not what the files give: {', '.join(old)}; run: tables.py write" if old else 0)
        case "list":
            sys.stdout.writelines(f"{name}\n" for name, table in TABLES.items() if made(table) is None)


if __name__ == "__main__":
    main()
