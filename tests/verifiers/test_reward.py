"""Reward models behind the verifier: one's own, the embedded head, any sequence classifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from reason_spec.errors import SettingsError
from reason_spec.pair import embedded_path, reward_path
from reason_spec.pair.decoding import load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR, problems
from reason_spec.pair.reward import load_embedded_reward, load_reward_head, rewards
from reason_spec.pair.tokenizer import chat_prompt, load_tokenizer
from reason_spec.settings import VerifierSettings
from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import Models, VerificationContext, create_verifier
from reason_spec.verifiers.reward import Reward, RewardVerifier, SoFar, load_classifier


def verify(verifier: RewardVerifier, *texts: str) -> list[Verdict]:
    async def run() -> list[Verdict]:
        steps = [Step(text, (1, 2), "draft", "boundary") for text in texts]
        context = VerificationContext("How many?", "First this. ")
        await verifier.start()
        try:
            return list(await asyncio.gather(*(verifier.verify(context, step) for step in steps)))
        finally:
            await verifier.close()

    return asyncio.run(run())


def own(reward: Reward, threshold: float | None = None) -> RewardVerifier:
    return RewardVerifier(lambda: reward, threshold, 30)


def test_what_waits_at_once_is_rated_at_once_with_all_that_stands_before_it() -> None:
    calls: list[list[SoFar]] = []

    def reward(texts: Sequence[SoFar]) -> list[float]:
        calls.append(list(texts))
        return [0.9 if "good" in text.answer else 0.2 for text in texts]

    verdicts = verify(own(reward), "a good step", "a bad step", "another good one")
    assert [verdict.decision for verdict in verdicts] == ["accept", "reject", "accept"]
    assert [verdict.score for verdict in verdicts] == [0.9, 0.2, 0.9]
    assert len(calls) == 1
    assert calls[0][0] == SoFar("How many?", "First this. a good step")


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (lambda texts: [1.5 for _ in texts], "between 0 and 1"),
        (lambda texts: [float("nan") for _ in texts], "between 0 and 1"),
        (lambda texts: [], "0 rewards for 1 texts"),
        (lambda texts: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["above one", "no number", "too few", "breaks"],
)
def test_a_reward_model_that_fails_is_unknown_with_its_reason(
    reward: Callable[[Sequence[SoFar]], list[float]], said: str
) -> None:
    (verdict,) = verify(own(reward), "a step")
    assert verdict.decision == "unknown"
    assert said in verdict.reason


def test_the_embedded_head_rates_solutions_as_it_was_measured() -> None:
    problem = next(problem for problem in problems("test", 8) if problem.operations == 3)
    answers = [
        "".join(step + STEP_SEPARATOR for step in problem.steps[:1]),
        "".join(step + STEP_SEPARATOR for step in problem.steps[:-1]) + problem.steps[-1],
    ]
    rated = load_embedded_reward()([(problem.question, answer) for answer in answers])
    target = load_pair_model(embedded_path("target"))
    head = load_reward_head(reward_path(), target.model)
    ended = [answer.removesuffix(STEP_SEPARATOR) + STEP_SEPARATOR for answer in answers]
    assert rated == pytest.approx(rewards(target, head, [chat_prompt(problem.question) + a for a in ended]))
    assert all(0 < reward < 1 for reward in rated)


@pytest.mark.parametrize("num_labels", [1, 2])
def test_a_sequence_classifier_is_a_reward_model(tmp_path: Path, num_labels: int) -> None:
    """Alone and in a batch of other lengths, which pads."""
    folder = save_classifier(tmp_path, num_labels)
    reward = load_classifier(str(folder))
    texts = [SoFar("How many?", "It is 4."), SoFar("How many apples does Ana have?", "She has 3. " * 9)]
    together = reward(texts)
    assert together == pytest.approx([reward([text])[0] for text in texts], abs=1e-4)
    assert all(0 < rated < 1 for rated in together)
    assert together[0] != pytest.approx(together[1], abs=1e-4)


def test_a_classifier_with_other_outputs_is_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, 5)
    with pytest.raises(SettingsError, match="5 outputs"):
        load_classifier(str(folder))
    with pytest.raises(SettingsError, match="nowhere"):
        load_classifier(str(tmp_path / "nowhere"))


def test_without_a_reward_model_the_remedy_is_named() -> None:
    with pytest.raises(SettingsError, match=r"verifier\.reward_model"):
        create_verifier("reward")
    with pytest.raises(SettingsError, match="between 0 and 1"):
        create_verifier(
            "reward", VerifierSettings(thresholds={"reward": 3}), Models(load_reward=lambda: lambda texts: [])
        )


def save_classifier(folder: Path, num_labels: int) -> Path:
    torch.manual_seed(1)
    tokenizer = load_tokenizer(embedded_path("target"))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_labels=num_labels,
        initializer_range=0.5,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
