"""The suffix cache on the real pair: the same tokens, fewer passes, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import pytest

from reason_spec.accelerator import Solution
from reason_spec.accelerator.requests import RequestOptions
from reason_spec.pair import SAMPLE_PATH
from reason_spec.settings import Settings, load_settings
from reason_spec.sync import SyncAccelerator

QUESTIONS = [json.loads(line)["question"] for line in SAMPLE_PATH.read_text().splitlines()][:3]


def settings_for(folder: Path, **flags: object) -> Settings:
    names = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(
        flags={
            "verifier.name": "exact",
            "strategy.planner": False,
            "load_control.use": "off",
            "suffix.use": "both",
            "suffix.path": str(folder),
            **names,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suffix")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[SyncAccelerator]:
    strategies = ("autoregressive", "prompt_lookup", "speculative", "lookahead")
    with SyncAccelerator.from_settings(settings_for(folder), strategies=strategies) as accelerator:
        yield accelerator


def tokens_of(solution: Solution) -> list[int]:
    return [token for step in solution.steps for token in step.tokens]


def passes_of(solution: Solution) -> int:
    return solution.recorder.target_usage.num_passes


def draft_passes_of(solution: Solution) -> int:
    return solution.recorder.draft_usage.num_passes


def under(
    running: SyncAccelerator, settings: Settings, question: str, **options: Unpack[RequestOptions]
) -> Solution:
    generator = replace(running.accelerator.generator, settings=settings)
    running.run(generator.prepare())
    return running.run(generator.answer(generator.request(question, **options)))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("strategy", ["prompt_lookup", "speculative", "lookahead"])
def test_warm_answers_are_the_targets_own_in_fewer_passes(
    running: SyncAccelerator, folder: Path, strategy: str, temperature: float
) -> None:
    settings = settings_for(folder, sampling__temperature=temperature, sampling__max_tokens=160)
    scope = f"{strategy} {temperature}"
    question = QUESTIONS[0]
    changed = question.replace("2", "3")
    alone = under(running, settings, question, strategy="autoregressive", scope="alone")
    expected = under(running, settings, changed, strategy="autoregressive", scope="alone")
    cold = under(running, settings, question, strategy=strategy, scope=scope)
    warm = under(running, settings, question, strategy=strategy, scope=scope)
    other = under(running, settings, changed, strategy=strategy, scope=scope)
    assert tokens_of(cold) == tokens_of(warm) == tokens_of(alone)
    assert tokens_of(other) == tokens_of(expected)
    # How many passes the target takes under lookahead depends on when the drafted steps arrive.
    if strategy != "lookahead":
        assert max(passes_of(warm), passes_of(cold)) <= passes_of(alone)
    counted = draft_passes_of if strategy == "lookahead" else passes_of
    assert counted(warm) < counted(cold)
    assert (len(warm.recorder.cache_verdicts) > 0) == (strategy == "lookahead")


def test_what_one_tenant_was_answered_is_proposed_to_no_other(running: SyncAccelerator, folder: Path) -> None:
    settings = settings_for(folder, sampling__max_tokens=160)
    options: dict[str, Any] = {"strategy": "prompt_lookup", "scope": "tenants"}
    cold = under(running, settings, QUESTIONS[0], tenant="ana", **options)
    other = under(running, settings, QUESTIONS[0], tenant="ben", **options)
    warm = under(running, settings, QUESTIONS[0], tenant="ana", **options)
    assert passes_of(warm) < passes_of(cold) / 2
    assert passes_of(warm) < passes_of(other) / 2
    assert tokens_of(other) == tokens_of(cold) == tokens_of(warm)


@pytest.mark.slow
def test_what_was_learnt_is_there_after_a_restart(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, sampling__max_tokens=160)
    solutions = []
    for _ in range(2):
        with SyncAccelerator.from_settings(settings) as accelerator:
            solutions.append(accelerator.answer(QUESTIONS[1]))
            # Of what is compared nothing is kept.
            accelerator.answer(QUESTIONS[2], scope="compared")
    cold, warm = solutions
    assert tokens_of(cold) == tokens_of(warm)
    # The target's passes depend on when the drafted steps arrive; what is known is not drafted at all.
    assert draft_passes_of(warm) < draft_passes_of(cold) / 2
    assert any(step.origin == "cache" for step in warm.steps)
    assert not any(step.origin == "cache" for step in cold.steps)
    with SyncAccelerator.from_settings(settings) as accelerator:
        third = accelerator.answer(QUESTIONS[2])
    assert third.recorder.cache_verdicts == []


def test_a_place_that_is_no_folder_costs_a_warning_and_not_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    settings = settings_for(place, strategy__name="prompt_lookup", sampling__max_tokens=20)
    with SyncAccelerator.from_settings(settings) as accelerator:
        solution = accelerator.answer(QUESTIONS[0])
    assert solution.text
    assert "is not a folder" in caplog.text


@pytest.mark.slow
def test_the_draft_model_writes_what_is_known_in_fewer_passes_also_after_a_restart(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, strategy__name="speculative", sampling__max_tokens=160)
    question = QUESTIONS[1]
    changed = question.replace("1", "2").replace("4", "3")
    rates, answers = [], []
    for number, asked in enumerate((question, changed)):
        with SyncAccelerator.from_settings(settings) as accelerator:
            for tenant in (f"nobody {number}", "somebody"):
                solution = accelerator.answer(asked, tenant=tenant)
                usage = solution.recorder.draft_usage
                rates.append(usage.num_passes / usage.num_generated_tokens)
                answers.append(tokens_of(solution))
    *_, cold, restarted = rates
    assert restarted < 0.8 * cold
    assert answers[0] == answers[1]
    assert answers[2] == answers[3] != answers[0]
