"""Drafts from earlier texts in the step loop: never a token other than the model's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest, Hint
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.sequence_drafter import DraftRates, ModelDraft, SequenceDrafter
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.segment import Boundary
from reason_spec.speculation.draft_tree import NextTokens
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.recycling import sibling_table
from reason_spec.speculation.tree import ROOT
from reason_spec.suffix.base import Proposal
from reason_spec.suffix.scopes import SuffixCaches
from reason_spec.types import NoiseKey, Prefix, Sampling
from tests.engines.tiny_models import LENGTH, NUM_PROMPTS, Served, prompt, spoiled, write
from tests.naive_suffix import NaiveCache, NaiveSession
from tests.speculation.trees import merged


def told(*texts: Sequence[int], session: type[NaiveSession] = NaiveSession) -> EarlierTexts:
    """Earlier texts that are known by heart; text 0 is the one that requests go on from."""

    class Cache(NaiveCache):
        def open_session(self, tenant: str) -> NaiveSession:
            document: list[int] = []
            self.documents.setdefault(tenant, []).append(document)
            return session(self, tenant, document)

    earlier = EarlierTexts(SuffixCaches(lambda scope: Cache()))
    for number, text in enumerate(texts, start=1):
        earlier.begin(number, "", "a", [("output", tuple(text))])
    return earlier


@settings(max_examples=25)
@given(
    st.integers(0, NUM_PROMPTS - 1),
    st.lists(st.integers(0, LENGTH - 1), max_size=3),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 20),
)
def test_greedy_is_equal_whatever_earlier_texts_say(
    qwen: Served,
    expected: list[tuple[int, ...]],
    index: int,
    places: list[int],
    num_draft_tokens: int,
    hinted: bool,
    place: int,
) -> None:
    text = expected[index]
    known = [(*prompt(index), *spoiled(text, place)) for place in places]
    earlier = told(*known, (*prompt(index), *text))
    earlier.begin(0, "", "a", [("prompt", prompt(index))])
    request = EngineRequest(
        Prefix(prompt(index)),
        LENGTH,
        text=0,
        hint=spoiled(text, place)[:8] if hinted else (),
        num_draft_tokens=num_draft_tokens,
    )
    assert write(qwen.scheduler(earlier=earlier), request).tokens == text


def test_a_text_that_was_written_before_costs_a_pass_for_each_budget(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    earlier = told((*prompt(0), *expected[0]))
    earlier.begin(0, "", "a", [("prompt", prompt(0))])
    scheduler = qwen.scheduler(earlier=earlier)
    request = EngineRequest(Prefix(prompt(0)), LENGTH, text=0, num_draft_tokens=LENGTH)
    result = write(scheduler, request)
    assert result.tokens == expected[0]
    # The one that reads the prompt checks all that is known, too.
    assert result.usage.num_passes == 1
    assert result.usage.num_accepted_draft_tokens == result.usage.num_drafted_tokens


@pytest.mark.parametrize("may_be_cut", [False, True])
def test_what_may_be_cut_is_not_learned(
    qwen: Served, expected: list[tuple[int, ...]], may_be_cut: bool
) -> None:
    earlier = told((*prompt(0), *expected[0]))
    earlier.begin(0, "", "a", [("prompt", prompt(0))])
    request = EngineRequest(Prefix(prompt(0)), LENGTH, text=0, may_be_cut=may_be_cut, num_draft_tokens=2)
    assert write(qwen.scheduler(earlier=earlier), request).tokens == expected[0]
    assert (earlier._texts[0].length == len(prompt(0))) == may_be_cut


def test_without_a_text_nothing_is_drafted(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    earlier = told((*prompt(0), *expected[0]))
    result = write(qwen.scheduler(earlier=earlier), EngineRequest(Prefix(prompt(0)), LENGTH))
    assert result.usage.num_drafted_tokens == 0


def test_a_hint_goes_first_and_earlier_texts_go_on_behind_it(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    earlier = told((*prompt(0), *expected[0]))
    earlier.begin(0, "", "a", [("prompt", prompt(0))])
    hint = expected[0][:6]
    request = EngineRequest(Prefix(prompt(0)), LENGTH, text=0, hint=hint, num_draft_tokens=LENGTH)
    assert write(qwen.scheduler(earlier=earlier), request).usage.num_passes == 1
    alone = EngineRequest(Prefix(prompt(0)), LENGTH, hint=hint, num_draft_tokens=LENGTH)
    assert write(qwen.scheduler(), alone).usage.num_passes > 1


def test_nothing_is_drafted_behind_the_end_of_a_step(qwen: Served, expected: list[tuple[int, ...]]) -> None:
    text = expected[0]
    words = [qwen.tokenizer.decode([token]) for token in text]
    delimiter = next(word for word in words[3:] if word.isascii() and word.strip() and word not in words[:3])
    earlier = told((*prompt(0), *text))
    earlier.begin(0, "", "a", [("prompt", prompt(0))])
    boundary = Boundary(delimiter, protect_fences=False, protect_json=False)
    request = EngineRequest(Prefix(prompt(0)), LENGTH, text=0, boundary=boundary, num_draft_tokens=LENGTH)
    result = write(qwen.scheduler(earlier=earlier), request)
    assert result.finish == "boundary"
    assert result.usage.num_drafted_tokens <= len(result.tokens)
    assert result.usage.num_discarded_tokens <= 1


class Forking(NaiveSession):
    """Proposes the right way and a wrong one, as a tree."""

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        right = super().propose_tokens(budget, after=after).tokens
        wrong = [(token + 1) % 260 for token in right]
        both = merged([wrong, right], budget)
        return Proposal(both.tokens, both.parents, (1.0,) * len(both), 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_is_checked_in_one_pass(
    qwen: Served, expected: list[tuple[int, ...]], temperature: float
) -> None:
    sampling = Sampling(temperature, noise=NoiseKey(3))
    plain = write(qwen.scheduler(), EngineRequest(Prefix(prompt(1)), LENGTH, sampling=sampling))
    earlier = told((*prompt(1), *plain.tokens), session=Forking)
    earlier.begin(0, "", "a", [("prompt", prompt(1))])
    request = EngineRequest(Prefix(prompt(1)), LENGTH, sampling=sampling, text=0, num_draft_tokens=8)
    result = write(qwen.scheduler(earlier=earlier), request)
    assert result.tokens == plain.tokens
    # Half of what is drafted is right: mostly four tokens of a pass, and the one behind them.
    assert result.usage.num_passes < LENGTH / 3


class Doubting(NaiveSession):
    """Knows what comes next, thinks it unlikely, and is wrong about every fourth token."""

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        sure = super().propose_tokens(budget, after=after)
        tokens = tuple((token + (place % 4 == 3)) % 260 for place, token in enumerate(sure.tokens))
        return Proposal(tokens, sure.parents, (0.4,) * len(tokens), sure.match_length)


def test_what_is_likely_goes_beyond_the_budget_and_what_is_not_does_not(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    num_passes = []
    for session in (NaiveSession, Doubting):
        earlier = told((*prompt(0), *expected[0]), session=session)
        earlier.begin(0, "", "a", [("prompt", prompt(0))])
        request = EngineRequest(Prefix(prompt(0)), LENGTH, text=0, num_draft_tokens=3)
        result = write(qwen.scheduler(earlier=earlier), request)
        assert result.tokens == expected[0]
        num_passes.append(result.usage.num_passes)
    assert num_passes == [-(-LENGTH // 10), -(-LENGTH // 4)]


class Slighting(NaiveSession):
    """Knows what comes next and thinks it next to impossible."""

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        sure = super().propose_tokens(budget, after=after)
        return Proposal(sure.tokens, sure.parents, (0.05,) * len(sure.tokens), sure.match_length)


def test_what_turns_out_better_than_its_chance_is_drafted_more_freely_later(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    earlier = told((*prompt(0), *expected[0]), session=Slighting)
    scheduler = qwen.scheduler(earlier=earlier)
    num_passes = []
    for _ in range(6):
        scheduler.reset_prefix_cache()
        earlier.begin(0, "", "a", [("prompt", prompt(0))])
        request = EngineRequest(Prefix(prompt(0)), LENGTH, text=0, num_draft_tokens=3)
        result = write(scheduler, request)
        assert result.tokens == expected[0]
        num_passes.append(result.usage.num_passes)
    # Three drafts and one more in each pass would take six.
    assert num_passes[-1] < -(-LENGTH // 4) - 1


def test_tokens_of_a_hint_have_to_be_worth_their_time_and_those_of_earlier_texts_need_not(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    """How fast the engine is tells of others' texts: what a tenant is offered must not depend on it."""
    earlier = told((*prompt(0), *expected[0]), session=Doubting)
    earlier.begin(0, "", "a", [("prompt", prompt(0))])
    known, hinted = (
        GenerationSequence(
            number,
            EngineRequest(Prefix(prompt(0)), LENGTH, text=text),
            PrefixTrie(64),
            qwen.tokenizer,
            64,
            earlier,
        )
        for number, text in ((0, 0), (1, None))
    )
    assert len(known.drafter.propose(1.0)) == len(known.drafter.propose(0.0)) > 0
    hinted.drafter.offer_hint(Hint(expected[0][:8]))
    assert len(hinted.drafter.propose(0.0)) == 8
    assert len(hinted.drafter.propose(1.0)) == 1


RIGHT, OTHER = 100, 101


@pytest.mark.parametrize("source", ["recycling", "siblings", "model"])
def test_predictions_are_drafted_beside_earlier_texts(qwen: Served, source: str) -> None:
    """Earlier texts go on with one token, the other source with another."""
    text = (*range(30, 50), 7, 8)
    guess = NextTokens((OTHER,), (0.3,))
    rates, siblings = DraftRates(qwen.model.vocab_size), sibling_table()
    if source == "siblings":
        siblings.learn(text, guess)
    if source == "recycling":
        rates.tables["recycling"].learn(text, guess)
    earlier = told((*text, RIGHT, 102, 103), session=Doubting)
    earlier.begin(0, "", "a", [("prompt", text)])
    request = EngineRequest(
        Prefix(text),
        LENGTH,
        text=0,
        token_drafter="recycling" if source == "recycling" else "none",
        model_drafts=source == "model",
    )
    drafter = GenerationSequence(
        0, request, PrefixTrie(64), qwen.tokenizer, 64, earlier, rates=rates, siblings=siblings
    ).drafter
    if source == "model":
        drafter.offer_model_draft(ModelDraft(Proposal((OTHER,), (-1,), (0.3,)), {(): guess}))
    drafts = drafter.propose()
    assert {drafts.tokens[node] for node in drafts.children(ROOT)} == {RIGHT, OTHER}


def test_a_model_drafts_little_where_earlier_texts_know_the_next_token(
    qwen: Served, expected: list[tuple[int, ...]]
) -> None:
    earlier = told((*prompt(0), *expected[0]))
    earlier.begin(0, "", "a", [("prompt", prompt(0))])

    def drafter(text: int | None) -> SequenceDrafter:
        request = EngineRequest(Prefix(prompt(0)), LENGTH, text=text, model_drafts=True)
        return GenerationSequence(0, request, PrefixTrie(64), qwen.tokenizer, 64, earlier).drafter

    known, unknown = drafter(0), drafter(None)
    assert known.gain_of_next(Proposal()) < 0.1 * unknown.gain_of_next(Proposal())
    assert known.model_budget == unknown.model_budget > 0
    earlier.rule = "published"
    assert drafter(0).model_budget == 0, "there they draft alone"


class Timeless(PassTimes):
    """Passes that cost nothing: whatever is likely enough otherwise is worth its time."""

    @property
    def least_chance(self) -> float:
        return 0.0


@pytest.mark.parametrize("other", [("ben", ""), ("ana", "compared")])
def test_wrong_hints_of_one_tenant_or_scope_change_nothing_for_another(
    qwen: Served, expected: list[tuple[int, ...]], other: tuple[str, str]
) -> None:
    def passes_of(scheduler: Scheduler, cache_key: tuple[str, str], hint: tuple[int, ...]) -> int:
        scheduler.reset_prefix_cache()
        request = EngineRequest(Prefix(prompt(0)), LENGTH, hint=hint, num_draft_tokens=2, cache_key=cache_key)
        result = write(scheduler, request)
        assert result.tokens == expected[0]
        return result.usage.num_passes

    scheduler = qwen.scheduler()
    scheduler.pass_times = Timeless()
    fresh = passes_of(scheduler, ("ben", "before"), expected[0])
    for _ in range(30):
        passes_of(scheduler, ("ana", ""), tuple((token + 1) % 260 for token in expected[0]))
    assert passes_of(scheduler, other, expected[0]) == fresh
    assert passes_of(scheduler, ("ana", ""), expected[0]) > fresh
