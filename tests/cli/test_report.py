from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_runner import enter_world, fail, succeed
from tests.evaluation.runs import write_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "sums"
    write_run(folder, 4, flags={"strategy.planner": False})
    return folder


def test_a_run_that_solve_wrote_is_reported_and_what_it_lacks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter_world(tmp_path, monkeypatch)
    succeed(*world.arguments("--compare", "autoregressive,lookahead", "--output", "out"))
    result = succeed("report", "out")
    assert result.stdout == "out/report.html\n"
    assert "no timelines.jsonl" in " ".join(result.stderr.split())
    assert "No timeline of this answer is stored" in (tmp_path / "out" / "report.html").read_text()


def test_page_and_tables_go_where_they_are_wanted(finished: Path, tmp_path: Path) -> None:
    page, csv = tmp_path / "a" / "page.html", tmp_path / "csv"
    result = succeed("report", str(finished), "--output", str(page), "--csv", str(csv))
    written = [Path(path) for path in result.stdout.split()]
    assert all(path.stat().st_size > 0 for path in written)
    assert [path.name for path in written] == ["page.html", "strategies.csv", "pairs.csv", "answers.csv"]


def test_tables_alone_write_no_page(finished: Path, tmp_path: Path) -> None:
    result = succeed("report", str(finished), "--csv", str(tmp_path / "csv"))
    assert "html" not in result.stdout
    assert not (finished / "report.html").exists()


def test_json_names_the_files_and_holds_the_measures(finished: Path, tmp_path: Path) -> None:
    result = succeed("report", str(finished), "--output", str(tmp_path / "page.html"), "--json")
    found = json.loads(result.stdout)
    assert found["files"] == [str(tmp_path / "page.html")]
    (run,) = found["runs"]
    assert [row["strategy"] for row in run["strategies"]] == ["autoregressive", "lookahead"]
    assert run["pairs"][0]["speedup"]["value"] > 0


def test_quiet_prints_nothing(finished: Path, tmp_path: Path) -> None:
    result = succeed("report", str(finished), "--output", str(tmp_path / "page.html"), "-q")
    assert (result.stdout, result.stderr) == ("", "")


def test_what_is_no_run_is_refused_in_one_line(finished: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in fail("report", str(tmp_path / "nowhere"))
    assert "holds no results.jsonl" in fail("report", str(tmp_path))
    assert "unknown problem 'p9'" in fail("report", str(finished), "--problem", "p9")
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot be written" in fail("report", str(finished), "--output", str(blocked / "page.html"))
    assert "cannot be written" in fail("report", str(finished), "--csv", str(blocked))
