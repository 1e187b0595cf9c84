"""`reason-spec solve` on scripted engines: files, what they leave, and how runs go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli_runner import BOTH, enter_world, fail, invoke, results, settings_of, succeed
from tests.evaluation.problems import World, build_world, write_problems


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return enter_world(tmp_path, monkeypatch)


def test_a_file_is_solved_stored_and_summed_up(world: World) -> None:
    result = succeed(*world.arguments("--compare", BOTH, "--output", "out"))
    assert "4 of 6" in result.stdout
    assert "exact McNemar p = 1" in result.stdout
    assert "6 of 6 answers have the same tokens" in result.stdout
    records = results(Path("out"))
    assert sorted((record["id"], record["strategy"]) for record in records) == sorted(
        (f"p{number}", name) for number in range(6) for name in BOTH.split(",")
    )
    for record in records:
        item = world.sums[int(record["id"][1:])]
        assert record["question"] == item.question
        assert record["answer"] == item.reference
        assert record["response"] == item.answer() == "".join(step["text"] for step in record["steps"])
        assert record["prediction"] == str(item.total)
        assert record["correct"] is (item.reference == str(item.total))
        assert record["tokens"] == sum(step["tokens"] for step in record["steps"])
        assert record["seconds"] > 0
        assert record["seed"] == 0
        assert record["finish"] == "eos"
        assert record["loss_class"] == "exact"
        assert set(record["usage"]) == {
            "target",
            "draft",
            "verdicts",
            "verifier_seconds",
            "highest_refused",
            "cache_verdicts",
            "num_cache_asked",
            "num_late_drafts",
            "num_probes",
            "num_probe_tokens",
        }
    hashes = {record["strategy"]: record["settings_hash"] for record in records}
    assert hashes["lookahead"] == settings_of(Path("out"))["settings_hash"] != hashes["autoregressive"]


def test_without_an_output_a_folder_is_named_after_the_file_and_the_settings(world: World) -> None:
    first = succeed(*world.arguments())
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"sums-[0-9a-f]{8}", folder.name)
    assert f"Results: {folder}" in first.stderr
    again = succeed(*world.arguments())
    assert again.stdout == first.stdout
    succeed(*world.arguments("--depth", "2"))
    assert len(list(Path("runs").iterdir())) == 2


def test_compared_questions_have_folders_of_their_own(world: World) -> None:
    for item in world.sums[:2]:
        succeed("solve", item.question, *world.options("--compare", BOTH))
    assert len(list(Path("runs").iterdir())) == 2


def test_the_summary_is_the_table_as_json(world: World) -> None:
    result = succeed(*world.arguments("--compare", BOTH, "--output", "out", "--json"))
    printed = json.loads(result.stdout)
    assert result.stderr == ""
    stored = json.loads((Path("out") / "summary.json").read_text())
    assert printed == stored
    assert stored["complete"] is True
    assert stored["output"] == "out"
    assert [item["strategy"] for item in stored["strategies"]] == BOTH.split(",")
    assert stored["strategies"][1]["num_correct"] == 4
    assert stored["pairs"][0]["num_identical"] == 6


def test_quiet_prints_the_table_alone(world: World) -> None:
    result = succeed(*world.arguments("--quiet"))
    assert "tokens/s" in result.stdout
    assert result.stderr == ""


def test_in_a_pipe_progress_is_plain_lines(world: World) -> None:
    result = succeed(*world.arguments())
    assert "6/6 answers, 0:00:00 left; lookahead" in result.stderr
    assert "Loading target" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_a_run_grows_by_problems_samples_and_strategies(world: World) -> None:
    options = world.options("--output", "out")
    succeed("solve", str(world.problems), *options, "--limit", "2")
    assert len(results(Path("out"))) == 2
    succeed("solve", str(world.problems), *options)
    succeed("solve", str(world.problems), *options, "--strategy", "prompt_lookup")
    result = succeed("solve", str(world.problems), *options, "--samples", "2")
    assert "6 of 12 answers are in out already" in result.stderr
    records = results(Path("out"))
    keys = {(record["id"], record["sample"], record["strategy"]) for record in records}
    assert len(keys) == len(records) == 18
    assert len(settings_of(Path("out"))["sessions"]) == 4


def test_other_settings_and_other_problems_do_not_enter_a_folder(world: World) -> None:
    succeed(*world.arguments("--output", "out"))
    message = fail(*world.arguments("--output", "out", "--depth", "2"))
    assert "strategy.depth was 4 and is now 2" in message
    write_problems(world.problems, world.sums[1:])
    message = fail(*world.arguments("--output", "out", "--limit", "5"))
    assert "other problems: its problem 'p0' is not among those given" in message
    assert len(results(Path("out"))) == 6
    succeed(*world.arguments("--output", "out", "--depth", "2", "--fresh"))
    assert len(results(Path("out"))) == 5


def test_problems_in_batches(world: World) -> None:
    result = succeed(*world.arguments("--compare", BOTH, "--concurrency", "3", "--output", "out"))
    assert "batch of 3 problems divided by its size" in " ".join(result.stdout.split())
    assert {record["concurrency"] for record in results(Path("out"))} == {3}


def test_answers_that_fail_are_reported_and_tried_again(world: World, tmp_path: Path) -> None:
    broken = build_world(tmp_path / "broken", 3, otherwise=None)
    script = json.loads((tmp_path / "broken" / "target.json").read_text())
    kept = script["answers"].pop(broken.sums[1].question)
    (tmp_path / "broken" / "target.json").write_text(json.dumps(script))
    arguments = broken.arguments("--output", "out", "--strategy", "autoregressive")
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "problem 'p1', autoregressive: not answered after 1 try: the script has no answer" in " ".join(
        result.stderr.split()
    )
    assert [record["id"] for record in results(Path("out"))] == ["p0", "p2"]
    assert json.loads((Path("out") / "summary.json").read_text())["num_missing"] == 1
    script["answers"][broken.sums[1].question] = kept
    (tmp_path / "broken" / "target.json").write_text(json.dumps(script))
    succeed(*arguments)
    assert [record["id"] for record in results(Path("out"))] == ["p0", "p2", "p1"]


def test_answers_that_are_too_short_for_their_thinking_are_warned_of(world: World) -> None:
    flags = ("--reasoning-effort", "medium", "--max-tokens")
    # 256 of the tokens are kept for the answer.
    for short in ("300", "4200"):
        said = " ".join(succeed(*world.arguments(*flags, short)).stderr.split())
        assert f"sampling.max_tokens = {short} ends answers before" in said
        assert "its budget of 4096 tokens" in said
    assert "ends answers" not in succeed(*world.arguments(*flags, "5000")).stderr


def test_bad_lines_are_named_or_left_out(world: World) -> None:
    world.problems.write_text(world.problems.read_text() + '{"answer": "3"}\n{"question": "Any more?"}\n')
    assert "sums.jsonl, line 7: field 'question' is missing" in fail(*world.arguments())
    result = succeed(*world.arguments("--skip-bad"))
    assert "sums.jsonl, line 7: field 'question' is missing" in " ".join(result.stderr.split())
    assert "1 of 7 problems have no reference answer" in result.stderr


# Going on, starting anew ---------------------------------------------------------------------


def test_a_complete_run_says_that_nothing_was_solved_and_how_to_solve_anew(world: World) -> None:
    succeed(*world.arguments("--output", "out"))
    (session,) = settings_of(Path("out"))["sessions"]
    again = succeed(*world.arguments("--output", "out"))
    assert (
        "All 6 answers are in out already: nothing is left to solve; start anew with --fresh." in again.stderr
    )
    assert settings_of(Path("out"))["sessions"] == [session]
    fresh = succeed(*world.arguments("--output", "out", "--fresh"))
    assert "already" not in fresh.stderr
    (anew,) = settings_of(Path("out"))["sessions"]
    assert anew["session"] != session["session"]
    assert {record["session"] for record in results(Path("out"))} == {anew["session"]}


def test_a_fresh_run_that_cannot_start_leaves_the_earlier_results(world: World) -> None:
    succeed(*world.arguments("--output", "out"))
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    fail(*world.arguments("--output", "out", "--fresh", "--target", "nowhere.json"))
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before


def test_no_number_of_the_table_is_cut_in_a_pipe(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = succeed(*world.arguments("--compare", "autoregressive,prompt_lookup,lookahead"))
    assert "\u2026" not in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("correct")]
    assert row.count("4 of 6") == 3


def test_a_run_without_a_single_answer_shows_no_empty_table(world: World, tmp_path: Path) -> None:
    silent = build_world(tmp_path / "silent", 1, otherwise=None)
    script = json.loads((tmp_path / "silent" / "target.json").read_text())
    script["answers"].clear()
    (tmp_path / "silent" / "target.json").write_text(json.dumps(script))
    result = invoke(*silent.arguments("--output", "out", "--strategy", "autoregressive"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "problem 'p0', autoregressive: not answered" in result.stderr
    assert result.stderr.splitlines()[-1] == "No answer was written."


def test_steps_come_from_what_an_earlier_run_was_kept_of(world: World) -> None:
    cache = ["--set", "suffix.use=both", "--set", "suffix.path=kept", "--set", "strategy.planner=false"]
    cold = succeed(*world.arguments("--strategy", "lookahead", *cache, "--output", "cold"))
    warm = succeed(*world.arguments("--strategy", "lookahead", *cache, "--output", "warm"))
    assert "steps from the cache" in warm.stdout
    assert list(Path("kept").glob("*.suffix"))
    texts = {record["id"]: record["response"] for record in results(Path("cold"))}
    assert cold.exit_code == 0
    origins = set()
    for record in results(Path("warm")):
        assert record["response"] == texts[record["id"]]
        assert set(record["alpha_step_by_origin"]) == {"draft", "cache"}
        origins |= {step["origin"] for step in record["steps"]}
    assert "cache" in origins


def test_strategies_that_are_compared_keep_nothing_and_do_not_feed_each_other(world: World) -> None:
    cache = ["--set", "suffix.use=steps", "--set", "suffix.path=kept"]
    succeed(*world.arguments("--compare", BOTH, *cache, "--output", "out"))
    assert not list(Path().glob("kept/*.suffix"))
