"""`reason-spec tune` on scripted engines: what it measures, writes, keeps, refuses and goes on from."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from reason_spec.accelerator import Accelerator, Generator
from reason_spec.evaluation.outcome import Outcome, outcome_from
from reason_spec.settings import load_settings
from tests.cli_runner import fail, invoke, results, succeed
from tests.evaluation.problems import World, build_world

COUNT = 30
SPEEDS = {"autoregressive": 1.0, "prompt_lookup": 1.2, "lookahead exact": 1.5, "lookahead semantic": 2.0}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return build_world(tmp_path / "world", COUNT)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers take what their settings and problem say, so that runs can be compared number by number."""

    def timed_outcome(*arguments: Any, **options: Any) -> Outcome:
        settings = arguments[3]
        strategy = settings.strategy.name
        verifier = f" {settings.verifier.name}" if strategy == "lookahead" else ""
        noise = zlib.crc32(f"{arguments[0].id} {settings.hash}".encode()) % 100 / 1000
        return outcome_from(*arguments, **{**options, "seconds": (1 + noise) / SPEEDS[strategy + verifier]})

    monkeypatch.setattr("reason_spec.evaluation.batch.outcome_from", timed_outcome)


def arguments(world: World, *more: str) -> list[str]:
    options = ["--config", str(world.config), "--strategies", "prompt_lookup,lookahead", "--depths", "2,4"]
    return ["tune", str(world.problems), *options, "--run", "out", *more]


def numbers(folder: str = "out") -> dict[str, Any]:
    content = json.loads(Path(folder, "tuning.json").read_text())
    assert isinstance(content, dict)
    return content


def lines(folder: str = "out") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "answers.jsonl").read_text().splitlines()]


def test_the_settings_that_are_written_make_solve_use_what_was_chosen(world: World, timed: None) -> None:
    result = succeed(*arguments(world, "--loss", "1", "--output", "best.yaml"))
    assert "lookahead exact depth" in result.stdout
    assert "so no answer is lost" in result.stdout
    text = Path("best.yaml").read_text()
    assert text.startswith("# lookahead exact depth")
    assert "# Chosen by successive halving." in text
    settings = load_settings(Path("best.yaml"))
    assert settings.strategy.name == "lookahead"
    assert settings.strategy.depth in (2, 4)
    assert not settings.strategy.planner
    assert settings.verifier.name == "exact"
    succeed("solve", str(world.problems), "--config", "best.yaml", "--limit", "3", "--output", "used")
    used = results(Path("used"))
    assert {record["strategy"] for record in used} == {"lookahead"}
    assert {record["settings_hash"] for record in used} == {settings.hash}
    chosen = next(item for item in numbers()["final"]["candidates"] if item["name"] == numbers()["chosen"])
    assert chosen["settings_hash"] == settings.hash


def test_too_few_problems_for_a_loss_leave_what_may_lose_out_and_say_how_many_it_takes(
    world: World, timed: None
) -> None:
    result = succeed(*arguments(world, "--loss", "1"))
    assert "30 problems are too few to show a loss of at most 1 point" in " ".join(result.stderr.split())
    assert "Give 380 problems or more" in " ".join(result.stderr.split())
    found = numbers()
    assert found["loss_tested"] is False
    assert not any("semantic" in item["name"] for rung in found["rungs"] for item in rung["candidates"])


def test_a_faster_candidate_is_chosen_where_its_loss_is_shown(world: World, timed: None) -> None:
    # The draft words some steps otherwise, which semantic lets stand: no answer is lost by that.
    result = succeed(*arguments(world, "--loss", "30", "--confidence", "0.9"))
    assert "It loses at most 30 points of answers, with 90 % confidence" in result.stdout
    found = numbers()
    assert found["chosen"].startswith("lookahead semantic")
    tested = next(item for item in found["final"]["candidates"] if item["name"] == found["chosen"])
    assert tested["loss_upper"] <= 0.3
    assert found["confidence_of_one_test"] == pytest.approx(0.95)


def test_where_nothing_is_faster_the_settings_name_the_target_alone(
    world: World, timed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SPEEDS, "autoregressive", 3.0)
    result = succeed(*arguments(world))
    assert "Nothing is shown to be faster than the target alone" in result.stdout
    assert load_settings(Path("out/tuned.yaml")).strategy.name == "autoregressive"


@pytest.mark.parametrize("share", [0.0, 0.13, 0.5, 0.86])
def test_a_killed_search_goes_on_and_ends_as_one_that_was_not(
    world: World, timed: None, share: float
) -> None:
    succeed(*arguments(world, "--quiet"))
    whole, expected = Path("out/answers.jsonl").read_bytes(), numbers()
    Path("out/tuning.json").unlink()
    cut = whole[: int(share * len(whole))]
    Path("out/answers.jsonl").write_bytes(cut)
    succeed(*arguments(world, "--quiet"))
    assert numbers() == expected
    kept = cut[: cut.rfind(b"\n") + 1]
    assert Path("out/answers.jsonl").read_bytes().startswith(kept)
    asked = [(record["candidate"], record["id"]) for record in lines()]
    assert len(asked) == len(set(asked)) == len(whole.splitlines())


def test_what_is_measured_is_not_measured_again(
    world: World, timed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(*arguments(world))
    expected = numbers()

    async def refuse(_: Accelerator) -> None:
        raise AssertionError("nothing is missing, and the engines start")

    monkeypatch.setattr(Accelerator, "start", refuse)
    succeed(*arguments(world))
    assert numbers() == expected


def test_a_folder_of_another_search_is_refused_until_it_may_be_replaced(world: World, timed: None) -> None:
    succeed(*arguments(world))
    before = len(lines())
    message = fail(*arguments(world, "--loss", "30"))
    assert "out holds a search with other loss" in message
    assert "--fresh" in message
    assert len(lines()) == before
    succeed(*arguments(world, "--loss", "30", "--fresh"))
    assert numbers()["loss"] == 0.3


def test_a_damaged_line_is_named(world: World, timed: None) -> None:
    succeed(*arguments(world))
    path = Path("out/answers.jsonl")
    written = path.read_text().splitlines(keepends=True)
    path.write_text(written[0] + "{}\n" + "".join(written[1:]))
    assert "answers.jsonl, line 2" in fail(*arguments(world))


def test_a_budget_ends_rungs_and_keeps_four_problems_of_each(world: World, timed: None) -> None:
    succeed(*arguments(world, "--budget", "1"))
    found = numbers()
    assert found["rungs"][0]["num_problems"] == 4
    assert found["final"]["num_problems"] == 4
    succeed(*arguments(world, "--budget", "100000", "--fresh"))
    assert numbers()["final"]["num_problems"] == 15


def test_json_is_one_object_and_quiet_is_the_result_alone(world: World, timed: None) -> None:
    result = succeed(*arguments(world, "--json"))
    record = json.loads(result.stdout)
    assert record["strategy"] == "lookahead"
    assert record["run"] == "out"
    assert result.stderr == ""
    quiet = succeed(*arguments(world, "--quiet"))
    assert "rung" not in quiet.stdout
    assert "Use it with: --config out/tuned.yaml" in quiet.stdout


def test_no_number_of_the_table_is_cut_on_a_narrow_terminal(world: World, timed: None) -> None:
    result = succeed(*arguments(world))
    assert "…" not in result.stdout
    assert "autoregressive (the target alone)" in result.stdout


def test_the_picture_is_drawn(world: World, timed: None) -> None:
    pytest.importorskip("matplotlib")
    succeed(*arguments(world, "--png", "tune.png"))
    assert Path("tune.png").read_bytes().startswith(b"\x89PNG")


def test_problems_at_once_share_their_time(world: World) -> None:
    succeed(*arguments(world, "--concurrency", "4", "--problems", "16"))
    assert {record["concurrency"] for record in lines()} == {4}


def test_the_first_problems_are_used(world: World, timed: None) -> None:
    succeed(*arguments(world, "--problems", "12"))
    used = {record["id"] for record in lines()}
    assert used <= {f"p{number}" for number in range(12)}
    assert len(used) >= 10


def test_a_candidate_that_the_engines_cannot_run_is_dropped_and_the_reason_is_said(
    world: World, timed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reason_spec.errors import SettingsError

    answer = Generator.answer

    async def refuse(self: Generator, *arguments: Any, **options: Any) -> Any:
        if self.settings.strategy.name == "prompt_lookup":
            raise SettingsError("this model takes no drafts")
        return await answer(self, *arguments, **options)

    monkeypatch.setattr(Generator, "answer", refuse)
    result = succeed(*arguments(world))
    assert "prompt_lookup, problem" in result.stderr
    assert "this model takes no drafts" in result.stderr
    (token,) = [item for item in numbers()["rungs"][0]["candidates"] if item["name"] == "prompt_lookup"]
    assert token["dropped"] == "no two answers could be timed"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--depths", "two"], "--depths 'two': name values separated by commas, such as 2,4"),
        (["--depths", "0"], "--depths '0': name one or more values from 1 to 64"),
        (["--loss", "0"], "a loss of 0 points: it has to lie between 0 and 100"),
        (["--problems", "5"], "5 problems with known answers are too few to choose from: give 8 or more"),
        (["--generate", "9"], "--generate makes all problems itself"),
        (["--output", "nowhere/best.yaml"], "there is no folder nowhere"),
        (["--output", "."], "is a folder"),
        (["--strategies", "autoregressive"], "there is nothing to choose from"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    world: World, more: list[str], message: str
) -> None:
    words = arguments(world)
    for option, value in zip(more[::2], more[1::2], strict=True):
        if option in words:
            place = words.index(option)
            words[place + 1] = value
        else:
            words += [option, value]
    assert message in fail(*words)
    assert not Path("out").exists()


def test_the_command_needs_no_name_and_the_other_one_keeps_its_own(world: World) -> None:
    shown = invoke("tune", "--help").stdout
    assert "pair" in shown
    assert "verifier" in shown
    assert "--halving" in invoke("tune", "pair", "--help").stdout
    assert "--whole-curve" in invoke("tune", "verifier", "--help").stdout
    assert "nothing to tune on" in fail("tune", "--loss", "2")


def test_the_settings_file_is_plain_yaml_with_its_reasons_above(world: World, timed: None) -> None:
    succeed(*arguments(world))
    text = Path("out/tuned.yaml").read_text()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("2 candidates" in line or "candidate" in line for line in comments)
    assert yaml.safe_load(text)["strategy"]["name"] == "lookahead"


@pytest.mark.slow
def test_the_embedded_pair_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    succeed("tune", "--generate", "8", "--strategies", "speculative", "--run", "out", "--quiet")
    found = numbers()
    (candidate,) = found["final"]["candidates"]
    assert candidate["num_problems"] == 8
    assert candidate["num_lost"] == 0
    alone = {record["id"]: record["response"] for record in lines() if record["candidate"] == "baseline"}
    drafted = {record["id"]: record["response"] for record in lines() if record["candidate"] != "baseline"}
    assert alone == drafted
