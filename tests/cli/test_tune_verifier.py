"""`reason-spec tune verifier` on scripted engines: what it chooses, keeps, refuses and goes on from."""

from __future__ import annotations

import asyncio
import json
from math import log
from pathlib import Path
from typing import Any

import pytest
import yaml

from reason_spec.engines.generation import Score
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.lab import pictures
from reason_spec.lab.tuning import verifier as tune_verifier
from reason_spec.lab.tuning.calibration import LossTest
from reason_spec.pair.generator import problems
from reason_spec.settings import load_settings
from reason_spec.types import Prefix
from tests.cli_runner import fail, invoke, results, succeed
from tests.evaluation.problems import World, build_world

COUNT = 60
CHANCE = 0.6
"""What the target gives a token that it would not have written: between the thresholds 0.9 and 0.5."""
WRONG_BY_DRAFT = [number for number in range(COUNT) if number % 3 == 0]
LOST = [number for number in WRONG_BY_DRAFT if number % 5]
"""The target alone has the others wrong as well."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Sixty sums; a drafted step that the target would not write has a chance of 0.6 for it."""
    scored = ScriptedEngine.score

    async def score(self: ScriptedEngine, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        certain = await scored(self, prefix, continuation)
        logprobs = tuple(logprob if logprob == 0 else log(CHANCE) for logprob in certain.logprobs)
        return Score(logprobs, certain.best, certain.usage)

    monkeypatch.setattr(ScriptedEngine, "score", score)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return build_world(tmp_path / "world", COUNT)


def arguments(world: World, *more: str, loss: str = "10", verifier: str = "likelihood") -> list[str]:
    options = ["--config", str(world.config), "--verifier", verifier, "--loss", loss, "--no-plot"]
    return ["tune", "verifier", str(world.problems), *options, "--output", "out", *more]


def calibration() -> dict[str, Any]:
    content = json.loads(Path("out/calibration.json").read_text())
    assert isinstance(content, dict)
    return content


def num_written() -> int:
    return sum(len(results(path.parent)) for path in Path("out").glob("*/results.jsonl"))


def test_the_laxest_threshold_within_the_loss_is_chosen_and_its_settings_can_be_used(world: World) -> None:
    result = succeed(*arguments(world, "--thresholds", "0.5,0.9,0.7"))
    assert "likelihood 0.7 under specreason loses at most 10 points of answers" in result.stdout
    assert "0 of 60 were lost" in result.stdout
    found = calibration()
    assert found["threshold"] == 0.7
    assert [(trial["threshold"], trial["num_lost"]) for trial in found["trials"]] == [
        (0.9, 0), (0.7, 0), (0.5, len(LOST)),
    ]  # fmt: skip
    settings = load_settings(Path("out/calibrated.yaml"))
    assert settings.strategy.name == "specreason"
    assert settings.verifier.name == "likelihood"
    assert settings.verifier.thresholds == {"likelihood": 0.7}
    assert settings.verifier.deadline == 5.0
    answered = succeed("solve", str(world.problems), "--config", "out/calibrated.yaml", "--output", "used")
    assert "48 of 60" in answered.stdout, "every fifth reference is wrong, and nothing else"


def test_the_sequence_ends_at_the_first_failure_unless_the_whole_curve_is_wanted(world: World) -> None:
    succeed(*arguments(world, "--thresholds", "0.9,0.5,0.3"))
    assert [trial["passes"] for trial in calibration()["trials"]] == [True, False]
    succeed(*arguments(world, "--thresholds", "0.9,0.5,0.3", "--whole-curve"))
    found = calibration()
    assert [trial["passes"] for trial in found["trials"]] == [True, False, False]
    assert found["threshold"] == 0.9


def test_only_answers_that_can_differ_are_solved_anew_and_only_wrong_ones_by_the_target(world: World) -> None:
    succeed(*arguments(world, "--thresholds", "0.9,0.7,0.5", "--whole-curve"))
    # Beside the miscalculated steps, those that the draft words otherwise come to stand.
    changed = {number for number in range(COUNT) if number % 3 == 0 or number % 4 == 0}
    assert [trial["num_solved"] for trial in calibration()["trials"]] == [COUNT, 0, len(changed)]
    assert {record["id"] for record in results(Path("out/threshold-0.5"))} == {f"p{n}" for n in changed}
    assert not Path("out/threshold-0.7").exists()
    wrong = {f"p{number}" for number in range(COUNT) if number % 3 == 0 or number % 5 == 0}
    assert {record["id"] for record in results(Path("out/target"))} == wrong


def test_an_answer_that_is_not_solved_anew_is_the_one_that_would_have_been_written(world: World) -> None:
    succeed(*arguments(world, "--thresholds", "0.9,0.5", "--whole-curve"))
    strict = {record["id"]: record for record in results(Path("out/threshold-0.9"))}
    anew = {record["id"] for record in results(Path("out/threshold-0.5"))}
    succeed(
        "solve", str(world.problems), "--config", str(world.config), "--verifier", "likelihood",
        "--strategy", "specreason", "--set", "verifier.threshold=0.5", "--output", "lax",
    )  # fmt: skip
    kept = [record for record in results(Path("lax")) if record["id"] not in anew]
    assert kept
    for record in kept:
        assert record["response"] == strict[record["id"]]["response"]


def test_where_no_threshold_is_safe_nothing_is_kept_and_the_exit_code_says_so(world: World) -> None:
    succeed(*arguments(world, "--thresholds", "0.9"))
    assert Path("out/calibrated.yaml").exists()
    result = invoke(*arguments(world, "--thresholds", "0.5"))
    assert result.exit_code == 1
    assert "No threshold of likelihood is shown to lose at most 10 points" in result.stdout
    assert f"At 0.5, {len(LOST)} of 60 were lost" in result.stdout
    assert "More problems would not show it" in result.stdout
    assert not Path("out/calibrated.yaml").exists()
    assert calibration()["threshold"] is None


def test_a_sample_that_is_too_small_is_refused_before_anything_starts(world: World) -> None:
    message = fail(*arguments(world, loss="1"))
    assert "60 problems with known answers are too few" in message
    assert "takes 299, even where no answer is lost" in message
    assert "allow a loss of 4.9 points or more with --loss" in message
    assert "takes 59" in fail(*arguments(world, "--limit", "40", loss="5"))
    assert "questions" not in fail("tune", "verifier", "What is 1 + 1?", "--no-plot")
    assert not Path("out").exists()


def test_a_run_goes_on_from_what_is_on_the_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("--thresholds", "0.9,0.5", "--concurrency", "4")
    solve_at, solve_alone = tune_verifier._Bench.solve_at, tune_verifier._Bench.solve_alone
    thresholds: list[float] = []

    async def noted(self: Any, threshold: float, names: Any) -> Any:
        thresholds.append(threshold)
        return await solve_at(self, threshold, names)

    async def interrupted(self: Any, names: Any) -> Any:
        if thresholds[-1:] == [0.5]:
            raise asyncio.CancelledError
        return await solve_alone(self, names)

    monkeypatch.setattr(tune_verifier._Bench, "solve_at", noted)
    monkeypatch.setattr(tune_verifier._Bench, "solve_alone", interrupted)
    result = invoke(*arguments(world, *chosen))
    assert result.exit_code == 130
    assert "The answers so far are kept in out; the same command continues the search." in result.stderr
    assert not Path("out/calibrated.yaml").exists()
    num_kept = num_written()
    assert num_kept > COUNT
    monkeypatch.setattr(tune_verifier._Bench, "solve_alone", solve_alone)
    succeed(*arguments(world, *chosen))
    whole, sessions = calibration(), yaml.safe_load(Path("out/threshold-0.9/settings.yaml").read_text())
    assert len(sessions["sessions"]) == 1
    assert num_written() > num_kept
    again = succeed(*arguments(world, *chosen))
    assert "Loading" not in again.stderr
    assert calibration() == whole
    assert "is now 8" in fail(*arguments(world, *chosen[:3], "8"))


def test_fresh_solves_everything_anew(world: World) -> None:
    succeed(*arguments(world, "--thresholds", "0.9,0.5"))
    before, sessions = calibration(), num_written()
    result = succeed(*arguments(world, "--thresholds", "0.9,0.5", "--fresh"))
    assert "60/60 answers" in result.stderr
    assert calibration() == before
    assert num_written() == sessions


def test_an_answer_that_cannot_be_written_counts_as_lost(world: World) -> None:
    for role in ("target", "draft"):
        script = json.loads((world.config.parent / f"{role}.json").read_text())
        del script["answers"][world.sums[1].question]
        (world.config.parent / f"{role}.json").write_text(json.dumps({**script, "otherwise": None}))
    result = succeed(*arguments(world, "--thresholds", "0.9"))
    assert "problem 'p1': not answered" in result.stderr
    assert calibration()["trials"][0]["num_lost"] == 1


def test_problems_without_a_reference_answer_are_left_out(world: World) -> None:
    records = [json.loads(line) for line in world.problems.read_text().splitlines()]
    del records[0]["answer"]
    world.problems.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = succeed(*arguments(world, "--thresholds", "0.9"))
    assert "left out: 1 problems without a reference answer" in result.stderr
    assert calibration()["trials"][0]["num_problems"] == COUNT - 1


def test_json_is_the_calibration_alone(world: World) -> None:
    result = succeed(*arguments(world, "--thresholds", "0.9", "--json"))
    assert json.loads(result.stdout) == {**calibration(), "output": "out"}
    assert result.stderr == ""


def test_a_picture_that_could_not_be_drawn_is_refused_with_the_install_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    message = fail(*[part for part in arguments(world) if part != "--no-plot"])
    assert "(--no-plot leaves it out)" in message
    assert "pip install 'reason-spec[plots]'" in message
    assert not Path("out").exists()


def test_the_curves_are_drawn(world: World) -> None:
    pytest.importorskip("matplotlib")
    succeed(*[part for part in arguments(world, "--thresholds", "0.9,0.5") if part != "--no-plot"])
    assert Path("out/calibration.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--verifier", "semantic"), "verifier semantic needs the target's step beside them"),
        (("--verifier", "likelihood+utility+semantic"), "likelihood, utility judge a step alone"),
        (("--verifier", "likelyhood"), "did you mean 'likelihood'?"),
        (("--strategy", "lookahead"), "these do: specreason, rsd, hybrid"),
        (("--strategy", "arbitrage"), "no verifier that judges drafted steps alone"),
        (("--loss", "0"), "a loss of 0 points: it has to lie between 0 and 100"),
        (("--confidence", "1"), "a confidence of 1: it has to lie between 0 and 1"),
        (("--thresholds", "0.9,high"), "name values separated by commas"),
        (("--thresholds", "1.5"), "name one or more between 0 and 1"),
    ],
)
def test_what_has_no_threshold_to_choose_is_refused(
    world: World, options: tuple[str, ...], message: str
) -> None:
    given = ["tune", "verifier", str(world.problems), "--config", str(world.config), "--no-plot"]
    given += [] if "--loss" in options else ["--loss", "10"]
    assert message in fail(*given, *options)


def test_a_folder_of_its_own_is_named_after_the_problems_and_the_settings(world: World) -> None:
    given = [part for part in arguments(world, "--thresholds", "0.9") if part not in ("--output", "out")]
    result = succeed(*given)
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("sums-calibration-")
    assert f"Use it with: --config {folder}/calibrated.yaml" in result.stdout


def test_an_output_that_is_no_folder_is_refused(world: World) -> None:
    Path("out").write_text("")
    message = fail(*arguments(world))
    assert "cannot be written" in message
    assert "Name another folder with --output." in message


def test_generated_problems_are_no_test_problems_and_four_for_each_that_it_takes() -> None:
    made = tune_verifier.generated_problems(LossTest(0.2, 0.95), None, seed=0).problems
    assert len(made) == 4 * 14
    assert all(problem.id.startswith("validation-") for problem in made)
    others = tune_verifier.generated_problems(LossTest(0.2, 0.95), 56, seed=1).problems
    assert not {problem.question for problem in made} & {problem.question for problem in others}
    tested = problems("test", 1)
    assert not {problem.question for problem in made} & {next(tested).question for _ in range(200)}


@pytest.mark.slow
def test_on_the_embedded_pair_answers_that_are_taken_over_are_those_of_a_run_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `hybrid` tokens are mended and what is left open is compared: there is more to differ."""
    monkeypatch.chdir(tmp_path)
    made = tune_verifier.generated_problems(LossTest(0.2, 0.95), 16, seed=5).problems
    records = [{"id": item.id, "question": item.question, "answer": item.answer} for item in made]
    Path("made.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    succeed(
        "tune", "verifier", "made.jsonl", "--loss", "20", "--thresholds", "0.95,0.7", "--whole-curve",
        "--no-plot", "--output", "out",
    )  # fmt: skip
    strict = {record["id"]: record for record in results(Path("out/threshold-0.95"))}
    anew = {record["id"] for record in results(Path("out/threshold-0.7"))}
    succeed(
        "solve", "made.jsonl", "--strategy", "hybrid", "--output", "lax",
        "--set", "verifier.thresholds.likelihood=0.7", "--set", "strategy.planner=false",
    )  # fmt: skip
    taken_over = [record for record in results(Path("lax")) if record["id"] not in anew]
    assert taken_over
    for record in taken_over:
        assert record["response"] == strict[record["id"]]["response"]


def test_the_drafts_own_confidence_has_a_threshold_too(world: World) -> None:
    """The scripted draft is always certain, so every step stands, and the answers it has wrong are lost."""
    succeed(*arguments(world, "--thresholds", "0.9", loss="50", verifier="confidence"))
    (trial,) = calibration()["trials"]
    assert calibration()["verifier"] == "confidence"
    assert trial["num_lost"] == len(LOST)
