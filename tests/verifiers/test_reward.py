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
from reason_spec.pair.reward import load_embedded_reward, load_reward_head
from reason_spec.pair.tokenizer import chat_prompt, load_tokenizer
from reason_spec.segment import Boundary
from reason_spec.settings import VerifierSettings
from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import Models, VerificationContext, create_verifier
from reason_spec.verifiers.reward import Reward, RewardVerifier, SoFar, StepToken
from reason_spec.verifiers.reward_models import load_classifier
from tests.pair.rewards import rewards
from tests.verifiers.reward_folders import (
    STEP_TOKEN,
    outcome_reward,
    process_reward,
    reward_at_last_step_token,
    save_process_reward_model,
    save_sequence_classifier,
    save_step_classifier,
)


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


def test_a_classifier_that_cannot_pad_is_read_at_the_end_of_each_text(tmp_path: Path) -> None:
    """The template ends with the end-of-text token: taken for padding it would be passed over."""
    folder = save_sequence_classifier(tmp_path, 1)
    texts = [SoFar("How many?", "It is 4."), SoFar("How many apples does Ana have?", "She has 3. " * 9)]
    expected = [outcome_reward(folder, *text) for text in texts]
    assert load_classifier(str(folder))(texts) == pytest.approx(expected, abs=1e-5)


def test_a_classifier_with_other_outputs_is_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, 5)
    with pytest.raises(SettingsError, match="5 outputs"):
        load_classifier(str(folder))
    with pytest.raises(SettingsError, match="nowhere"):
        load_classifier(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("padded", [True, False], ids=["a batch", "one by one"])
@pytest.mark.parametrize("num_labels", [1, 2])
def test_a_step_is_rated_where_its_token_stands_in_the_whole_conversation(
    tmp_path: Path, num_labels: int, padded: bool
) -> None:
    """By transformers' own forward over the chat template to its end, alone and among other lengths."""
    folder = save_step_classifier(tmp_path, num_labels, padded=padded)
    reward = load_classifier(str(folder), StepToken(STEP_TOKEN))
    texts = [SoFar("How many?", "First 4.\n\nThen 5.\n \n"), SoFar("How many pears?", "\n\nIt is 4. " * 9)]
    marked = [
        f"First 4.{STEP_TOKEN}Then 5.{STEP_TOKEN}",
        "".join(f"It is 4.{STEP_TOKEN}" for _ in range(9)),
    ]
    expected = [
        reward_at_last_step_token(folder, text.question, answer)
        for text, answer in zip(texts, marked, strict=True)
    ]
    assert reward(texts) == pytest.approx(expected, abs=1e-5)
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)


def test_steps_end_where_the_settings_say() -> None:
    answer = "One\n\ntwo;three\n"
    assert StepToken("<s>").mark(answer) == "One<s>two;three<s>"
    assert StepToken("<s>", Boundary(";")).mark(answer) == "One\n\ntwo;<s>three<s>"
    fenced = "Run\n\n```\na\n\nb\n```\n\nand see."
    assert StepToken("<s>").mark(fenced) == "Run<s>```\na\n\nb\n```<s>and see.<s>"


def test_code_of_a_model_runs_only_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Qwen2.5-Math-PRM comes: entered as a plain model, with a head of two layers."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    folder = save_process_reward_model(tmp_path / "model")
    with pytest.raises(SettingsError, match=r"reward_trust_remote_code"):
        load_classifier(str(folder), StepToken(STEP_TOKEN))
    text = SoFar("How many?", "First 4.\n\nThen 5.")
    (rated,) = load_classifier(str(folder), StepToken(STEP_TOKEN), trust_remote_code=True)([text])
    expected = process_reward(folder, "How many?", f"First 4.{STEP_TOKEN}Then 5.{STEP_TOKEN}")
    assert rated == pytest.approx(expected, abs=1e-5)
    with pytest.raises(SettingsError, match=r"rates every token; set verifier\.reward_step_token"):
        load_classifier(str(folder), trust_remote_code=True)


def test_a_token_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = save_step_classifier(tmp_path, 2)
    with pytest.raises(SettingsError, match=r"'<extra_00>' is no token"):
        load_classifier(str(folder), StepToken("<extra_00>"))


def test_a_model_without_the_head_is_refused_rather_than_given_a_random_one(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, 2)
    with pytest.raises(SettingsError, match=r"no weights for score\.bias"):
        load_classifier(str(folder), StepToken("<|im_end|>"))


def test_settings_choose_how_the_model_is_read(tmp_path: Path) -> None:
    folder = str(save_step_classifier(tmp_path, 1))
    verifier = create_verifier(
        "reward",
        VerifierSettings(reward_model=folder, reward_step_token=STEP_TOKEN, threshold=0, deadline=60),
        Models(boundary=Boundary("; ")),
    )
    assert isinstance(verifier, RewardVerifier)
    (verdict,) = verify(verifier, "then 5; ")
    expected = reward_at_last_step_token(Path(folder), "How many?", f"First this. then 5;{STEP_TOKEN}")
    assert verdict.score == pytest.approx(expected, abs=1e-5)
    with pytest.raises(SettingsError, match=r"set verifier\.reward_model or verifier\.reward_url"):
        create_verifier("reward", VerifierSettings(reward_step_token=STEP_TOKEN))


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
