from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tables
from hypothesis import given
from hypothesis import strategies as st
from table_columns import cores_in_use
from table_forms import Column, number, pivot, plain, text
from table_list import TABLES, Part, Table

ALL = (Path(tables.__file__).parent / "all.sh").read_text()


def test_every_generated_table_is_what_its_file_gives() -> None:
    old = [file.name for file, wanted in tables.pages().items() if wanted != file.read_text(encoding="utf-8")]
    assert old == [], "run: python benchmarks/tables.py write"


def test_every_table_stands_on_its_page_and_one_command_makes_its_measurements() -> None:
    assert tables.missing_blocks() == []
    measured = set(re.findall(r"^ *measure(?:_cli)? (\w+)", ALL, re.MULTILINE))
    assert {part.measurement for table in TABLES.values() for part in table.parts} <= measured


def words(command: str) -> Counter[str]:
    """The words of a command without folders, and without the files that it works with."""
    own = re.sub(r"--(output|grades|runs|policy) \S+|--no-plot|['\"]", "", command)
    return Counter(word.rpartition("/")[2] for word in own.split())


def test_the_commands_of_all_measurements_are_those_that_made_the_files() -> None:
    models = {"PADDED": "padded-288", "WEAK_DRAFT": "draft-0.7", "NEAR_DRAFT": "draft-0.9"}
    shown = subprocess.run(
        ["bash", tables.ROOT / "benchmarks" / "all.sh", "DATA"],
        env={**os.environ, **models, "SHOW": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name, _, command in (line.partition(": ") for line in shown):
        found = tables.load(name)
        assert found is None or words(found.command) == words(command), name


def test_every_file_of_rows_is_shown_and_names_its_command() -> None:
    used = {part.measurement for table in TABLES.values() for part in table.parts}
    for file in tables.DATA.glob("*.json"):
        assert file.stem in used, f"{file.name} belongs to no table"
        found = tables.load(file.stem)
        assert found is not None
        assert found.rows
        assert re.search(r"python (benchmarks/\w+|cli)\.py", found.command)
        assert "/work" not in found.command
        assert "/root" not in found.command


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables, "DATA", tmp_path / "data")
    return tmp_path


def command(rows: list[dict[str, Any]]) -> list[str]:
    """A benchmark that writes these rows to the file behind --json."""
    code = f"import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text({json.dumps(json.dumps(rows))})"
    return [sys.executable, "-c", code]


def test_a_measurement_that_is_there_is_not_run_again(own_data: Path) -> None:
    tables.run("one", command([{"name": "a", "speed": 1.25}]))
    tables.run("one", command([{"name": "b", "speed": 9.0}]))
    found = tables.load("one")
    assert found is not None
    assert found.rows == [{"name": "a", "speed": 1.25}]
    assert not found.command.startswith("/")


def test_no_folder_of_the_machine_is_kept(own_data: Path) -> None:
    tables.run("one", command([{"model": "/some/where/my-model", "share": 0.5, "name": "a/b"}]))
    found = tables.load("one")
    assert found is not None
    assert found.rows == [{"model": "my-model", "share": 0.5, "name": "a/b"}]


def test_a_benchmark_that_fails_leaves_no_file(own_data: Path) -> None:
    with pytest.raises(Exception, match="returned non-zero"):
        tables.run("one", [sys.executable, "-c", "import sys; sys.exit(3)"])
    assert tables.load("one") is None


def test_rows_that_a_part_names_are_shown_at_every_temperature() -> None:
    rows = [{"name": name, "temperature": at} for at in (0.0, 0.6) for name in ("autoregressive", "b", "a")]
    shown = tables.rows_of(
        [Part("one", ["autoregressive", "a"])], {"one": tables.Measurement("python cli.py", "", None, rows)}
    )
    assert [(row["name"], row["temperature"]) for row in shown] == [
        ("autoregressive", 0.0), ("a", 0.0), ("autoregressive", 0.6), ("a", 0.6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "cores"),
    [
        ({"name": "autoregressive", "num_cores": 2}, "2"),
        ({"name": "head", "num_cores": 1}, "1"),
        ({"name": "model:recycling", "num_cores": 1}, "2"),
        ({"name": "both:semantic", "num_cores": 1}, "2"),
    ],
)
def test_a_draft_model_has_a_core_of_its_own(row: dict[str, Any], cores: str) -> None:
    assert cores_in_use(row) == cores


@pytest.mark.parametrize(("option", "processor"), [([], "this one"), (["--processor", "another"], "another")])
def test_rows_that_are_taken_over_have_their_processor(
    option: list[str], processor: str, own_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_data / "rows.json").write_text('[{"name": "a"}]')
    monkeypatch.setattr(tables, "_processor", lambda: "this one")
    arguments = ["keep", "one", str(own_data / "rows.json"), "--command", "python cli.py", *option]
    monkeypatch.setattr(sys, "argv", ["tables.py", *arguments])
    tables.main()
    found = tables.load("one")
    assert found is not None
    assert found.processor == processor


def test_a_block_is_filled_from_its_file_and_marked_without_one(
    own_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = plain(Column("", text("name")), Column("speed", number("speed", 1)))
    monkeypatch.setitem(TABLES, "made", Table("page", [Part("one", ["b", "a"])], form))
    page = "before\n<!-- table made -->\n| typed |\n|---|\n<!-- end of table -->\nbehind\n"
    marked = tables.filled(page, "page")
    assert "Not yet generated" in marked
    assert tables.filled(marked, "page") == marked
    tables.run("one", command([{"name": "a", "speed": 1.0}, {"name": "b", "speed": 2.06}]))
    made = tables.filled(marked, "page")
    assert "| | speed |\n|---|---|\n| b | 2.1 |\n| a | 1.0 |\n" in made
    assert "typed" not in made
    assert made.startswith("before\n")
    assert made.endswith("behind\n")
    with pytest.raises(KeyError, match="belongs on page"):
        tables.filled(marked, "other")


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.floats(0, 9), min_size=1, max_size=8
    )
)
def test_a_pivot_shows_every_value_once(values: dict[tuple[str, int], float]) -> None:
    rows = [{"name": key, "budget": budget, "value": value} for (key, budget), value in values.items()]
    head, _, *body = pivot(("name",), ("",), "budget", number("value", 3))(rows)
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    shown = {
        (cells[0], int(column)): cells[place]
        for line in body
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
        for place, column in enumerate(columns)
        if place and cells[place] != "-"
    }
    assert shown == {key: f"{value:.3f}" for key, value in values.items()}


def of_type(annotation: str) -> Any:
    if "str" in annotation:
        return "lookahead"
    if "Interval" in annotation or "tuple" in annotation:
        return (0.5, 0.75)
    return {} if "dict" in annotation else 1.5


@pytest.mark.parametrize(
    "script",
    [
        "acceptance", "agent_loop", "draft_counts", "early_exit_live", "embedded", "frontier",
        "load_rows", "published_rules", "real", "step_boundaries", "suffix_agent", "suffix_store",
        "token_level", "tools_ahead_loop", "verifiers", "vllm_pair",
    ],
)  # fmt: skip
def test_a_script_prints_its_rows_in_the_columns_of_its_table(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(script)
    module.print_rows([module.Row(**{one.name: of_type(str(one.type)) for one in fields(module.Row)})])
    assert "1.5" in capsys.readouterr().out
