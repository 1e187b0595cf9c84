"""What is asked becomes prompts in the tokens of both models, with what is written behind them."""

from __future__ import annotations

from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.requests import GenerationRequest
from reason_spec.engines.chat_template import Message
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.settings import load_settings
from reason_spec.types import Constraint, Sampling, Step
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript

TURNS: list[Message] = [
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "I look."},
    {"role": "tool", "content": "4"},
]


def make(*, other_tokens: bool = False, with_draft: bool = True) -> Accelerator:
    tokenizer = ScriptedTokenizer(r"\w+|\W" if other_tokens else r"\d|\w+|\W")
    target = ScriptedEngine("target", StoryScript(1), tokenizer=ScriptedTokenizer(r"\d|\w+|\W"))
    draft = ScriptedEngine("draft", StoryScript(1), tokenizer=tokenizer) if with_draft else None
    settings = load_settings(flags={"sampling.stop": ["STOP"], "strategy.planner": False})
    return Accelerator(settings, target, draft, ExactVerifier())


def written(accelerator: Accelerator, text: str) -> Step:
    tokenizer = accelerator.target.tokenizer
    tokens = tokenizer.encode(text)
    return Step(text, tokens, "target", "boundary", tokenizer_id=tokenizer.tokenizer_id)


def test_the_settings_fill_in_what_is_not_asked() -> None:
    accelerator = make()
    request = accelerator.generator.resolve(GenerationRequest(messages=TURNS))
    assert (request.max_tokens, request.stops) == (accelerator.settings.sampling.max_tokens, ("STOP",))
    assert request.cache_key == (accelerator.settings.suffix.tenant, "")
    assert accelerator.generator.resolve(
        GenerationRequest(messages=TURNS, tenant="ana", scope="b")
    ).cache_key == (
        "ana",
        "b",
    )
    named = GenerationRequest(messages=TURNS, max_tokens=7, stops=(), sampling=Sampling(temperature=0.5))
    request = accelerator.generator.resolve(named)
    assert (request.max_tokens, request.stops, request.sampling.temperature) == (7, (), 0.5)


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        (TURNS, "How many?"),
        (TURNS[:1], "How many?"),
        (TURNS[1:], ""),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "user", "content": "How many?\nReason, and put it in \\boxed{}."}], "How many?"),
        ([{"role": "user", "content": "Add.\nHow many? Use \\boxed{}."}], "Add.\nHow many? Use \\boxed{}."),
        ([{"role": "user", "content": "Put 2 + 3 in \\boxed{}."}], "Put 2 + 3 in \\boxed{}."),
        ([{"role": "user", "content": "Question: 1?\nAnswer: 1\n\nQuestion: 2?\nAnswer:"}], "2?"),
    ],
)
def test_the_question_is_what_the_user_said_last(messages: list[Message], question: str) -> None:
    assert GenerationRequest(messages=messages).question == question
    assert GenerationRequest(prompt="Once").question == "Once"


@pytest.mark.parametrize("other_tokens", [False, True])
def test_both_prompts_end_with_what_is_written(other_tokens: bool) -> None:
    accelerator = make(other_tokens=other_tokens)
    assert accelerator.draft is not None
    steps = (written(accelerator, "One 12.\n\n"), written(accelerator, "Two"))
    request = accelerator.generator.resolve(GenerationRequest(messages=TURNS, written=steps, max_tokens=9))
    assert request.draft_prompt is not None
    for prompt, engine in (
        (request.target_prompt, accelerator.target),
        (request.draft_prompt, accelerator.draft),
    ):
        assert engine.tokenizer.decode(prompt.to_tuple()).endswith("tool: 4\nOne 12.\n\nTwo")
    # What is written is not counted.
    assert (request.max_tokens, request.text_before, request.num_steps_before) == (9, "One 12.\n\nTwo", 2)


@pytest.mark.parametrize("other_tokens", [False, True])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_a_text_is_the_prompt_of_both_models(other_tokens: bool, as_tokens: bool) -> None:
    accelerator = make(other_tokens=other_tokens)
    assert accelerator.draft is not None
    text = "Once 12 birds"
    prompt = accelerator.target.tokenizer.encode(text) if as_tokens else text
    request = accelerator.generator.resolve(GenerationRequest(prompt=prompt))
    assert request.draft_prompt is not None
    assert accelerator.target.tokenizer.decode(request.target_prompt.to_tuple()) == text
    assert accelerator.draft.tokenizer.decode(request.draft_prompt.to_tuple()) == text


async def test_prompts_that_were_encoded_are_taken_as_they_are() -> None:
    async with make(with_draft=False) as accelerator:
        ask = GenerationRequest(messages=TURNS, strategy="autoregressive")
        prompts = accelerator.encode(ask)
        assert prompts.draft is None
        request = accelerator.generator.resolve(ask, prompts)
        assert request.target_prompt is prompts.target
        steps = [step.text async for step in accelerator.solve(ask, prompts=prompts)]
        assert steps == [step.text async for step in accelerator.solve(ask)]


async def test_an_answer_goes_on_behind_what_is_written() -> None:
    async with make() as accelerator:
        whole = await accelerator.answer(GenerationRequest(messages=TURNS))
        ask = GenerationRequest(messages=TURNS, written=whole.steps[:2])
        rest = await accelerator.answer(ask)
    assert "".join(step.text for step in whole.steps[:2]) + rest.text == whole.text


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"strategy": "lookahead"}, ("lookahead", "exact")),
        ({"strategy": "lookahead", "verifier": "numbers"}, ("lookahead", "verified")),
        # What is bound the target writes alone, whatever the strategy.
        ({"strategy": "specreason", "logit_bias": ((3, 1.0),)}, ("autoregressive", "exact")),
        ({"strategy": "lookahead", "stop_ids": frozenset({3})}, ("autoregressive", "exact")),
        ({"strategy": "prompt_lookup", "stop_ids": frozenset({3})}, ("prompt_lookup", "exact")),
    ],
)
async def test_a_solution_names_what_wrote_it(asked: dict[str, Any], expected: tuple[str, str]) -> None:
    async with make() as accelerator:
        solution = await accelerator.answer(GenerationRequest(messages=TURNS, **asked))
    assert (solution.strategy, solution.loss_class) == expected


def test_only_a_constraint_or_a_bias_restricts() -> None:
    assert not GenerationRequest(prompt="x").is_restricted
    assert GenerationRequest(prompt="x", constraint=Constraint(regex="a")).is_restricted
    assert GenerationRequest(prompt="x", logit_bias=((1, 2.0),)).is_restricted


@pytest.mark.parametrize("given", [{}, {"messages": TURNS, "prompt": "x"}])
def test_an_ask_is_a_conversation_or_a_text(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="either messages or a prompt"):
        GenerationRequest(**given)  # type: ignore[arg-type]
