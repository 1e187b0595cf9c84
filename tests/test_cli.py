"""The command in this process, on scripted engines: options, errors, and what is printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from reason_spec import __version__
from reason_spec.cli import _complete_names, _completion, app
from reason_spec.errors import ReasonSpecError
from reason_spec.settings import Settings
from reason_spec.strategies.factory import strategy_names
from tests.evaluation.problems import World, build_world, write_problems

BOTH = "autoregressive,lookahead"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return build_world(tmp_path / "world")


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def succeed(*arguments: str, stdin: str | None = None) -> Result:
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments: str, code: int = 2, stdin: str | None = None) -> str:
    """Run a command that must fail with one line on standard error and nothing on standard output."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def settings_of(folder: Path) -> dict[str, Any]:
    content = yaml.safe_load((folder / "settings.yaml").read_text())
    assert isinstance(content, dict)
    return content


# Files ---------------------------------------------------------------------------------------


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
        assert set(record["usage"]) == {"target", "draft", "verdicts", "verifier_seconds"}
    hashes = {record["strategy"]: record["settings_hash"] for record in records}
    assert hashes["lookahead"] == settings_of(Path("out"))["settings_hash"] != hashes["autoregressive"]


def test_without_an_output_a_folder_is_named_after_the_file_and_the_settings(world: World) -> None:
    first = succeed(*world.arguments())
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"sums-[0-9a-f]{8}", folder.name)
    assert f"Results: {folder}" in first.stderr
    again = succeed(*world.arguments())
    assert "6 of 6 answers are in" in again.stderr
    assert again.stdout == first.stdout
    succeed(*world.arguments("--depth", "2"))
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
    assert stored["comparisons"][0]["num_identical"] == 6


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
    succeed("solve", str(world.problems), *options, "--strategy", "token")
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
    assert "problem 'p1', autoregressive: not answered: the script has no answer" in " ".join(
        result.stderr.split()
    )
    assert [record["id"] for record in results(Path("out"))] == ["p0", "p2"]
    assert json.loads((Path("out") / "summary.json").read_text())["num_missing"] == 1
    script["answers"][broken.sums[1].question] = kept
    (tmp_path / "broken" / "target.json").write_text(json.dumps(script))
    succeed(*arguments)
    assert [record["id"] for record in results(Path("out"))] == ["p0", "p2", "p1"]


def test_bad_lines_are_named_or_left_out(world: World) -> None:
    world.problems.write_text(world.problems.read_text() + '{"answer": "3"}\n{"question": "Any more?"}\n')
    assert "sums.jsonl, line 7: field 'question' is missing" in fail(*world.arguments())
    result = succeed(*world.arguments("--skip-bad"))
    assert "sums.jsonl, line 7: field 'question' is missing" in " ".join(result.stderr.split())
    assert "1 of 7 problems have no reference answer" in result.stderr


# Every option that sets something ------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        (["--task", "gsm8k"], "task.name", "gsm8k"),
        (["--prompt", "boxed"], "task.prompt", "boxed"),
        (["--strategy", "token"], "strategy.name", "token"),
        (["--depth", "2"], "strategy.depth", 2),
        (["--width", "3"], "strategy.width", 3),
        (["--verifier", "numbers"], "verifier.name", "numbers"),
        (["--temperature", "0.6"], "sampling.temperature", 0.6),
        (["--top-k", "20"], "sampling.top_k", 20),
        (["--top-p", "0.95"], "sampling.top_p", 0.95),
        (["--seed", "7"], "sampling.seed", 7),
        (["--max-tokens", "64"], "sampling.max_tokens", 64),
        (["--stop", "pens.", "--stop", "\n\n\n"], "sampling.stop", ["pens.", "\n\n\n"]),
        (["--set", "strategy.num_draft_tokens=4"], "strategy.num_draft_tokens", 4),
        (["--set", "boundary.protect_json=false"], "boundary.protect_json", False),
        (["--set", "task.system=Be brief: no words"], "task.system", "Be brief: no words"),
        (["--set", "sampling.stop=[A, B]"], "sampling.stop", ["A", "B"]),
    ],
)
def test_a_flag_reaches_its_setting(world: World, flags: list[str], path: str, value: object) -> None:
    succeed(*world.arguments("--limit", "1", "--output", "out", *flags))
    branch: Any = settings_of(Path("out"))["settings"]
    for name in path.split("."):
        branch = branch[name]
    assert branch == value


@pytest.mark.parametrize("role", ["target", "draft"])
def test_models_are_chosen_by_flag(world: World, role: str) -> None:
    message = fail(*world.arguments("--compare", BOTH, f"--{role}", "nowhere.json"))
    assert "script 'nowhere.json' cannot be read" in message
    assert not Path("runs").exists()


def test_flags_change_what_is_written(world: World) -> None:
    succeed(*world.arguments("--output", "a", "--max-tokens", "5", "--samples", "2"))
    cut = results(Path("a"))
    assert {record["finish"] for record in cut} == {"length"}
    assert {record["tokens"] for record in cut} == {5}
    assert {record["sample"] for record in cut} == {0, 1}
    succeed(*world.arguments("--output", "b", "--stop", " pens"))
    assert {record["finish"] for record in results(Path("b"))} == {"stop"}
    assert not any("pens" in record["response"] for record in results(Path("b")))
    succeed(*world.arguments("--output", "c", "--strategy", "autoregressive"))
    assert {step["origin"] for record in results(Path("c")) for step in record["steps"]} == {"target"}
    succeed(*world.arguments("--output", "d", "--depth", "0"))
    assert sum(record["usage"]["draft"]["num_passes"] for record in results(Path("d"))) == 0


def test_flags_beat_the_environment_which_beats_the_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads(world.config.read_text())
    world.config.write_text(
        json.dumps({**content, "strategy": {"depth": 2, "width": 2}, "sampling": {"seed": 9}})
    )
    monkeypatch.setenv("REASON_SPEC_STRATEGY__DEPTH", "3")
    monkeypatch.setenv("REASON_SPEC_STRATEGY__WIDTH", "3")
    succeed(*world.arguments("--width", "4", "--limit", "1", "--output", "out"))
    resolved = settings_of(Path("out"))["settings"]
    assert (resolved["strategy"]["depth"], resolved["strategy"]["width"]) == (3, 4)
    assert resolved["sampling"]["seed"] == 9


def test_the_settings_of_a_run_can_be_used_for_the_next(world: World) -> None:
    succeed(*world.arguments("--depth", "3", "--limit", "2", "--output", "out"))
    succeed("solve", str(world.problems), "--config", "out/settings.yaml", "--output", "out")
    assert len(results(Path("out"))) == 6


def test_the_shipped_sample_is_a_file_like_any_other(world: World) -> None:
    result = invoke("solve", "--sample", "--limit", "3", *world.options("--output", "out"))
    assert result.exit_code == 0, result.output
    records = results(Path("out"))
    assert len(records) == 3
    assert {record["response"] for record in records} == {"I do not know."}


# Questions -----------------------------------------------------------------------------------


def test_a_question_streams_its_steps_with_their_writers(world: World) -> None:
    item = world.sums[3]
    result = succeed("solve", item.question, *world.options())
    lines = result.stdout.splitlines()
    assert lines[0] == "draft    | The box holds 5 pens."
    assert lines[1] == "target   | 5 + 5 = 10."
    parts = (
        r"26 tokens, [\d.]+ s, [\d.]+ tokens/s",
        r"steps: draft \d, target \d",
        r"alpha_step 0.\d\d",
        r"alpha_token ([\d.]+|-)",
    )
    assert re.fullmatch(r" \| ".join(parts), lines[-1])
    assert not Path("runs").exists()


def test_rejected_steps_are_shown_on_request_with_the_reason(world: World) -> None:
    item = world.sums[3]
    plain = succeed("solve", item.question, *world.options())
    shown = succeed("solve", item.question, *world.options("--show-rejected"))
    assert "rejected" not in plain.stdout
    rejected = shown.stdout.splitlines()[1]
    assert rejected == "rejected | 5 + 5 = 11.  [other tokens]"
    assert shown.stdout.splitlines()[2] == "target   | 5 + 5 = 10."


def test_quiet_prints_the_answer_alone(world: World) -> None:
    result = succeed("solve", world.sums[1].question, *world.options("-q"))
    assert result.stdout == world.sums[1].answer() + "\n"
    assert result.stderr == ""


def test_json_prints_a_line_for_each_answer(world: World) -> None:
    questions = [item.question for item in world.sums[:2]]
    result = succeed("solve", *questions, *world.options("--json", "--samples", "2"))
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(record["question"], record["sample"]) for record in records] == [
        (question, sample) for question in questions for sample in range(2)
    ]
    assert records[0]["response"] == world.sums[0].answer()
    assert result.stderr == ""


def test_a_question_comes_from_standard_input(world: World) -> None:
    result = succeed("solve", "-", *world.options("--quiet"), stdin=world.sums[2].question + "\n")
    assert result.stdout == world.sums[2].answer() + "\n"


def test_several_questions_have_headings(world: World) -> None:
    result = succeed("solve", world.sums[1].question, world.sums[2].question, *world.options())
    assert " ".join(result.stdout.split()).count("How many pens are in it?") == 2


def test_an_answer_stored_for_a_question_is_shown_again(world: World) -> None:
    arguments = ["solve", world.sums[1].question, *world.options("--output", "out")]
    first = succeed(*arguments)
    second = succeed(*arguments)
    assert "written by an earlier run" in second.stderr
    assert second.stdout == first.stdout
    assert len(results(Path("out"))) == 1


def test_questions_can_be_compared_too(world: World) -> None:
    result = succeed("solve", world.sums[1].question, *world.options("--compare", BOTH))
    assert "1 of 1 answers have the same tokens" in result.stdout
    assert "McNemar" not in result.stdout


# What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "missing.jsonl: there is no such file"),
        (["some/where"], "'some/where' looks like a path, and there is no such file"),
        ([], "nothing to solve"),
        ([""], "the question is empty"),
        (["Why?", "--strategy", "lookahed"], "unknown strategy 'lookahed'; did you mean 'lookahead'?"),
        (["Why?", "--compare", "lookahed,token"], "did you mean 'lookahead'?"),
        (["Why?", "--verifier", "semantics"], "unknown verifier 'semantics'; did you mean 'semantic'?"),
        (["Why?", "--task", "gsm9k"], "unknown task 'gsm9k'; did you mean 'gsm8k'?"),
        (["Why?", "--depth", "99"], "strategy.depth = 99 (from the flags)"),
        (["Why?", "--temperature", "-1"], "sampling.temperature = -1.0"),
        (["Why?", "--top-p", "0"], "sampling.top_p = 0.0"),
        (["Why?", "--prompt", "loud"], "task.prompt = 'loud'"),
        (["Why?", "--stop", ""], "a stop string is empty"),
        (["Why?", "--set", "strategy.dpeth=3"], "(from the flags); did you mean 'depth'?"),
        (["Why?", "--set", "depth"], "write NAME=VALUE"),
        (["Why?", "--set", "strategy.depth=3", "--depth", "2"], "strategy.depth is given twice"),
        (["Why?", "--config", "missing.yaml"], "settings file 'missing.yaml' does not exist"),
        (["Why?", "--compare", "token"], "name two strategies or more"),
        (["Why?", "--compare", "token,token"], "name two strategies or more"),
        (["Why?", "--compare", BOTH, "--strategy", "token"], "exclude each other"),
        (["Why?", "--concurrency", "2"], "--concurrency is for files"),
        (["Why?", "--fresh"], "--fresh needs --output"),
        (["Why?", "--compare", BOTH, "--show-rejected"], "--show-rejected is for a question"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(world: World, arguments: list[str], message: str) -> None:
    said = fail("solve", *arguments)
    assert said.startswith("error: ")
    assert message in said


@pytest.mark.parametrize("flag", ["--limit", "--samples", "--concurrency"])
def test_a_count_of_nothing_is_refused(world: World, flag: str) -> None:
    assert f"Invalid value for '{flag}'" in fail(*world.arguments(flag, "0"))


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_loaded(world: World) -> None:
    Path("taken").write_text("")
    assert "taken: cannot be written" in fail(*world.arguments("--output", "taken"))


def test_an_unexpected_exception_keeps_its_traceback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("our own bug")

    monkeypatch.setattr("reason_spec.evaluation.sources.load_problems", broken)
    result = invoke(*world.arguments())
    assert isinstance(result.exception, RuntimeError)
    assert not isinstance(result.exception, ReasonSpecError)


# The other commands --------------------------------------------------------------------------


def test_grade_adds_prediction_and_correct(tmp_path: Path) -> None:
    answers = ["A: 18", "The answer is $18.00.", "So \\boxed{18}", "#### 18", "It is 19.", "no idea"]
    records = [{"question": "q", "answer": "18", "response": response} for response in answers]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "out.jsonl"
    arguments = ["grade", str(tmp_path / "in.jsonl"), "--task", "gsm8k", "--output", str(out)]
    result = succeed(*arguments)
    assert result.stdout.startswith(
        "4 of 6 responses are correct: 66.7 % (95 % interval 30.0 - 90.3 %); 1 without"
    )
    graded = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["correct"] for record in graded] == [True] * 4 + [False] * 2
    assert [record["question"] for record in graded] == ["q"] * 6
    printed = json.loads(succeed(*arguments, "--json").stdout)
    assert (printed["num_correct"], printed["accuracy"]) == (4, pytest.approx(2 / 3))


def test_grade_names_bad_lines_or_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "q", "answer": "1", "response": "1"}\n{"question": "q", "answer": "1"}\n')
    arguments = ["grade", str(path), "--output", str(tmp_path / "out.jsonl")]
    assert "in.jsonl, line 2: field 'response' is missing" in fail(*arguments)
    assert not (tmp_path / "out.jsonl").exists()
    assert "1 unusable lines left out" in succeed(*arguments, "--skip-bad").stdout
    assert "unknown task" in fail(*arguments, "--task", "nothing")


def test_verify_adds_verdict_and_score_in_order(tmp_path: Path) -> None:
    pairs = [
        ("3 + 4 = 7.", "4 + 3 is 7."),
        ("3 + 4 = 7.", "3 + 4 = 8."),
        ("It has 0.5 kg.", "It has 1/2 kg."),
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b, "context": "Sums."}) + "\n" for a, b in pairs))
    out = tmp_path / "out.jsonl"
    arguments = ["verify", str(path), "--verifier", "numbers", "--output", str(out)]
    result = succeed(*arguments)
    assert result.stdout.startswith("3 pairs: ")
    judged = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(record["a"], record["b"]) for record in judged] == pairs
    assert judged[1]["verdict"] == "reject"
    assert all("score" in record for record in judged)
    assert json.loads(succeed(*arguments, "--json").stdout)["num_pairs"] == 3


def test_verify_names_bad_lines_or_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"a": "1", "b": "1"}\n{"a": "1"}\n')
    arguments = ["verify", str(path), "--verifier", "exact", "--output", str(tmp_path / "out.jsonl")]
    assert "line 2: field 'b' is missing" in fail(*arguments)
    assert "1 unusable lines left out" in succeed(*arguments, "--skip-bad").stdout
    assert "did you mean 'exact'" in fail(*arguments[:-4], "--verifier", "exakt", "--output", "x")


def test_settings_prints_what_would_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASON_SPEC_STRATEGY__DEPTH", "3")
    printed = succeed("settings", "--set", "strategy.width=2").stdout
    resolved = Settings.model_validate(yaml.safe_load(printed))
    assert (resolved.strategy.depth, resolved.strategy.width) == (3, 2)
    assert f"# hash: {resolved.hash}" in printed


def test_the_documented_settings_are_the_settings() -> None:
    documented = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
    assert succeed("settings", "--markdown").stdout in documented


def test_doctor_and_version_are_there() -> None:
    assert succeed("--version").stdout.strip() == __version__
    assert "doctor" in succeed("--help").stdout


def test_help_shows_the_defaults_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = succeed("solve", "--help").stdout
    defaults = Settings()
    assert f"Steps the draft runs ahead. Default: {defaults.strategy.depth}." in text
    assert f"Default: {defaults.verifier.name}." in text
    assert f"Default: {defaults.sampling.max_tokens}." in text


@pytest.mark.parametrize(
    ("complete", "typed", "expected"),
    [
        (_completion("strategy"), "look", ["lookahead"]),
        (_completion("verifier"), "se", ["semantic"]),
        (_completion("task"), "gsm", ["gsm8k"]),
        (_complete_names, "autoregressive,look", ["autoregressive,lookahead"]),
        (_complete_names, "token,to", []),
    ],
)
def test_names_are_completed(complete: Callable[[str], list[str]], typed: str, expected: list[str]) -> None:
    assert complete(typed) == expected
    assert complete("zzz") == []


def test_the_shell_gets_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "_REASON_SPEC_COMPLETE": "complete_bash",
        "COMP_WORDS": "reason-spec solve --strategy ",
        "COMP_CWORD": "3",
    }
    result = CliRunner().invoke(app, [], prog_name="reason-spec", env=environment)
    assert result.stdout.split() == strategy_names()
