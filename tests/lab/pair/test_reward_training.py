"""The reward head: what it reads, what it is told, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reason_spec.errors import DataError
from reason_spec.lab.pair.reward_training import (
    LabelledSteps,
    label_rollouts,
    main,
    save_reward_head,
    train_head,
)
from reason_spec.pair import embedded_path, reward_path
from reason_spec.pair.decoding import LoadedModel, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR, make_problem
from reason_spec.pair.reward import (
    RewardHead,
    RewardReader,
    hidden_where_steps_end,
    load_reward_head,
)
from reason_spec.pair.tokenizer import chat_prompt
from tests.pair.rewards import rewards
from tests.pair.tiny import save_tiny


@pytest.fixture
def target(tmp_path: Path) -> LoadedModel:
    torch.set_num_threads(1)
    return load_pair_model(save_tiny(tmp_path / "target", 0))


def test_a_state_is_read_at_each_token_that_ends_a_step(target: LoadedModel) -> None:
    texts = [chat_prompt(p.question) + p.solution for p in (make_problem("test", 0, i) for i in range(6))]
    together = hidden_where_steps_end(target, texts, rows=4)
    assert [len(states) for states in together] == [text.count(STEP_SEPARATOR) for text in texts]
    for text, states in zip(texts, together, strict=True):
        # What comes behind a step cannot be seen there, and neither can other rows.
        first = text[: text.index(STEP_SEPARATOR) + len(STEP_SEPARATOR)]
        torch.testing.assert_close(hidden_where_steps_end(target, [first])[0][0], states[0])


def test_everything_behind_the_first_wrong_step_is_wrong(target: LoadedModel) -> None:
    problem = make_problem("test", 0, 1, operations=(4, 4))
    steps = list(problem.steps)
    right = label_rollouts(target, [problem], [problem.solution])
    assert right.right.tolist() == [1, 1, 1, 1]
    steps[1] = "What a pity."
    wrong = label_rollouts(target, [problem], [STEP_SEPARATOR.join(steps)])
    assert wrong.right.tolist() == [1, 0, 0, 0]
    assert wrong.hidden.shape == (4, 16)


def test_steps_cut_off_by_the_limit_and_endless_ones_are_left_out_or_wrong(target: LoadedModel) -> None:
    problem = make_problem("test", 0, 1, operations=(3, 3))
    cut = label_rollouts(target, [problem], [problem.steps[0] + STEP_SEPARATOR + problem.steps[1][:9]])
    assert cut.right.tolist() == [1, 0]
    longer = STEP_SEPARATOR.join([*problem.steps[:-1], *["More."] * 4])
    assert len(label_rollouts(target, [problem], [longer]).right) == 3


def _separable(n: int) -> LabelledSteps:
    hidden = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    return LabelledSteps(hidden, (hidden[:, 0] * hidden[:, 1] > 0).float())


def test_a_head_learns_what_no_line_can_separate() -> None:
    head = train_head(_separable(2000))
    with torch.inference_mode():
        right = (head(_separable(2000).hidden) > 0).float() == _separable(2000).right
    # A line gets half of them right; how far the head gets beyond it differs between machines.
    assert right.float().mean() > 0.8


def test_a_saved_head_answers_as_before_and_for_its_own_target_alone(
    target: LoadedModel, tmp_path: Path
) -> None:
    head = RewardHead(16)
    save_reward_head(head, target.model, 0.75, tmp_path / "reward")
    loaded = load_reward_head(tmp_path / "reward", target.model)
    texts = [chat_prompt("Ana has 3 cards.") + "Ana has 3 cards.\n\n"]
    assert rewards(target, loaded, texts) == pytest.approx(rewards(target, head, texts))
    other = load_pair_model(save_tiny(tmp_path / "other", 1))
    with pytest.raises(DataError, match="another target"):
        load_reward_head(tmp_path / "reward", other.model)


@pytest.mark.parametrize("max_questions", [1, 8])
def test_what_is_kept_of_earlier_answers_changes_no_reward(target: LoadedModel, max_questions: int) -> None:
    head = RewardHead(16)
    reader = RewardReader(target, head, max_questions)
    chosen = [make_problem("test", 0, i, operations=(4, 4)) for i in range(2)]
    for told in ("first", "grown", "replaced", "shortened", "the same", "grown again"):
        texts = []
        for problem in chosen:
            first, second, third, *_ = (step + STEP_SEPARATOR for step in problem.steps)
            texts.append(
                {"first": first, "replaced": first + third, "grown again": first + second + third}.get(
                    told, first if told in ("shortened", "the same") else first + second
                )
            )
        rated = reader([(problem.question, text) for problem, text in zip(chosen, texts, strict=True)])
        whole = [chat_prompt(problem.question) + text for problem, text in zip(chosen, texts, strict=True)]
        assert rated == pytest.approx(rewards(target, head, whole), abs=1e-5), told


def test_a_folder_without_a_head_is_named(target: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no reward head"):
        load_reward_head(tmp_path, target.model)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="no reward head"):
        load_reward_head(tmp_path, target.model)


def test_the_command_trains_on_rollouts_and_writes_a_head_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("reason_spec.pair.decoding.MAX_SOLUTION_TOKENS", 24)
    folders = [save_tiny(tmp_path / name, seed) for seed, name in enumerate("td")]
    main(
        [
            "--target",
            str(folders[0]),
            "--draft",
            str(folders[1]),
            "--n",
            "4",
            "--out",
            str(tmp_path / "reward"),
        ]
    )
    assert "held-out AUC" in capsys.readouterr().out
    load_reward_head(tmp_path / "reward", load_pair_model(folders[0]).model)


def test_the_embedded_head_belongs_to_the_embedded_target() -> None:
    torch.set_num_threads(1)
    loaded = load_pair_model(embedded_path("target"))
    problem = make_problem("test", 21, 0, operations=(1, 2))
    prefix = chat_prompt(problem.question) + problem.steps[0] + STEP_SEPARATOR
    (chance,) = rewards(loaded, load_reward_head(reward_path(), loaded.model), [prefix])
    assert 0.0 < chance < 1.0
