"""Verifiers that ask a model, on the embedded models: what they read is what the models say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from reason_spec.accelerator.cores import available_cores
from reason_spec.engines.base import Engine
from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import Score
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.engines.worker.messages import SubmitScore
from reason_spec.errors import SettingsError
from reason_spec.pair import embedded_path
from reason_spec.pair import wording as words
from reason_spec.pair.decoding import LoadedModel, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR, Example, problems
from reason_spec.pair.tokenizer import chat_prompt, next_question
from reason_spec.settings import EngineSettings, VerifierSettings
from reason_spec.types import Prefix, Sampling, Step, Usage
from reason_spec.verifiers.asking import JudgeVerifier, Questions, UtilityVerifier
from reason_spec.verifiers.base import Models, VerificationContext, create_verifier
from reason_spec.verifiers.likelihood import LikelihoodVerifier

pytestmark = pytest.mark.asyncio(loop_scope="module")
TRAINED = Questions(words.SCORE_QUESTION, "", words.JUDGE_QUESTION, "")
PROBLEM = next(problem for problem in problems("test", 5) if problem.operations == 4)
ONE_CORE = (min(available_cores()),)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge() -> AsyncIterator[Engine]:
    engine = create_engine("judge", EngineSettings(dtype="float32", cores=ONE_CORE))
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Engine]:
    engine = create_engine("target", EngineSettings(dtype="float32", cores=ONE_CORE))
    await engine.start()
    yield engine
    await engine.close()


def drafted(text: str, engine: Engine) -> Step:
    return Step(text, engine.tokenizer.encode(text), "draft", "boundary", engine.tokenizer.tokenizer_id)


def context(problem: Example, num_steps: int, engine: Engine) -> VerificationContext:
    before = "".join(step + STEP_SEPARATOR for step in problem.steps[:num_steps])
    asked = engine.tokenizer.encode_chat([{"role": "user", "content": problem.question}])
    return VerificationContext(
        problem.question, before, Prefix(asked).extend(engine.tokenizer.encode(before))
    )


def wrong(step: str) -> str:
    """The step with another last digit in its result."""
    place = max(index for index, letter in enumerate(step) if letter.isdigit())
    return step[:place] + str((int(step[place]) + 1) % 10) + step[place + 1 :]


@torch.inference_mode()
def chances(loaded: LoadedModel, prompt: str, answers: Sequence[str]) -> torch.Tensor:
    """Return the chance of each of the answers, single tokens, among them: [answers]."""
    encoded = loaded.tokenizer(prompt, return_tensors="pt")
    logits: torch.Tensor = loaded.model(**encoded).logits[0, -1]
    return logits[loaded.tokenizer.convert_tokens_to_ids(list(answers))].softmax(-1)


async def test_a_score_is_the_judges_expected_digit(judge: Engine) -> None:
    verifier = UtilityVerifier(judge, 0.5, 60, questions=TRAINED)
    loaded = load_pair_model(embedded_path("judge"))
    for index, own in enumerate(PROBLEM.steps[:-1]):
        for text in (own, wrong(own)):
            step = text + STEP_SEPARATOR
            known = context(PROBLEM, index, judge)
            verdict = await verifier.verify(known, drafted(step, judge))
            asked = chat_prompt(PROBLEM.question) + known.prefix_text + step
            digits = chances(loaded, asked + next_question(words.SCORE_QUESTION), "0123456789")
            expected = float(digits @ torch.arange(10.0))
            assert verdict.score == pytest.approx(expected / 9, abs=1e-3)
            assert verdict.accepted == (expected / 9 >= 0.5)


async def test_the_end_of_the_text_does_not_change_a_score(judge: Engine) -> None:
    verifier = UtilityVerifier(judge, 0.5, 60, questions=TRAINED)
    known, step = context(PROBLEM, len(PROBLEM.steps) - 1, judge), drafted(PROBLEM.steps[-1], judge)
    ended = replace(step, tokens=(*step.tokens, min(judge.tokenizer.eos_ids)), finish="eos")
    scores = [(await verifier.verify(known, one)).score for one in (step, ended)]
    assert scores[0] is not None
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)


async def test_a_greedy_score_is_the_judges_most_likely_digit(judge: Engine) -> None:
    verifiers = [
        UtilityVerifier(judge, 0.5, 60, questions=TRAINED, greedy=greedy) for greedy in (False, True)
    ]
    step = drafted(wrong(PROBLEM.steps[0]) + STEP_SEPARATOR, judge)
    expected, greedy = [await verifier.verify(context(PROBLEM, 0, judge), step) for verifier in verifiers]
    assert greedy.score is not None
    assert greedy.reason == expected.reason
    assert f"most likely {round(9 * greedy.score)}" in greedy.reason
    assert greedy.score * 9 == pytest.approx(round(greedy.score * 9))
    settings = VerifierSettings(utility_score="greedy", deadline=60)
    named = create_verifier("utility", settings, Models(target=judge, questions=TRAINED))
    assert (await named.verify(context(PROBLEM, 0, judge), step)).score == greedy.score


async def test_a_judgement_is_the_judges_chance_of_aligned(judge: Engine) -> None:
    verifier = JudgeVerifier(judge, 0.5, 60, questions=TRAINED)
    loaded = load_pair_model(embedded_path("judge"))
    for own in PROBLEM.steps[:-1]:
        other = wrong(own)
        verdict = await verifier.verify(
            VerificationContext(),
            drafted(other + STEP_SEPARATOR, judge),
            drafted(own + STEP_SEPARATOR, judge),
        )
        asked = chat_prompt(words.JUDGE_QUESTION.format(first=other, second=own))
        chance = float(chances(loaded, asked, (words.ALIGNED, words.UNALIGNED))[0])
        assert verdict.score == pytest.approx(chance, abs=1e-3)
        assert verdict.decision == ("accept" if chance >= 0.5 else "unknown")


async def test_a_model_that_answers_something_else_gives_no_verdict(target: Engine) -> None:
    """Asked for the solution of a problem it begins with a word."""
    asked = Questions(PROBLEM.question, "", PROBLEM.question, "")
    step = drafted(PROBLEM.steps[0] + STEP_SEPARATOR, target)
    utility = await UtilityVerifier(target, 0.1, 60, questions=asked).verify(
        context(PROBLEM, 0, target), step
    )
    other = drafted(PROBLEM.steps[1] + STEP_SEPARATOR, target)
    judged = await JudgeVerifier(target, 0.1, 60, questions=asked).verify(VerificationContext(), step, other)
    for verdict in (utility, judged):
        assert (verdict.decision, verdict.score) == ("unknown", None)
        assert "chance of" in verdict.reason


async def test_a_judge_is_told_to_refuse_what_is_too_hard_to_tell() -> None:
    """This one never can tell, and does what it is told for that."""

    def undecided(text: str, sampling: Sampling) -> str:
        return "unaligned" if "too hard to tell" in text else "aligned"

    engine = ScriptedEngine("judge", undecided)
    await engine.start()
    steps = [
        Step(text, engine.tokenizer.encode(text), "draft", "boundary") for text in ("It is six.", "So six.")
    ]
    verdict = await JudgeVerifier(engine, 0.5, 60).verify(VerificationContext(), *steps)
    await engine.close()
    assert verdict.score is not None
    assert not verdict.accepted


async def test_the_likelihood_is_that_of_the_model(target: Engine) -> None:
    loaded: LoadedModel = load_pair_model(embedded_path("target"))
    verifier = LikelihoodVerifier(target, 0.9, 60)
    for text in (PROBLEM.steps[1], wrong(PROBLEM.steps[1])):
        known, step = context(PROBLEM, 1, target), drafted(text + STEP_SEPARATOR, target)
        verdict = await verifier.verify(known, step)
        assert known.target_prefix is not None
        before = known.target_prefix.to_tuple()
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([before + step.tokens])).logits[0, len(before) - 1 : -1]
        rows = logits.float().log_softmax(-1)
        logprobs = rows[torch.arange(len(step.tokens)), torch.tensor(step.tokens)]
        of_digits = [
            float(logprob)
            for logprob, token in zip(logprobs, step.tokens, strict=True)
            if target.tokenizer.decode((token,)).isdigit()
        ]
        assert verdict.score == pytest.approx(min(exp(logprobs.mean()), exp(min(of_digits))), abs=1e-3)
        assert verdict.work.num_scored_tokens == len(step.tokens)
        if not verdict.accepted:
            assert verdict.num_valid_tokens is not None
            assert verdict.replacement == int(rows[verdict.num_valid_tokens].argmax())
            assert verdict.replacement != step.tokens[verdict.num_valid_tokens]


async def test_a_token_that_the_target_prefers_is_not_corrected_however_unsure_it_is(
    target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = drafted("3 + 4" + STEP_SEPARATOR, target)
    sure, unsure = -0.01, log(0.3)
    last = len(step.tokens) - 1

    async def score(prefix: Prefix, tokens: tuple[int, ...]) -> Score:
        best = (*tokens[:last], tokens[last] + 1)
        return Score((unsure, *([sure] * (last - 1)), log(0.01)), best, Usage())

    monkeypatch.setattr(target, "score", score)
    verdict = await LikelihoodVerifier(target, 0.9, 60).verify(context(PROBLEM, 1, target), step)
    assert (verdict.num_valid_tokens, verdict.replacement) == (last, step.tokens[last] + 1)


async def test_scores_of_many_steps_are_asked_for_at_once(judge: Engine) -> None:
    verifier = UtilityVerifier(judge, 0.5, 60, questions=TRAINED)
    before = (await judge.stats()).num_passes
    steps = [drafted(step + STEP_SEPARATOR, judge) for step in PROBLEM.steps[:-1]]
    known = [context(PROBLEM, index, judge) for index in range(len(steps))]
    await asyncio.gather(*(verifier.verify(c, s) for c, s in zip(known, steps, strict=True)))
    assert (await judge.stats()).num_passes - before <= 2 * len(steps)


async def test_a_score_is_one_request_and_reads_one_prediction(
    judge: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    send = type(judge)._send  # type: ignore[attr-defined]

    def noted(self: Engine, message: object) -> None:
        asked.append(message)
        send(self, message)

    monkeypatch.setattr(type(judge), "_send", noted)
    verifier = UtilityVerifier(judge, 0.5, 60, questions=TRAINED)
    verdict = await verifier.verify(
        context(PROBLEM, 1, judge), drafted(PROBLEM.steps[1] + STEP_SEPARATOR, judge)
    )
    assert verdict.decision in ("accept", "reject")
    assert len([message for message in asked if isinstance(message, SubmitScore)]) == 1
    assert verdict.work.num_scored_tokens == 1
    assert verdict.work.num_passes <= 1


async def test_an_owned_model_starts_and_ends_with_its_verifier(tmp_path: Path) -> None:
    models = Models(
        make_judge=lambda: create_engine("judge", EngineSettings(cores=ONE_CORE)), questions=TRAINED
    )
    verifier = create_verifier("utility", VerifierSettings(deadline=60), models)
    await verifier.start()
    step = PROBLEM.steps[0] + STEP_SEPARATOR
    verdict = await verifier.verify(
        VerificationContext(PROBLEM.question), Step(step, (), "draft", "boundary")
    )
    assert verdict.decision in ("accept", "reject")
    await verifier.close()
    await verifier.close()
    await verifier.start()
    again = await verifier.verify(VerificationContext(PROBLEM.question), Step(step, (), "draft", "boundary"))
    assert again.score == pytest.approx(verdict.score)
    await verifier.close()


async def test_without_a_model_to_ask_the_remedy_is_named() -> None:
    for name in ("utility", "judge", "likelihood"):
        with pytest.raises(SettingsError, match=name):
            create_verifier(name)


@pytest.mark.parametrize(
    ("logprobs", "decision", "score"),
    [((-0.01, -0.02), "accept", exp(-0.02)), ((-0.01, -0.7), "unknown", exp(-0.7)), (None, "unknown", None)],
)
async def test_a_draft_is_as_confident_as_at_its_least_sure_token(
    logprobs: tuple[float, ...] | None, decision: str, score: float | None
) -> None:
    step = Step("Ana has 5.", (1, 2), "draft", "boundary", logprobs=logprobs)
    verdict = await create_verifier("confidence").verify(VerificationContext(), step)
    assert verdict.decision == decision
    assert verdict.score == (None if score is None else pytest.approx(score))
