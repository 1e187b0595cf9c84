"""`reason-spec eval` on scripted engines: what it measures, what it leaves, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reason_spec.evaluation.timeline import read_timelines
from tests.cli_runner import BOTH, enter_world, fail, invoke, results, settings_of, succeed
from tests.evaluation.problems import World, write_problems


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return enter_world(tmp_path, monkeypatch)


def arguments(world: World, *more: str, output: str | None = "out") -> list[str]:
    named = [] if output is None else ["--output", output]
    return ["eval", str(world.problems), *world.options(*named, *more)]


def metrics(folder: str = "out") -> dict[str, Any]:
    found = json.loads((Path(folder) / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def test_the_settings_strategy_is_measured_against_the_target_alone(world: World) -> None:
    result = succeed(*arguments(world))
    assert "autoregressive" in result.stdout
    assert "66.7 %" in result.stdout
    assert "lookahead against autoregressive: 6 of 6 answers have the same tokens" in result.stdout
    assert "take 60 or more" in " ".join(result.stdout.split())
    assert "Results: out. As a page: reason-spec report out" in result.stderr
    rows = {row["strategy"]: row for row in metrics()["strategies"]}
    assert list(rows) == BOTH.split(",")
    assert rows["lookahead"]["num_answers"] == 6
    assert rows["lookahead"]["accuracy"]["value"] == pytest.approx(4 / 6)
    (pair,) = metrics()["pairs"]
    assert (pair["strategy"], pair["baseline"], pair["num_identical"]) == ("lookahead", "autoregressive", 6)
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["complete"], summary["failures"]) == (True, [])


def test_one_strategy_alone_may_be_measured(world: World) -> None:
    succeed(*arguments(world, "--compare", "autoregressive"))
    assert {record["strategy"] for record in results(Path("out"))} == {"autoregressive"}
    assert metrics()["pairs"] == []


def test_tasks_are_measured_apart_and_together(world: World) -> None:
    write_problems(Path("other.jsonl"), world.sums[:3])
    result = succeed(
        "eval", f"gsm8k={world.problems}", "other.jsonl", *world.options("--output", "out", "--samples", "2")
    )
    assert len(results(Path("out"))) == (6 + 3) * 2 * 2
    rows = {(row["task"], row["strategy"]): row for row in metrics()["strategies"]}
    assert rows["gsm8k", "lookahead"]["num_problems"] == 6
    assert rows["auto", "lookahead"]["num_problems"] == 3
    assert rows["all", "lookahead"]["num_answers"] == 18
    for text in ("task gsm8k", "task auto", "all tasks together", "pass@2", "majority@2", "accuracy (avg@2)"):
        assert text in result.stdout
    assert {record["task"] for record in results(Path("out"))} == {"gsm8k", "auto"}


def test_every_answer_has_its_timeline(world: World) -> None:
    succeed(*arguments(world, "--samples", "2"))
    timelines = {timeline.key: timeline for timeline in read_timelines(Path("out"))}
    records = results(Path("out"))
    assert len(timelines) == len(records) == 24
    for record in records:
        marks = timelines[record["id"], record["sample"], record["strategy"]].marks  # type: ignore[index]
        finals = [mark for mark in marks if mark.kind == "final"]
        assert "".join(mark.text for mark in finals) == record["response"]
        assert [mark.origin for mark in finals] == [step["origin"] for step in record["steps"]]
        assert sum(mark.kind == "verified" for mark in marks) == sum(record["usage"]["verdicts"].values())


def test_timelines_may_be_left_out(world: World) -> None:
    succeed(*arguments(world, "--no-timelines"))
    assert not Path("out/timelines.jsonl").exists()
    assert len(results(Path("out"))) == 12


def test_fresh_leaves_nothing_of_the_earlier_run(world: World) -> None:
    succeed(*arguments(world))
    succeed(*arguments(world, "--fresh", "--no-timelines", "--limit", "2"))
    assert sorted(path.name for path in Path("out").iterdir()) == [
        ".lock", "results.jsonl", "settings.yaml", "summary.json",
    ]  # fmt: skip
    assert len(results(Path("out"))) == 4


def test_a_run_grows_and_a_complete_one_is_measured_again(world: World) -> None:
    succeed(*arguments(world, "--limit", "2"))
    result = succeed(*arguments(world, "--samples", "2", "--compare", "autoregressive,prompt_lookup"))
    assert "2 of 24 answers are in out already; the rest is solved now" in result.stderr
    again = succeed(*arguments(world, "--samples", "2", "--compare", "autoregressive,prompt_lookup"))
    assert "nothing is left to solve" in again.stderr
    assert again.stdout == result.stdout
    assert len(settings_of(Path("out"))["sessions"]) == 2


def test_what_solve_has_stored_is_measured(world: World) -> None:
    succeed(*world.arguments("--compare", BOTH, "--output", "out"))
    result = succeed(*arguments(world))
    assert "All 12 answers are in out already" in result.stderr
    assert len(metrics()["strategies"]) == 2


def test_as_json_it_is_the_summary(world: World) -> None:
    result = succeed(*arguments(world, "--json"))
    assert result.stderr == ""
    printed = json.loads(result.stdout)
    assert printed == metrics()


def test_quiet_prints_the_tables_alone(world: World) -> None:
    result = succeed(*arguments(world, "--quiet"))
    assert "tokens saved" in result.stdout
    assert result.stderr == ""


def test_in_a_pipe_progress_is_a_line_for_all_tasks(world: World) -> None:
    result = succeed(*arguments(world))
    assert "12/12 answers, 0:00:00 left; autoregressive 6/6, 66.7 % right, " in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_generated_problems_are_the_pairs(world: World) -> None:
    message = fail(*arguments(world, "--generate", "3"))
    assert "--generate makes all problems itself" in message


def test_what_could_not_be_answered_is_listed_and_tried_again_later(world: World) -> None:
    script = Path(world.config).parent / "target.json"
    content = json.loads(script.read_text())
    taken = {number: content["answers"].pop(world.sums[number].question) for number in (1, 4)}
    script.write_text(json.dumps({**content, "otherwise": None}))
    options = ("--compare", "autoregressive", "--retries", "1")
    result = invoke(*arguments(world, *options))
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    for number in taken:
        assert f"problem 'p{number}', autoregressive: not answered after 2 tries: " in said
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["complete"], summary["num_missing"]) == (False, 2)
    assert [item["problem_id"] for item in summary["failures"]] == ["p1", "p4"]
    assert all(len(item["failed_tries"]) == 2 for item in summary["failures"])
    assert len(results(Path("out"))) == 4
    again = invoke(*arguments(world, *options))
    assert again.exit_code == 1
    assert "4 of 6 answers are in out already" in again.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--compare", "autoregressive,nothing"), "unknown strategy 'nothing'"),
        (("--compare", " "), "name one strategy or more"),
        (("--compare", BOTH, "--strategy", "prompt_lookup"), "--strategy and --compare exclude each other"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    world: World, more: tuple[str, ...], message: str
) -> None:
    assert message in fail(*arguments(world, *more))
    assert not Path("out").exists()


def test_without_problems_it_says_what_to_give(world: World) -> None:
    assert "nothing to solve" in fail("eval", *world.options())


def test_no_more_samples_are_drawn_than_a_vote_needs(world: World) -> None:
    wanted = arguments(world, "--samples", "8", "--stop-samples", "0.95", "--compare", "autoregressive")
    result = succeed(*wanted)
    assert len(results(Path("out"))) == 6 * 4
    assert {timeline.key for timeline in read_timelines(Path("out"))} == {
        (record["id"], record["sample"], record["strategy"]) for record in results(Path("out"))
    }
    lines = {line.rsplit("  ", 1)[0].strip(): line.split()[-1] for line in result.stdout.splitlines() if line}
    assert lines["votes decided early"] == "6"
    assert "4.0 a problem, 0 in all" in result.stdout
    assert "vote by confidence" in result.stdout
    assert "majority@" not in result.stdout
    again = succeed(*wanted)
    assert "nothing is left to solve" in again.stderr
    (row,) = metrics()["strategies"]
    assert row["vote"]["accuracy"]["value"] == pytest.approx(4 / 6)
    assert row["vote"]["num_samples"]["value"] == 4
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["complete"], summary["num_missing"]) == (True, 0)
    every = succeed(*arguments(world, "--samples", "8", "--compare", "autoregressive"))
    assert len(results(Path("out"))) == 6 * 8
    assert "24 of 48 answers are in out already" in every.stderr
    assert "majority@8" in every.stdout
    assert "votes decided early" not in every.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--stop-samples", "0.95"), "--samples of at least 2"),
        (("--samples", "4", "--stop-samples", "0.4"), "a probability above 0.5"),
        (("--samples", "4", "--stop-samples", "0.9", "--ray", "local:2"), "leave out --ray"),
    ],
)
def test_votes_that_cannot_be_decided_are_refused(
    world: World, options: tuple[str, ...], reason: str
) -> None:
    assert reason in " ".join(fail(*arguments(world, *options)).split())
    assert not Path("out/results.jsonl").exists()
