"""What answers tell the suffix cache: conversations over turns, sources, tenants, scopes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.chat_template import Message
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.engines.text_updates import (
    BeginText,
    CloseText,
    EraseTexts,
    ExtendText,
    ForgetTexts,
    TextUpdate,
)
from reason_spec.errors import DataError
from reason_spec.segment import Boundary
from reason_spec.settings import SuffixSettings
from reason_spec.strategies.suffix_session import SuffixCacheSessions, segments_of
from reason_spec.suffix.scopes import Cache, SuffixCaches
from reason_spec.types import Prefix, Step
from tests.naive_suffix import NaiveCache, NaiveSession
from tests.strategies.scripts import StoryScript

Use = Literal["none", "tokens", "steps", "both"]
TOKENIZER = ScriptedTokenizer()


class Listening(ScriptedEngine):
    """Takes texts, and notes what it is told of them."""

    def __init__(self, tokenizer: ScriptedTokenizer | None = None) -> None:
        super().__init__("target", StoryScript(1), tokenizer=tokenizer)
        self.news: list[TextUpdate] = []

    @property
    def takes_texts(self) -> bool:
        return True

    def update_text(self, update: TextUpdate) -> None:
        self.news.append(update)


def make(
    use: Use = "both", kind: type[NaiveCache] = NaiveCache
) -> tuple[SuffixCacheSessions, NaiveCache, Listening]:
    cache, engine = kind(), Listening()
    caches: dict[str, Cache] = {"": cache}
    made = SuffixCaches(lambda scope: caches.setdefault(scope, kind()))
    settings = SuffixSettings(use=use)
    return SuffixCacheSessions(settings, made, engine), cache, engine


def step(text: str) -> Step:
    return Step(text, TOKENIZER.encode(text), "target", "boundary", TOKENIZER.tokenizer_id)


def answer(
    memories: SuffixCacheSessions,
    prompt: str,
    *steps: str,
    tenant: str | None = None,
    scope: str = "",
    name: str = "",
) -> None:
    memory = memories.open((("prompt", TOKENIZER.encode(prompt)),), tenant=tenant, scope=scope, name=name)
    assert memory is not None
    for text in steps:
        memory.learn(step(text))
    memory.close()


def test_a_prompt_that_begins_with_a_conversations_text_is_its_next_turn() -> None:
    memories, cache, engine = make()
    answer(memories, "user: one two three four\n", "five six\n\n")
    answer(memories, "user: one two three four\nfive six\n\nuser: more\n", "seven\n\n")
    assert len(cache.documents["default"]) == 1
    begun = [news.text for news in engine.news if isinstance(news, BeginText)]
    assert begun == [0, 0]
    assert [news.tokens for news in engine.news if isinstance(news, ExtendText)] == [
        TOKENIZER.encode("five six\n\n"),
        TOKENIZER.encode("seven\n\n"),
    ]


def test_another_prompt_is_another_conversation() -> None:
    memories, cache, _ = make()
    answer(memories, "user: one two three four\n", "five\n\n")
    answer(memories, "user: a b c d e f g\n", "h\n\n")
    assert len(cache.documents["default"]) == 2


def test_a_conversation_under_way_is_not_taken_up_by_another_answer() -> None:
    memories, cache, _ = make()
    segments = (("prompt", TOKENIZER.encode("user: one two three\n")),)
    first, second = memories.open(segments), memories.open(segments)  # type: ignore[arg-type]
    assert first is not None
    assert second is not None
    assert first.text != second.text
    assert len(cache.documents["default"]) == 2


def test_tenants_and_scopes_have_conversations_of_their_own() -> None:
    memories, cache, engine = make()
    prompt = "user: one two three four\n"
    answer(memories, prompt, "five\n\n", tenant="a")
    answer(memories, prompt, "five\n\n", tenant="b")
    answer(memories, prompt, "five\n\n", tenant="a", scope="other")
    assert set(cache.documents) == {"a", "b"}
    openings = [news.opening for news in engine.news if isinstance(news, BeginText)]
    assert [(opening.tenant, opening.scope) for opening in openings] == [
        ("a", ""),
        ("b", ""),
        ("a", "other"),
    ]
    assert len({news.text for news in engine.news if isinstance(news, BeginText)}) == 3


def test_a_named_session_goes_on_with_its_own_conversations_until_it_ends() -> None:
    memories, cache, engine = make()
    shared = "system: you are an agent with a long description of all your tools\n"
    answer(memories, shared + "user: a\n", "b\n\n", name="first")
    answer(memories, shared + "user: c\n", "d\n\n", name="second")
    answer(memories, shared + "user: a\nb\n\nuser: e\n", "f\n\n", name="first")
    begun = [news.text for news in engine.news if isinstance(news, BeginText)]
    assert begun == [0, 1, 0]
    assert len(cache.documents["default"]) == 2
    memories.end_named("another", "first")
    memories.end_named("default", "first")
    assert [news.text for news in engine.news if isinstance(news, CloseText)] == [0]
    answer(memories, shared + "user: a\n", "b\n\n", name="first")
    assert len(cache.documents["default"]) == 3


def test_more_named_conversations_stay_open_and_unnamed_ones_do_not_displace_them() -> None:
    memories, _, engine = make()
    for number in range(20):
        answer(memories, f"user: {number}\n", "done\n\n", name=str(number))
        answer(memories, f"user: {number} {'word ' * number}\n", "done\n\n")
    closed = [news.text for news in engine.news if isinstance(news, CloseText)]
    assert closed == [1, 3, 5, 7]


def test_the_oldest_conversation_ends_when_there_are_many() -> None:
    memories, _, engine = make()
    for number in range(20):
        answer(memories, f"user: {number} {'word ' * number}\n", "done\n\n")
    closed = [news.text for news in engine.news if isinstance(news, CloseText)]
    assert closed == [0, 1, 2, 3]


def test_a_scope_that_is_forgotten_begins_anew() -> None:
    memories, _, engine = make()
    answer(memories, "user: one two\n", "three\n\n", scope="x")
    memories.forget("x")
    assert engine.news[-2:] == [CloseText(0), ForgetTexts("x")]


@pytest.mark.parametrize(("use", "told", "proposes"), [("tokens", True, False), ("steps", False, True)])
def test_each_layer_is_served_where_the_settings_say_so(use: Use, told: bool, proposes: bool) -> None:
    memories, cache, engine = make(use)
    memory = memories.open((("prompt", TOKENIZER.encode("user: one\n")),))
    assert memory is not None
    memory.learn(step("two\n\n"))
    assert bool(engine.news) == told
    assert (memory.text is not None) == told
    assert memory.proposes_steps == proposes
    assert cache.documents["default"], "what is kept is kept from here"


class Unwritable(NaiveCache):
    def save(self) -> None:
        raise OSError("disk full")


class FailingForAna(NaiveCache):
    def open_session(self, tenant: str) -> NaiveSession:
        if tenant == "ana":
            raise RuntimeError("the text is damaged")
        return super().open_session(tenant)


def test_a_cache_that_fails_is_left_out_for_its_tenant_alone(caplog: pytest.LogCaptureFixture) -> None:
    memories, cache, _ = make(kind=FailingForAna)
    for _ in range(2):
        assert memories.open((("prompt", TOKENIZER.encode("user: one\n")),), tenant="ana") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "tenant ana" in caplog.text
    answer(memories, "user: one\n", "two\n\n", tenant="ben")
    assert TOKENIZER.decode(cache.documents["ben"][0]) == "user: one\ntwo\n\n"


def test_a_text_with_unknown_tokens_proposes_nothing_and_others_a_step_without_probabilities() -> None:
    memories, cache, _ = make()
    known, unknown = "a question that is long enough", "another question, long enough too"
    cache.documents["default"] = [
        [*TOKENIZER.encode(unknown), -5, *TOKENIZER.encode("\n\n")],
        [*TOKENIZER.encode(known), *TOKENIZER.encode(" answered\n\n")],
    ]
    found = []
    for prompt in (unknown, known):
        tokens = TOKENIZER.encode(prompt)
        memory = memories.open((("prompt", tokens),))
        assert memory is not None
        request = EngineRequest(Prefix(tokens), max_tokens=20, boundary=Boundary())
        found.append(memory.next_step(request))
        memory.close()
    assert found[0] is None
    assert found[1] is not None
    assert found[1].text == " answered\n\n"
    assert found[1].logprobs is None
    assert not memories.has_failed("default")


def test_a_place_that_cannot_be_written_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    memories, _, _ = make(kind=Unwritable)
    answer(memories, "user: one two\n", "three\n\n")
    memories.save()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "disk full" in caplog.text


def test_the_parts_of_a_prompt_are_told_apart_by_role() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be kind to all guests."},
        {"role": "user", "content": "Is there a table for two?"},
        {"role": "assistant", "content": "Let me look into the book."},
        {"role": "tool", "content": "table 4 is free"},
        {"role": "user", "content": "And?"},
    ]
    prompt = TOKENIZER.encode_chat(messages)
    segments = segments_of(messages, prompt, TOKENIZER)
    assert tuple(token for _, tokens in segments for token in tokens) == prompt
    found = {source: TOKENIZER.decode(tokens) for source, tokens in segments if source != "prompt"}
    assert found == {"output": " me look into the book", "tool": " 4 is"}


class Numbers(ScriptedTokenizer):
    """Text is token ids."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split()))


ids = st.lists(st.sampled_from([0, 1, 256, 257, 1 << 16, 1 << 24]), max_size=12)


@given(prompt=ids, content=ids)
def test_an_output_is_found_at_its_first_place_and_never_between_two_tokens(
    prompt: list[int], content: list[int]
) -> None:
    messages: list[Message] = [{"role": "assistant", "content": " ".join(map(str, content))}]
    segments = segments_of(messages, prompt, Numbers())
    assert [token for _, tokens in segments for token in tokens] == prompt
    inner = content[1:-1]
    starts = [place for place in range(len(prompt)) if inner and prompt[place : place + len(inner)] == inner]
    before = prompt[: starts[0]] if starts else prompt
    assert [token for source, tokens in segments[:1] if source == "prompt" for token in tokens] == before
    assert [tokens for source, tokens in segments if source == "output"] == [tuple(inner)] * bool(starts)


def test_what_is_known_of_an_answer_is_what_the_engine_would_draft_first() -> None:
    cases: list[tuple[Use, bool]] = [("both", True), ("tokens", True), ("steps", False)]
    for use, drafts in cases:
        memories, _, _ = make(use)
        answer(memories, "Question one?", "A first step.\n\n", "A second step.\n\n")
        again = memories.open((("prompt", TOKENIZER.encode("Question one?")),))
        other = memories.open((("prompt", TOKENIZER.encode("XYZ%&")),))
        assert again is not None
        assert other is not None
        assert (again.forecast(4).num_drafted > 0) == drafts
        assert again.forecast(4).num_drafted <= 12
        assert not other.forecast(4).num_drafted


class Keeping(NaiveCache):
    """Counts how often it is kept, where there is room."""

    num_kept = 0
    is_full = False

    def save(self) -> None:
        if self.is_full:
            raise DataError("the disk is full")
        self.num_kept += 1


def test_only_what_is_new_is_kept_and_a_full_disk_costs_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memories, cache, _ = make(kind=Keeping)
    assert isinstance(cache, Keeping)
    memories.load(["default"])
    memories.save()
    assert cache.num_kept == 0
    answer(memories, "user: one two three four\n", "five six\n\n")
    cache.is_full = True
    memories.save()
    assert "is not kept: the disk is full" in caplog.text
    assert not memories.has_failed("default")
    cache.is_full = False
    for _ in range(2):
        memories.save()
    assert cache.num_kept == 1


def test_engines_drop_what_was_erased_before_their_next_text() -> None:
    class Erasing(NaiveCache):
        erased: list[str]

        def save(self) -> None:
            self.erased = ["ana"]

        def take_erased(self) -> list[str]:
            taken, self.erased = getattr(self, "erased", []), []
            return taken

    memories, _, engine = make(kind=Erasing)
    answer(memories, "user: one two\n", "three\n\n")
    memories.save()
    assert EraseTexts("ana") not in engine.news
    for _ in range(2):
        answer(memories, "user: four\n", "five\n\n")
    assert engine.news.count(EraseTexts("ana")) == 1
    begun = [place for place, news in enumerate(engine.news) if isinstance(news, BeginText)]
    assert begun[0] < engine.news.index(EraseTexts("ana")) < begun[1]


@pytest.mark.parametrize("shared", [True, False])
def test_the_drafts_engine_follows_the_texts_where_it_has_the_targets_vocabulary(shared: bool) -> None:
    target, draft = Listening(), Listening(None if shared else ScriptedTokenizer(r"\S+|\s"))
    caches = SuffixCaches(lambda scope: NaiveCache())
    memories = SuffixCacheSessions(SuffixSettings(use="both"), caches, target, draft)
    own = (("prompt", TOKENIZER.encode("draft: one two\n")),)
    memory = memories.open((("prompt", TOKENIZER.encode("user: one two\n")),), own, tenant="a", scope="s")  # type: ignore[arg-type]
    assert memory is not None
    memory.learn(step("three\n\n"))
    memory.close()
    memories.forget("s")
    assert memory.text == 0
    assert memory.draft_text == (0 if shared else None)
    begun, *others = target.news
    assert isinstance(begun, BeginText)
    told = BeginText(0, replace(begun.opening, segments=own))  # type: ignore[arg-type]
    assert [type(news) for news in others] == [ExtendText, CloseText, ForgetTexts]
    assert draft.news == ([told, *others] if shared else [])


def test_a_cache_that_proposes_steps_alone_tells_no_engine() -> None:
    target, draft = Listening(), Listening()
    memories = SuffixCacheSessions(
        SuffixSettings(use="steps"), SuffixCaches(lambda scope: NaiveCache()), target, draft
    )
    answer(memories, "user: one two\n", "three\n\n")
    memories.forget("")
    assert target.news == draft.news == []
