"""`reason-spec solve` on questions: steps as they become final."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli_runner import BOTH, enter_world, fail, results, succeed
from tests.evaluation.problems import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return enter_world(tmp_path, monkeypatch)


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


def test_questions_with_an_output_are_solved_as_a_file_is(world: World) -> None:
    arguments = ["solve", world.sums[1].question, *world.options("--output", "out")]
    assert "tokens per problem" in succeed(*arguments).stdout
    assert "All 1 answers are in out already" in succeed(*arguments).stderr
    assert len(results(Path("out"))) == 1


def test_questions_can_be_compared_too(world: World) -> None:
    result = succeed("solve", world.sums[1].question, *world.options("--compare", BOTH))
    assert "1 of 1 answers have the same tokens" in result.stdout
    assert "McNemar" not in result.stdout


def test_a_budget_ends_the_thinking_of_a_question_and_its_tokens_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "thinks.yaml"
    script.write_text('{answers: {"two": "It is\\n\\nfour.</think>\\n\\nFour."}, thinking: true}')
    options = ("--target", str(script), "--set", "target.kind=scripted", "--strategy", "autoregressive")
    result = succeed("solve", "two and two?", *options, "--thinking-token-budget", "4")
    *lines, numbers = result.stdout.splitlines()
    assert lines == ["target   | It is", "inserted | </think>", "target   | Four."]
    assert numbers.startswith("11 tokens (3 of thinking), ")
    steps = succeed("solve", "two and two?", *options, "--max-thinking-steps", "1", "--json")
    assert json.loads(steps.stdout)["thinking"] == {"num_tokens": 3, "num_steps": 1, "ended_by": "steps"}
    none = succeed("solve", "two and two?", *options, "--reasoning-effort", "none", "--json")
    assert json.loads(none.stdout)["response"] == "Four."


def test_an_answer_that_ends_early_says_where_and_with_what_chance(world: World) -> None:
    values = ("exit.threshold=0", "exit.answer_prompt=The answer is 7.")
    early = ("--early-exit", "policy", *(part for value in values for part in ("--set", value)))
    question = world.sums[3].question
    result = succeed("solve", question, *world.options(*early))
    assert "inserted | The answer is 7." in result.stdout
    assert re.search(r"ended by policy after step 2, chance 0\.\d{3}$", result.stdout.strip())
    record = json.loads(succeed("solve", question, *world.options("--json", *early)).stdout)
    assert record["loss_class"] == "shortened"
    assert (record["early_exit"]["rule"], record["early_exit"]["num_steps"]) == ("policy", 2)


def test_a_policy_that_is_not_there_is_named_before_anything_is_loaded(world: World) -> None:
    early = ("--early-exit", "policy", "--set", "exit.policy=gone.json")
    assert "gone.json" in fail("solve", world.sums[3].question, *world.options(*early))
