"""`reason-spec plan`: what it predicts, explains and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli_runner import enter_world, fail, invoke, succeed
from tests.evaluation.problems import World
from tests.evaluation.run_folders import write_run

RATES = ("--alpha-step", "0.63", "--c-step", "0.1")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    # Enough to see that all is there; how near simulations come is tested beside them.
    monkeypatch.setattr("reason_spec.lab.planning.prediction.SIMULATED_STEPS", 300)
    monkeypatch.setattr("reason_spec.lab.planning.diagnosis.SIMULATED_STEPS", 300)


def predicted(*arguments: str) -> dict[str, Any]:
    content = json.loads(succeed("plan", *RATES, "--json", *arguments).stdout)
    assert isinstance(content, dict)
    return content


def test_rates_and_costs_give_speedups_the_best_split_and_a_table_over_depth() -> None:
    tokens = ("--alpha-token", "0.6", "--c-token", "0.02", "--budget", "16")
    shown = succeed("plan", *RATES, "--depth", "6", *tokens).stdout
    assert "2.29x" in shown, "theorem 2 with seven target steps at once"
    assert "at most 2.70x" in shown
    best = "Best split of 16 tokens a pass: the draft 3 steps ahead, 4 tokens per branch: 4.01x expected"
    assert best in " ".join(shown.split())
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["5"])
    assert row.split()[1] == "2.26x"
    assert "█" in row


def test_json_holds_the_same_numbers() -> None:
    found = predicted("--depth", "5", "--verify", "0.05", "--step-tokens", "40,20", "--requests", "2")
    assert found["workload"]["verification"] == 0.05
    assert (found["workload"]["step_tokens"], found["workload"]["step_tokens_std"]) == (40.0, 20.0)
    assert found["workload"]["requests"] == 2
    assert found["step"]["depth"] == 5
    assert found["best"]["num_drafts"] == 0, "without a token level all goes to steps"
    assert [row["depth"] for row in found["rows"]] == list(range(1, 11))


def test_all_steps_standing_has_no_ceiling() -> None:
    content = json.loads(succeed("plan", "--alpha-step", "1", "--c-step", "0.1", "--json").stdout)
    assert content["ceiling"] is None
    assert "no ceiling" in succeed("plan", "--alpha-step", "1", "--c-step", "0.1").stdout


def test_pass_times_come_from_a_list_or_a_file_and_bound_the_budget() -> None:
    Path("times.yaml").write_text("1: 10\n4: 12\n32: 30\n")
    listed = predicted("--pass-times", "1:10,4:12,32:30", "--alpha-token", "0.6")
    filed = predicted("--pass-times", "times.yaml", "--alpha-token", "0.6")
    assert listed == filed
    assert listed["budget"] == 32
    assert listed["best"]["pass_tokens"] < 32, "passes that grow are not filled to the end"


def test_a_run_is_explained_term_by_term() -> None:
    write_run(Path("run"))
    shown = succeed("plan", "--run", "run").stdout
    assert "alpha_step 0.750, c 0.100, depth 3" in shown
    for name in ("ideal", "+ token drafts", "+ pass time", "measured", "not explained"):
        assert any(line.startswith(name) for line in shown.splitlines()), name
    assert "2.00x" in shown
    (content,) = json.loads(succeed("plan", "--run", "run", "--json").stdout)
    shares = [term["share"] for term in content["terms"]]
    assert sum(shares) + content["unexplained"] == pytest.approx(1.0)
    assert content["run"]["speedup"] == pytest.approx(2.0)


def test_a_run_of_solve_can_be_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world: World = enter_world(tmp_path, monkeypatch)
    compared = ("--compare", "autoregressive,lookahead", "--config", str(world.config))
    succeed("solve", str(world.problems), *compared, "--output", "run")
    shown = succeed("plan", "--run", "run", "--c-step", "0.2").stdout
    assert "lookahead: " in shown
    assert "measured" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--alpha-step and --c-step are needed"),
        (("--alpha-step", "0.6"), "--alpha-step and --c-step are needed"),
        (("--alpha-step", "1.3", "--c-step", "0.1"), "alpha_step is 1.3"),
        (("--alpha-step", "0.6", "--c-step", "1.5"), "c_step is 1.5"),
        ((*RATES, "--alpha-token", "-1"), "alpha_token is -1"),
        ((*RATES, "--budget", "0"), "Invalid value for '--budget'"),
        ((*RATES, "--depth", "-1"), "Invalid value for '--depth'"),
        ((*RATES, "--requests", "0"), "Invalid value for '--requests'"),
        ((*RATES, "--verify", "nan"), "verification is nan"),
        ((*RATES, "--num-drafts", "4"), "--num-drafts needs --alpha-token"),
        ((*RATES, "--step-tokens", "1,2,3"), "--step-tokens is '1,2,3'"),
        ((*RATES, "--step-tokens", "0"), "step_tokens is 0"),
        ((*RATES, "--pass-times", "4:1.2"), "a pass of 1 token is missing"),
        ((*RATES, "--pass-times", "1:1,4"), "--pass-times is '1:1,4'"),
        ((*RATES, "--pass-times", "none.yaml"), "none.yaml: cannot be read"),
        (("--measure", *RATES), "--measure finds rates, costs"),
        (("--measure", "--pass-times", "1:1"), "--measure finds rates, costs"),
        (("--measure", "--run", "nowhere"), "--measure finds rates, costs"),
        (("--measure", "--target", "large"), "name it with --draft"),
        (("problems.jsonl", *RATES), "are for --measure"),
        (("--target", "large", *RATES), "are for --measure"),
        (("--run", "nowhere"), "nowhere: there is no such folder"),
        (("--run", "nowhere", "--alpha-step", "0.5"), "--run reads rates and numbers from the folder"),
        (("--run", "nowhere", "--requests", "4"), "--run reads rates and numbers from the folder"),
        ((*RATES, "--seed", "0"), "are for --measure"),
        (("--measure", "--requests", "4"), "--measure finds rates, costs"),
    ],
)
def test_what_is_impossible_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    assert message in fail("plan", *arguments)


def test_the_help_names_every_question() -> None:
    shown = " ".join(invoke("plan", "--help").stdout.split())
    for flag in ("--alpha-step", "--pass-times", "--run", "--measure", "--json"):
        assert flag in shown
