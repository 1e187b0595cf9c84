from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.factory import create_engine
from reason_spec.engines.script import WrittenAnswers, load_script
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings
from reason_spec.types import NoiseKey, Sampling

STORY = "One bird sang.\n\nTwo birds flew off.\n\nNone is left."
PROMPT = "user: How many birds?\n"


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "script.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "content",
    [
        {"How many birds?": STORY},
        {"answers": {"How many birds?": STORY}},
        {"answers": [{"match": "birds", "answer": STORY}, {"match": "many", "answer": "No."}]},
    ],
)
def test_every_form_of_a_script_gives_the_answer(tmp_path: Path, content: object) -> None:
    assert load_script(write(tmp_path, content)).script(PROMPT, Sampling()) == STORY


@given(st.integers(0, len(STORY)))
def test_a_begun_answer_goes_on_where_it_stands(length: int) -> None:
    script = WrittenAnswers({"How many birds?": (STORY,)})
    assert script(PROMPT + STORY[:length], Sampling()) == STORY[length:]


def test_after_a_reworded_step_the_next_one_follows() -> None:
    script = WrittenAnswers({"How many birds?": (STORY,)})
    assert script(PROMPT + "A bird sang.\n\n", Sampling()) == STORY.partition("\n\n")[2]


def test_samples_take_the_answers_in_turn(tmp_path: Path) -> None:
    script = load_script(
        write(tmp_path, {"answers": [{"match": "birds", "answer": ["Two.", "Three."]}]})
    ).script
    answers = [script(PROMPT, Sampling(1.0, noise=NoiseKey(0, 0, sample))) for sample in range(3)]
    assert answers == ["Two.", "Three.", "Two."]


def test_an_unknown_question_gets_the_answer_for_those_or_an_error(tmp_path: Path) -> None:
    known = {"answers": {"How many birds?": STORY}}
    assert load_script(write(tmp_path, known)).script("user: What?\n", Sampling()) == "I do not know."
    assert (
        load_script(write(tmp_path, {**known, "otherwise": "No."})).script("user: What?\n", Sampling())
        == "No."
    )
    with pytest.raises(EngineError, match="no answer to 'user: What"):
        load_script(write(tmp_path, {**known, "otherwise": None})).script("user: What?\n", Sampling())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "must hold a mapping"),
        ("{", "cannot be read"),
        ({"answers": ["one"]}, "needs a match and an answer, not .one"),
        ({"answers": [{"match": "x", "answer": []}]}, "needs a match"),
        ({"answers": {"x": "y"}, "seconds_per_pass": -1}, "seconds_per_pass is -1"),
    ],
)
def test_a_damaged_script_is_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        load_script(write(tmp_path, content))


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="nowhere"):
        create_engine("target", EngineSettings(kind="scripted", model=str(tmp_path / "nowhere.yaml")))


def test_the_factory_builds_a_scripted_engine(tmp_path: Path) -> None:
    path = write(tmp_path, {"How many birds?": STORY})
    engine = create_engine("draft", EngineSettings(kind="scripted", model=str(path)))
    assert isinstance(engine, ScriptedEngine)
    assert engine.name == "draft"


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_token_ids_depend_on_the_text_alone(text: str) -> None:
    tokenizer, other = ScriptedTokenizer(), ScriptedTokenizer()
    other.encode("words met before")
    assert tokenizer.encode(text) == other.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
