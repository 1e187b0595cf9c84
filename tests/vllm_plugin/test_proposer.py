"""The proposer for plain ``vllm serve``, in the hands of a batch like vLLM's, without vLLM."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.vllm_plugin.drafter import DRAFT_TOKENS, OWNER, SECTION
from reason_spec.vllm_plugin.proposer import Proposer

MAX_LENGTH = 128
END = 9
ANSWER = [*range(100, 140), END]


class Runner:
    """A batch as vLLM's model runner holds it: rows that move, texts that grow."""

    def __init__(self, max_tokens: int = 8, **own: Any) -> None:
        self.drafter = Proposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(num_speculative_tokens=max_tokens),
                model_config=SimpleNamespace(max_model_len=MAX_LENGTH),
                additional_config={SECTION: own} if own else {},
            )
        )
        self.texts: dict[str, list[int]] = {}
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_ids=[])

    def add(
        self,
        name: str,
        prompt: list[int],
        options: dict[str, Any] | None = None,
        *,
        max_tokens: int | None = None,
        lora: str | None = None,
        embeds: object = None,
        stops: tuple[int, ...] | None = None,
    ) -> None:
        parameters = SimpleNamespace(
            extra_args=options,
            max_tokens=max_tokens,
            ignore_eos=stops is not None,
            stop_token_ids=stops,
            all_stop_token_ids={END},
        )
        self.requests[name] = SimpleNamespace(
            num_prompt_tokens=len(prompt),
            prompt_token_ids=prompt,
            prompt_embeds=embeds,
            sampling_params=parameters,
            lora_request=None if lora is None else SimpleNamespace(lora_name=lora),
        )
        self.texts[name] = list(prompt)

    def step(self, new: dict[str, list[int]]) -> dict[str, list[int]]:
        """Append tokens, and ask for drafts of these rows in this order."""
        self.input_batch.req_ids = list(new)
        ids = np.zeros((len(new) + 1, MAX_LENGTH), dtype=np.int32)
        for row, (name, tokens) in enumerate(new.items()):
            self.texts[name] += tokens
            ids[row, : len(self.texts[name])] = self.texts[name]
        lengths = np.array([*(len(self.texts[name]) for name in new), 0])
        return dict(zip(new, self.drafter.propose(list(new.values()), lengths, ids), strict=True))

    def run(
        self,
        name: str,
        prompt: list[int],
        answer: list[int],
        options: dict[str, Any] | None = None,
        *,
        lora: str | None = None,
    ) -> list[list[int]]:
        """Generate an answer token by token, then end; return the drafts after each token."""
        self.add(name, prompt, options, lora=lora)
        drafts = [self.step({name: [token]})[name] for token in answer]
        del self.requests[name]
        self.step({})
        return drafts


def test_the_second_answer_of_a_kind_is_drafted_from_the_first() -> None:
    runner = Runner()
    first = runner.run("a", [1, 2, 3], ANSWER)
    second = runner.run("b", [1, 2, 3], ANSWER)
    assert not any(first)
    assert second[10] == ANSWER[11:19]
    assert sum(map(len, second)) > 30 * 4


def test_a_text_that_repeats_itself_is_drafted_from_its_own_beginning() -> None:
    runner = Runner(share="request")
    runner.add("a", [1, *ANSWER[:30], 2])
    drafted = [runner.step({"a": [token]})["a"] for token in ANSWER[:12]]
    assert drafted[-1] == ANSWER[12:20]


def test_rows_may_change_places_and_each_keeps_its_own_drafts() -> None:
    runner = Runner()
    other = [token + 200 for token in ANSWER[:-1]]
    runner.run("one", [1], ANSWER)
    runner.run("two", [2], other)
    for name, prompt in (("a", [1]), ("b", [2])):
        runner.add(name, prompt)
    runner.step({"a": ANSWER[:9], "b": other[:9]})
    assert runner.step({"b": other[9:10], "a": ANSWER[9:10]}) == {"a": ANSWER[10:18], "b": other[10:18]}


texts = st.lists(st.integers(10, 14), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(texts, texts, texts, st.sampled_from(["server", "owner"]))
def test_drafts_of_an_owner_do_not_depend_on_texts_of_others(
    theirs: list[int], mine: list[int], prompt: list[int], share: str
) -> None:
    alone, beside = Runner(share=share), Runner(share=share)
    beside.run("named", prompt, theirs, {OWNER: "a"})
    beside.run("unnamed", prompt, theirs)
    beside.run("adapter", prompt, theirs, {OWNER: "b"}, lora="x")
    for name in ("first", "second"):
        assert alone.run(name, prompt, mine, {OWNER: "b"}) == beside.run(name, prompt, mine, {OWNER: "b"})


@pytest.mark.parametrize(
    ("share", "options", "shared"),
    [
        ("server", {}, True),
        ("server", {OWNER: "a"}, True),
        ("server", {DRAFT_TOKENS: 0}, False),
        ("owner", {OWNER: "a"}, True),
        ("owner", {}, False),
        ("request", {}, False),
        ("request", {OWNER: "a"}, False),
    ],
)
def test_a_request_drafts_from_the_last_one_only_where_they_share(
    share: str, options: dict[str, Any], shared: bool
) -> None:
    runner = Runner(share=share)
    runner.run("a", [1], ANSWER, options)
    options = {name: value for name, value in options.items() if name != DRAFT_TOKENS}
    assert any(runner.run("b", [1], ANSWER, options)) == shared


def test_nothing_is_drafted_behind_a_token_that_stops_nor_beyond_the_limits() -> None:
    runner = Runner()
    runner.run("a", [1], ANSWER)
    runner.add("stops", [1])
    assert runner.step({"stops": ANSWER[:-3]})["stops"] == ANSWER[-3:]
    assert runner.step({"stops": [*ANSWER[-3:], 50]})["stops"] == []
    runner.add("short", [1], max_tokens=24)
    assert runner.step({"short": ANSWER[:20]})["short"] == ANSWER[20:23]
    runner.add("few", [1], {DRAFT_TOKENS: 2})
    assert runner.step({"few": ANSWER[:20]})["few"] == ANSWER[20:22]
    room = MAX_LENGTH - 1 - 20 - 4
    runner.add("full", [*[7] * room, 1])
    assert runner.step({"full": ANSWER[:20]})["full"] == ANSWER[20:23]


def test_without_the_models_end_the_stop_tokens_of_a_request_end_it_still() -> None:
    runner = Runner()
    runner.run("a", [1], [*ANSWER[:-1], 50, 51])
    runner.add("stops", [1], stops=(120,))
    assert runner.step({"stops": ANSWER[:15]})["stops"] == ANSWER[15:21]
    assert runner.step({"stops": ANSWER[15:22]})["stops"] == []
    runner.add("goes on", [1], stops=())
    assert runner.step({"goes on": ANSWER[:15]})["goes on"] == ANSWER[15:23]


def test_prompts_in_work_and_prompts_without_ids_get_no_drafts() -> None:
    runner = Runner()
    runner.run("a", [1], ANSWER)
    runner.add("in work", [1])
    runner.add("embeds", [1], embeds=object())
    assert runner.step({"in work": [], "embeds": ANSWER[:20]}) == {"in work": [], "embeds": []}
    assert runner.step({"in work": ANSWER[:20]}) == {"in work": ANSWER[20:28]}


def test_requests_that_ended_leave_nothing_behind_and_caches_are_bounded() -> None:
    runner = Runner(max_caches=3)
    for number in range(8):
        runner.run(f"{number}", [1], ANSWER[:5], {OWNER: f"owner {number}"})
    assert len(runner.drafter._caches) == 3
    assert not runner.drafter._requests
    assert any(runner.run("known", [1], ANSWER, {OWNER: "owner 7"}))
    assert not any(runner.run("dropped", [1], ANSWER, {OWNER: "owner 0"}))
    private = Runner(share="request")
    for number in range(8):
        private.run(f"{number}", [1], ANSWER)
    assert len(private.drafter._caches) == 0


def test_an_open_text_keeps_its_cache_among_many_others() -> None:
    runner = Runner(max_caches=1)
    runner.add("long", [1, *ANSWER[:30], 2], {OWNER: "long"})
    runner.step({"long": ANSWER[:1]})
    for number in range(4):
        runner.run(f"{number}", [1], ANSWER[:5], {OWNER: f"owner {number}"})
    assert runner.step({"long": ANSWER[1:12]})["long"] == ANSWER[12:20]


def test_requests_without_an_owner_drop_no_cache_of_owners() -> None:
    runner = Runner(share="owner", max_caches=1)
    runner.run("first", [1], ANSWER, {OWNER: "a"})
    unnamed = {str(number): ANSWER[:5] for number in range(3)}
    for name in unnamed:
        runner.add(name, [1])
    runner.step(unnamed)
    assert any(runner.run("second", [1], ANSWER, {OWNER: "a"}))
    runner.run("other", [1], ANSWER, {OWNER: "b"})
    assert not any(runner.run("dropped", [1], ANSWER, {OWNER: "a"}))


@pytest.mark.parametrize("limit", ["many", [1], None, float("inf")])
def test_a_limit_that_is_no_number_costs_only_its_own_request_the_drafts(limit: object) -> None:
    runner = Runner()
    runner.run("a", [1], ANSWER)
    runner.add("wrong", [1], {DRAFT_TOKENS: limit})
    runner.add("right", [1])
    assert runner.step({"wrong": ANSWER[:20], "right": ANSWER[:20]}) == {"wrong": [], "right": ANSWER[20:28]}


def test_an_error_costs_the_drafts_of_a_pass_and_is_logged_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = Runner()
    runner.run("a", [1], ANSWER)
    runner.add("b", [1])
    known, runner.requests = runner.requests, {}
    for _ in range(12):
        assert runner.step({"b": [ANSWER[0]]})["b"] == []
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 2, "the first and the tenth"
    runner.requests = known
    runner.texts["b"] = [1]
    assert runner.step({"b": ANSWER[:20]})["b"] == ANSWER[20:28]


def test_the_pass_after_an_error_is_not_timed() -> None:
    runner = Runner()
    runner.add("a", [1])
    runner.step({"a": ANSWER[:1]})
    known, runner.requests = runner.requests, {}
    runner.step({"a": ANSWER[1:2]})
    runner.requests = known
    times = runner.drafter._times.batches()
    runner.step({"a": ANSWER[2:3]})
    assert runner.drafter._times.batches() == times


def test_without_a_model_runner_there_are_no_drafts(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Runner().drafter
    ids = np.ones((1, MAX_LENGTH), dtype=np.int32)
    with caplog.at_level(logging.WARNING):
        assert proposer.propose([[1]], np.array([20]), ids) == [[]]
    assert "no model runner" in caplog.text


def test_the_more_requests_are_in_a_pass_the_fewer_tokens_are_drafted_for_each() -> None:
    times = PassTimes()
    for size in (1, 4, 16, 64):
        for _ in range(30):
            times.add_batch(size, min(size, 8), 0.010 + 0.0005 * size)
    most = []
    for limit_drafts, number in ((True, 1), (True, 8), (True, 32), (False, 32)):
        runner = Runner(limit_drafts=limit_drafts)
        runner.run("a", [1], ANSWER)
        runner.drafter._times = times
        for name in range(number):
            runner.add(str(name), [1])
        drafts = runner.step({str(name): ANSWER[:20] for name in range(number)})
        most.append(max(map(len, drafts.values())))
    assert most[0] == most[3] == 8
    assert 8 > most[1] > most[2]


@pytest.mark.parametrize("own", [{"shared": "all"}, {"share": "everyone"}, {"max_bytes": 1}])
def test_a_wrong_setting_is_refused_by_name(own: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(own))):
        Runner(**own)
