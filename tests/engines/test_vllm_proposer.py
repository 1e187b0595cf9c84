"""The drafts inside vLLM, and the repaired sampling kernel, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.generation import Hint
from reason_spec.engines.vllm.proposer import EXTRA_ARGUMENT, HintProposer
from reason_spec.engines.vllm.repairs import expand_batch_to_tokens
from reason_spec.engines.worker.pass_times import FULL_DRAFT_INTERVAL, PassTimes
from reason_spec.speculation.earlier_texts import EarlierTexts
from tests.naive_suffix import naive_caches

MAX_LENGTH = 256


class Batch:
    """A batch as vLLM's model runner holds it: rows that move, texts that grow."""

    def __init__(
        self, max_tokens: int = 8, earlier: EarlierTexts | None = None, times: PassTimes | None = None
    ) -> None:
        self.proposer = HintProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(num_speculative_tokens=max_tokens),
                model_config=SimpleNamespace(max_model_len=MAX_LENGTH),
            )
        )
        self.texts: dict[str, list[int]] = {}
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.proposer.bind(self, earlier)
        if times is not None:
            self.proposer.set_pass_time(times.batch_time)

    def add(self, name: str, prompt: list[int], **drafting: Any) -> None:
        parameters = SimpleNamespace(extra_args={EXTRA_ARGUMENT: drafting})
        self.requests[name] = SimpleNamespace(num_prompt_tokens=len(prompt), sampling_params=parameters)
        self.texts[name] = list(prompt)

    def step(self, new: dict[str, list[int]]) -> dict[str, list[int]]:
        """Append tokens, and ask for drafts of these rows in this order."""
        self.input_batch.req_ids = list(new)
        ids = np.zeros((len(new), MAX_LENGTH), dtype=np.int32)
        for row, (name, tokens) in enumerate(new.items()):
            self.texts[name] += tokens
            ids[row, : len(self.texts[name])] = self.texts[name]
        lengths = np.array([len(self.texts[name]) for name in new])
        return dict(zip(new, self.proposer.propose(list(new.values()), lengths, ids), strict=True))


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(tokens, st.lists(st.integers(1, 4), max_size=6), st.integers(1, 6))
def test_a_right_hint_is_proposed_from_wherever_the_text_is(
    answer: list[int], pieces: list[int], budget: int
) -> None:
    batch = Batch()
    batch.add("a", [9, 9], num_draft_tokens=budget)
    batch.proposer.offer_hint("a", Hint(tuple(answer)))
    done = 0
    for piece in pieces:
        if done + piece > len(answer):
            break
        proposed = batch.step({"a": answer[done : done + piece]})["a"]
        done += piece
        assert proposed == answer[done : done + budget]


def test_rows_may_change_places_and_each_keeps_its_own_drafts() -> None:
    batch = Batch()
    for name, hint in (("a", (1, 2, 3, 4)), ("b", (5, 6, 7, 8))):
        batch.add(name, [9], num_draft_tokens=8)
        batch.proposer.offer_hint(name, Hint(hint))
    assert batch.step({"a": [1], "b": [5]}) == {"a": [2, 3, 4], "b": [6, 7, 8]}
    assert batch.step({"b": [6], "a": [2]}) == {"b": [7, 8], "a": [3, 4]}
    batch.proposer.forget("a")
    assert batch.step({"b": [7]}) == {"b": [8]}


def test_scores_leave_nothing_behind() -> None:
    """vLLM writes one token behind what it scores, and asks for drafts then."""
    batch = Batch()
    batch.add("a", [9], num_draft_tokens=8)
    batch.proposer.offer_hint("a", Hint((1, 2, 3)))
    for number in range(200):
        batch.requests[f"score {number}"] = SimpleNamespace(
            num_prompt_tokens=1, sampling_params=SimpleNamespace(extra_args=None)
        )
        batch.texts[f"score {number}"] = [9]
        assert batch.step({f"score {number}": [1]}) == {f"score {number}": []}
    assert set(batch.proposer._drafts) == {"a"}


def test_a_request_that_ended_while_its_pass_ran_leaves_nothing_behind() -> None:
    batch = Batch()
    for name in ("ended", "a"):
        batch.add(name, [9], num_draft_tokens=8)
        batch.proposer.offer_hint(name, Hint((1, 2, 3, 4)))
    batch.proposer.offer_hint("waiting", Hint((1, 2)))
    batch.step({"ended": [1], "a": [1]})
    batch.proposer.forget("ended")
    batch.step({"ended": [2], "a": [2]})
    del batch.requests["ended"]
    assert batch.step({"a": [3]}) == {"a": [4]}
    assert set(batch.proposer._drafts) == {"a", "waiting"}


def test_prompt_lookup_works_where_it_was_asked_for_and_no_hint_applies() -> None:
    batch = Batch()
    batch.add("lookup", [1, 2, 3, 4, 1, 2], num_draft_tokens=4, token_drafter="prompt_lookup")
    batch.add("plain", [1, 2, 3, 4, 1, 2], num_draft_tokens=4)
    batch.add("off", [1, 2, 3, 4, 1, 2], num_draft_tokens=0, token_drafter="prompt_lookup")
    drafts = batch.step({"lookup": [3], "plain": [3], "off": [3]})
    assert drafts["lookup"][:3] == [4, 1, 2]
    assert drafts["plain"] == drafts["off"] == []


ANSWER = list(range(100, 140))


def knowing(*texts: list[int]) -> EarlierTexts:
    """Earlier texts that hold these; text 0 begins like them."""
    earlier = EarlierTexts(naive_caches())
    for number, text in enumerate(texts, start=1):
        earlier.begin(number, "", "a", [("output", text)])
    earlier.begin(0, "", "a", [("prompt", texts[0][:20])])
    return earlier


def test_earlier_texts_are_asked_where_no_hint_applies_and_behind_one_that_does() -> None:
    batch = Batch(earlier=knowing(ANSWER))
    batch.add("a", ANSWER[:20], num_draft_tokens=8, text=0)
    batch.add("other", ANSWER[:20], num_draft_tokens=8)
    assert batch.step({"a": ANSWER[20:22], "other": ANSWER[20:22]}) == {"a": ANSWER[22:30], "other": []}
    batch.proposer.offer_hint("a", Hint((*ANSWER[20:24], 1, 2)))
    assert batch.step({"a": ANSWER[22:23]})["a"] == [ANSWER[23], 1, 2]
    batch.proposer.offer_hint("a", Hint(tuple(ANSWER[20:26])))
    assert batch.step({"a": ANSWER[23:24]})["a"] == ANSWER[24:32]


def test_a_hinted_step_ends_where_it_ends_and_is_not_learnt() -> None:
    earlier = knowing(ANSWER)
    batch = Batch(earlier=earlier)
    batch.add("a", ANSWER[:20], num_draft_tokens=8, text=0, to_end=False)
    batch.proposer.offer_hint("a", Hint(tuple(ANSWER[20:24])))
    assert batch.step({"a": ANSWER[20:22]})["a"] == ANSWER[22:24]
    assert earlier._texts[0].length == 20


def test_what_may_be_cut_is_looked_up_and_not_learned() -> None:
    earlier = knowing(ANSWER)
    batch = Batch(earlier=earlier)
    batch.add("a", ANSWER[:20], num_draft_tokens=8, text=0, may_be_cut=True)
    assert batch.step({"a": ANSWER[20:22]})["a"] == ANSWER[22:30]
    assert earlier._texts[0].length == 20


def test_nothing_is_proposed_for_prompts_in_work_and_full_texts() -> None:
    batch = Batch()
    batch.add("waiting", [1, 2], num_draft_tokens=4, token_drafter="prompt_lookup")
    batch.add("full", [1] * (MAX_LENGTH - 2), num_draft_tokens=4, token_drafter="prompt_lookup")
    assert batch.step({"waiting": [], "full": [1]}) == {"waiting": [], "full": []}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from([torch.int32, torch.int64, torch.float32]),
)
def test_values_are_repeated_for_the_tokens_of_each_request(
    requests: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    values, counts = zip(*requests, strict=True)
    totals = torch.tensor(np.cumsum(counts), dtype=torch.int32)
    expanded = expand_batch_to_tokens(torch.tensor(values, dtype=dtype), totals, sum(counts), 0, 7)
    assert expanded.dtype == dtype
    assert expanded.tolist() == [value or 7 for value, count in requests for _ in range(count)]


def timed(token_seconds: float) -> PassTimes:
    times = PassTimes()
    for size in (1, 4, 16, 64):
        for _ in range(30):
            times.add_batch(size, min(size, 8), 0.010 + token_seconds * size)
    return times


def hinted(times: PassTimes, number: int, **drafting: bool) -> list[int]:
    """Return how many tokens are drafted for each of so many requests with right hints."""
    batch = Batch(times=times)
    for name in range(number):
        batch.add(str(name), [9], num_draft_tokens=8, **drafting)
        batch.proposer.offer_hint(str(name), Hint(tuple(range(1, 12))))
    return [len(drafts) for drafts in batch.step({str(name): [1] for name in range(number)}).values()]


def test_the_more_requests_are_in_a_pass_the_fewer_tokens_are_drafted_for_each() -> None:
    most = [max(hinted(timed(0.003), number, limit_drafts=True)) for number in (1, 2, 8, 32)]
    assert most[0] == 8
    assert most == sorted(most, reverse=True)
    assert most[-1] < 4
    assert hinted(timed(0.0), 32, limit_drafts=True) == [8] * 32


def test_only_requests_that_ask_for_it_are_limited_and_only_where_costs_are_known() -> None:
    assert hinted(timed(0.003), 32) == [8] * 32
    assert hinted(PassTimes(), 32, limit_drafts=True) == [8] * 32


def test_a_request_whose_hints_are_wrong_is_drafted_less_for() -> None:
    batch = Batch(times=timed(0.002))
    for name in ("right", "wrong"):
        batch.add(name, [9], num_draft_tokens=8, limit_drafts=True)
    drafted: dict[str, list[int]] = {}
    for _ in range(15):
        new = {"right": [1, 1, 1], "wrong": [2]}
        for name, generated in new.items():
            start = len(batch.texts[name]) - 1 + len(generated)
            batch.proposer.offer_hint(name, Hint((1,) * 9, start=start))
        drafted = batch.step(new)
    assert len(drafted["right"]) > len(drafted["wrong"]) + 2


class LookupBatch(Batch):
    """Requests whose texts repeat a period of nine tokens, drafted for by prompt lookup."""

    def __init__(self, least_chance: float) -> None:
        super().__init__()
        self.proposer.set_pass_time(timed(0.002).batch_time, least_chance)

    def begin(self, name: str, cache_key: str = "") -> None:
        prompt = [*range(1, 10), 1, 2]
        self.add(name, prompt, num_draft_tokens=8, token_drafter="prompt_lookup", cache_key=cache_key)

    def drafted(self, name: str) -> int:
        return len(self.step({name: [3]})[name])

    def verify(self, name: str, *, right: bool) -> None:
        """Let a draft be right in full, or wrong from its first token on (another one each time)."""
        self.step({name: [3]})
        self.texts[name] += [4, 5, 6, 7, 8, 9, 1, 2] if right else [len(self.texts[name]) + 40, 1, 2]


def test_no_more_tokens_are_looked_up_than_are_likely_enough_to_pay() -> None:
    numbers = []
    for least_chance in (0.0, 0.2, 0.4, 0.99):
        batch = LookupBatch(least_chance)
        batch.begin("a")
        numbers.append(batch.drafted("a"))
    assert numbers[0] == 8
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] == 1


def test_how_many_pay_is_learnt_from_the_lookups_of_the_same_cache_key() -> None:
    drafted = {}
    for right in (True, False):
        batch = LookupBatch(0.3)
        for name, key in (("a", "one"), ("same", "one"), ("other", "two")):
            batch.begin(name, key)
        for _ in range(12):
            batch.verify("a", right=right)
        drafted[right] = [batch.drafted(name) for name in ("same", "other")]
    assert drafted[True][0] > drafted[True][1] == drafted[False][1] > drafted[False][0]


def test_drafts_from_earlier_texts_do_not_depend_on_the_speed_of_the_engine() -> None:
    batch = Batch(earlier=knowing(ANSWER))
    batch.proposer.set_pass_time(timed(0.002).batch_time, 0.99)
    batch.add("a", ANSWER[:20], num_draft_tokens=8, token_drafter="prompt_lookup", text=0)
    assert batch.step({"a": ANSWER[20:22]})["a"] == ANSWER[22:30]


def test_a_limit_by_wrong_lookups_is_lifted_by_right_ones() -> None:
    batch = LookupBatch(0.3)
    drafted = []
    for second in (44, 5):
        for number in range(60):
            batch.begin(f"{second} {number}")
            batch.step({f"{second} {number}": [3]})
            batch.step({f"{second} {number}": [4, second]})
        batch.begin(str(second))
        drafted.append(batch.drafted(str(second)))
    assert drafted[0] == 1
    assert drafted[1] > 2


def test_all_drafts_are_verified_in_one_of_many_passes() -> None:
    batch = LookupBatch(0.99)
    drafted = []
    for number in range(FULL_DRAFT_INTERVAL):
        batch.begin(str(number))
        drafted.append(batch.drafted(str(number)))
    assert sorted(drafted) == [1] * (FULL_DRAFT_INTERVAL - 1) + [8]


def test_short_drafts_of_sure_hints_are_not_limited_like_unsure_ones() -> None:
    batch = Batch(times=timed(0.002))
    for name in range(8):
        batch.add(str(name), [9], num_draft_tokens=8, limit_drafts=True)
        batch.proposer.offer_hint(str(name), Hint((1, 2)))
    assert set(map(len, batch.step({str(name): [1] for name in range(8)}).values())) == {1}
