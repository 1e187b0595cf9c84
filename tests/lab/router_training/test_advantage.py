"""What a drafted step is worth beside the target's own: by graded continuations, or by a reward model."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import DataError
from reason_spec.lab.router_training.advantage import LabelledStep, Labeller, LabelOptions
from reason_spec.settings import load_settings
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem
from reason_spec.verifiers.reward import RewardVerifier, SoFar

QUESTION = "How many are 3 and 4 and 5?"
RIGHT = "3 + 4 = 7\n\n7 + 5 = 12\n\nThe answer is 12."
WRONG_STEP = "3 + 4 = 8\n\n"
WRONG = "3 + 4 = 8\n\n8 + 5 = 13\n\nThe answer is 13."
PROBLEM = Problem("p", QUESTION, "12")


def target_script(text: str, sampling: object) -> str:
    """Goes on from what is there, right or wrong, as a model does."""
    written = text[text.index("\n") + 1 :]
    *complete, begun = written.split("\n\n")
    whole = RIGHT if not complete or "= 7" in complete[0] else WRONG
    rest = "\n\n".join(whole.split("\n\n")[len(complete) :])
    return rest.removeprefix(begun)


async def label(draft_answer: str, *, reference: str | None = "12", **options: object) -> list[LabelledStep]:
    target = ScriptedEngine("target", target_script)
    draft = ScriptedEngine("draft", WrittenAnswers({QUESTION: (draft_answer,)}, otherwise=""))
    settings = load_settings(flags={"target.kind": "scripted", "draft.kind": "scripted"})
    rated = options.pop("rate", None)
    reward = RewardVerifier(lambda: rated) if rated else None  # type: ignore[arg-type,return-value]
    async with Accelerator(settings, target, draft, None, ("speculative",)) as accelerator:
        with Grader(deadline_seconds=60) as grader:
            labeller = Labeller(accelerator, LabelOptions(**options), grader, reward)  # type: ignore[arg-type]
            try:
                return await labeller.label(replace(PROBLEM, answer=reference))
            finally:
                assert (await target.stats()).num_running == 0
                if reward is not None:
                    await reward.close()


async def test_equal_steps_have_no_advantage_and_cost_nothing() -> None:
    steps = await label(RIGHT)
    assert [step.drafted for step in steps] == ["3 + 4 = 7\n\n", "7 + 5 = 12\n\n", "The answer is 12."]
    assert all((step.value_drafted, step.value_own, step.advantage) == (None, None, 0) for step in steps)
    assert [step.step_index for step in steps] == [0, 1, 2]
    assert [step.ends_text for step in steps] == [False, False, True]


async def test_a_step_that_leads_astray_is_worth_less_by_what_it_leads_to() -> None:
    steps = await label(WRONG, rollouts=3)
    first = steps[0]
    assert (first.value_drafted, first.value_own, first.advantage) == (0, 1, 1)
    assert (first.drafted, first.own) == (WRONG_STEP, "3 + 4 = 7\n\n")
    # The better step is kept: what follows are places behind a right one.
    assert steps[1].own == "7 + 5 = 12\n\n"


async def test_a_reworded_step_is_worth_the_same_and_the_drafts_is_kept() -> None:
    steps = await label("3 + 4 = 7 in all\n\n")
    assert (steps[0].value_drafted, steps[0].value_own, steps[0].advantage) == (1, 1, 0)


async def test_a_last_step_is_graded_as_it_is() -> None:
    steps = await label("3 + 4 = 7\n\n7 + 5 = 12\n\nThe answer is 120.")
    assert (steps[-1].value_drafted, steps[-1].value_own) == (0, 1)


async def test_a_reward_model_labels_without_an_answer() -> None:
    def rate(texts: list[SoFar]) -> list[float]:
        return [0.25 if "= 8" in text.answer else 0.75 for text in texts]

    steps = await label(WRONG_STEP, reference=None, label="reward", rate=rate)
    assert (steps[0].value_drafted, steps[0].value_own, steps[0].reward) == (0.25, 0.75, 0.25)
    assert steps[0].advantage == 0.5


async def test_a_step_that_takes_all_tokens_that_are_left_is_worth_nothing() -> None:
    def rate(texts: list[SoFar]) -> list[float]:
        return [0.5 for _ in texts]

    endless = "3 + 4 " * 2000
    steps = await label(endless, label="reward", rate=rate)
    assert (steps[0].value_drafted, steps[0].reward) == (0, None)
    assert steps[0].value_own == 0.5


async def test_without_an_answer_rollouts_are_refused() -> None:
    with pytest.raises(DataError, match="'p' has no answer"):
        await label(RIGHT, reference=None)


async def test_labels_survive_being_written_down() -> None:
    for step in await label(WRONG_STEP):
        assert LabelledStep.from_json(asdict(step)) == step
        assert step.features.num_tokens == len(step.logprobs)
    damaged = asdict(step)
    for change in ({"drafted_by": "x"}, {"logprobs": [0.0] * 99}, {"value_own": "much"}):
        with pytest.raises(ValueError, match=r"labelled step|logprobs"):
            LabelledStep.from_json(damaged | change)
