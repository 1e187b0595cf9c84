"""Options of the command: they reach the settings, are completed, explained and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from reason_spec import __version__
from reason_spec.cli.main import app
from reason_spec.cli.options import (
    NameKind,
    compared_strategies,
    complete_assignment,
    complete_name,
    complete_strategies,
    complete_verifiers,
    names_of,
)
from reason_spec.errors import ReasonSpecError, SettingsError
from reason_spec.settings import Settings
from reason_spec.strategies.factory import strategy_names
from tests.cli_runner import BOTH, enter_world, fail, invoke, results, settings_of, succeed
from tests.evaluation.problems import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return enter_world(tmp_path, monkeypatch)


# Every option that sets something ------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        (["--task", "gsm8k"], "task.name", "gsm8k"),
        (["--prompt", "boxed"], "task.prompt", "boxed"),
        (["--strategy", "prompt_lookup"], "strategy.name", "prompt_lookup"),
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
        (
            ["--set", "strategy.cues.reflection=[hmm, hold it]"],
            "strategy.cues.reflection",
            ["hmm", "hold it"],
        ),
        (["--set", "strategy.use_hint=false"], "strategy.use_hint", False),
        (["--set", "verifier.judge=null"], "verifier.judge", None),
        (["--set", "task.system=Be brief: no words"], "task.system", "Be brief: no words"),
        (["--set", "task.system=yes"], "task.system", "yes"),
        (["--set", "suffix.tenant=42"], "suffix.tenant", "42"),
        (["--set", "load_control.use=off"], "load_control.use", "off"),
        (["--set", "sampling.stop=[A, B]"], "sampling.stop", ["A", "B"]),
        (["--set", "verifier.thresholds={likelihood: 0.95}"], "verifier.thresholds", {"likelihood": 0.95}),
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
    assert {record["loss_class"] for record in results(Path("d"))} == {"exact"}
    assert sum(sum(record["usage"]["verdicts"].values()) for record in results(Path("d"))) == 0


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


# What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "missing.jsonl: there is no such file"),
        (["problems.csv"], "'problems.csv' looks like a path, and there is no such file"),
        (["some/where"], "'some/where' looks like a path, and there is no such file"),
        ([], "nothing to solve"),
        ([""], "the question is empty"),
        (["Why?", "--strategy", "lookahed"], "unknown strategy 'lookahed'; did you mean 'lookahead'?"),
        (["Why?", "--compare", "lookahed,prompt_lookup"], "did you mean 'lookahead'?"),
        (["Why?", "--verifier", "semantics"], "unknown verifier 'semantics'; did you mean 'semantic'?"),
        (["Why?", "--strategy", "nothing"], "unknown strategy 'nothing'. Known: autoregressive, prompt"),
        (["Why?", "--task", "GSM8K"], "unknown task 'GSM8K'; did you mean 'gsm8k'?"),
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
        (["Why?", "--compare", "prompt_lookup"], "name two strategies or more"),
        (["Why?", "--compare", "prompt_lookup,prompt_lookup"], "name two strategies or more"),
        (["Why?", "--compare", BOTH, "--strategy", "prompt_lookup"], "exclude each other"),
        (["Why?", "--concurrency", "2"], "--concurrency needs --output"),
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
    assert "taken: cannot be written (it is not a folder). Name another folder with --output." in fail(
        *world.arguments("--output", "taken")
    )


def test_an_unexpected_exception_keeps_its_traceback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("our own bug")

    monkeypatch.setattr("reason_spec.evaluation.sources.load_problems", broken)
    result = invoke(*world.arguments())
    assert isinstance(result.exception, RuntimeError)
    assert not isinstance(result.exception, ReasonSpecError)


# Settings, help, completion ------------------------------------------------------------------


def test_settings_prints_what_would_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASON_SPEC_STRATEGY__DEPTH", "3")
    printed = succeed("settings", "--set", "strategy.width=2").stdout
    resolved = Settings.model_validate(yaml.safe_load(printed))
    assert (resolved.strategy.depth, resolved.strategy.width) == (3, 2)
    assert f"# hash: {resolved.hash}" in printed


def test_the_documented_settings_are_the_settings() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text()
    assert succeed("settings", "--markdown").stdout in documented


def test_doctor_and_version_are_there() -> None:
    assert succeed("--version").stdout.strip() == __version__
    assert "doctor" in succeed("--help").stdout


def test_help_shows_the_defaults_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = succeed("solve", "--help").stdout
    defaults = Settings()
    assert f"Most steps that the draft runs ahead. Default: {defaults.strategy.depth}." in text
    assert f"Default: {defaults.verifier.name}" in text
    assert f"Default: {defaults.sampling.max_tokens}." in text


@pytest.mark.parametrize("kind", ["strategy", "verifier", "router", "task"])
def test_help_lists_every_name_there_is(kind: NameKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert f"{', '.join(names_of(kind))}. Default: " in succeed("solve", "--help").stdout


@pytest.mark.parametrize(
    ("complete", "typed", "expected"),
    [
        (complete_name("strategy"), "look", ["lookahead"]),
        (complete_name("verifier"), "se", ["semantic"]),
        (complete_name("task"), "gsm", ["gsm8k"]),
        (complete_strategies, "autoregressive,look", ["autoregressive,lookahead"]),
        (complete_verifiers, "likelihood+sem", ["likelihood+semantic"]),
        (complete_strategies, "lookahead,xy", []),
        (complete_assignment, "strategy.de", ["strategy.depth="]),
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


def test_a_strategy_that_is_named_twice_is_compared_once() -> None:
    assert compared_strategies("lookahead, scot,lookahead") == ("lookahead", "scot")
    with pytest.raises(SettingsError, match="name two strategies"):
        compared_strategies("lookahead,lookahead")
