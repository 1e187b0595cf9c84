"""A refused draft token is right if the target still reaches its own answer after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import ResumeError
from reason_spec.lab.verifier_training.token_labels import LabelledDrafts, TokenLabelFolder, TokenLabeller
from reason_spec.settings import load_settings
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

QUESTION = "How many are 3 and 4 and 5?"
RIGHT = "3 + 4 = 7\n\n7 + 5 = 12\n\nThe answer is 12."


def target_script(text: str, sampling: object) -> str:
    """Goes on from what is there; a wrong sum leads to a wrong answer, another word does not."""
    written = text[text.index("\n") + 1 :]
    whole = RIGHT if "8" not in written else RIGHT.replace("12", "13").replace("7", "8")
    return whole[len(written) :]


async def label(
    draft_answer: str, answer: str | None = "12", most: int = 8, own: str | None = None
) -> LabelledDrafts:
    script = target_script if own is None else WrittenAnswers({QUESTION: (own,)}, otherwise="")
    target = ScriptedEngine("target", script)
    draft = ScriptedEngine("draft", WrittenAnswers({QUESTION: (draft_answer,)}, otherwise=""))
    settings = load_settings(flags={"target.kind": "scripted", "draft.kind": "scripted"})
    async with Accelerator(settings, target, draft, None, ("speculative",)) as accelerator:
        with Grader(deadline_seconds=60) as grader:
            labeller = TokenLabeller(accelerator, grader, most, seed=0)
            found = await labeller.label(Problem("p", QUESTION, answer))
        assert (await target.stats()).num_running == 0
    return found


def words(found: LabelledDrafts) -> list[tuple[str, str, bool]]:
    tokenizer = ScriptedTokenizer()
    return [
        (tokenizer.decode([found.answer[place]]), tokenizer.decode([found.drafted[place]]), right)
        for place, right in found.labels
    ]


async def test_a_token_is_labelled_by_the_answer_that_it_leads_to() -> None:
    found = await label(RIGHT.replace("= 7", "= 8").replace("The", "So"))
    assert found.labels
    by_token = {drafted.strip(): right for _, drafted, right in words(found)}
    assert by_token["8"] is False
    assert by_token["So"] is True


async def test_where_draft_and_target_agree_nothing_is_labelled() -> None:
    found = await label(RIGHT)
    assert found.labels == ()
    assert found.drafted == found.answer


@pytest.mark.parametrize("answer", ["12", "99", None])
async def test_labels_follow_the_targets_own_answer_right_or_wrong(answer: str | None) -> None:
    found = await label(RIGHT.replace("= 7", "= 8"), answer)
    assert [right for _, drafted, right in words(found) if drafted.strip() == "8"] == [False]


async def test_an_answer_without_a_number_is_left_out() -> None:
    found = await label(RIGHT.replace("= 7", "= 8"), own="I do not know.")
    assert found.answer
    assert (found.drafted, found.labels) == ((), ())


async def test_no_more_tokens_are_labelled_than_wanted() -> None:
    assert len((await label("a b c d e f g h i j k l m", most=3)).labels) == 3


def test_labels_go_on_where_they_were_and_only_for_the_same_models(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    drafts = LabelledDrafts((1, 2), (3, 4), (3, 5), ((1, True),))
    about, other = {"target": "a", "seed": 0}, {"target": "b", "seed": 0}
    with TokenLabelFolder(tmp_path, about) as labels:
        labels.append("p1", drafts)
        with pytest.raises(ResumeError, match="in use"):
            TokenLabelFolder(tmp_path, about)
    with path.open("a") as file:
        file.write('{"problem": "p2", "dra')
    with TokenLabelFolder(tmp_path, about) as labels:
        assert labels.labelled == {"p1": drafts}
        labels.append("p2", drafts)
    with pytest.raises(ResumeError, match="labels with other target"):
        TokenLabelFolder(tmp_path, other)
    with TokenLabelFolder(tmp_path, other, fresh=True) as labels:
        assert labels.labelled == {}
    with TokenLabelFolder(tmp_path, about) as labels:
        assert list(labels.labelled) == ["p1", "p2"], "no label of the other target replaced them"
    path.write_text('{"problem": "p1", "drafts": {}}\n')
    with pytest.raises(ResumeError, match="line 1"):
        TokenLabelFolder(tmp_path, about)
