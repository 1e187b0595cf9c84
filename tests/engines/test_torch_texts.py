"""A step costs what is new in it: nodes come along and tokens sent do not grow with the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.texts import SharedArray
from reason_spec.types import Prefix
from tests.engines.tiny_models import Served, drain, prompt, write

STEP = 4


@contextmanager
def visited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the nodes that paths go to, in the one item of the list."""
    count = [0]
    move = PrefixTrie.move

    def counted(self: PrefixTrie, *nodes: object) -> None:
        count[0] += 1
        move(self, *nodes)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(PrefixTrie, "move", counted)
        yield count


def text_of(length: int) -> tuple[int, ...]:
    return (prompt(0) * 8)[:length]


@pytest.mark.parametrize("kind", ["step", "score"])
def test_a_request_visits_as_many_nodes_behind_a_long_text_as_behind_a_short_one(
    qwen: Served, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    numbers = []
    for length in (30, 200):
        scheduler = qwen.scheduler()
        prefix = Prefix(text_of(length))
        for number in range(3):
            with visited(monkeypatch) as count:
                if kind == "step":
                    tokens = write(scheduler, EngineRequest(prefix, STEP), number).tokens
                else:
                    tokens = prompt(5)[:STEP]
                    scheduler.score(number, prefix, tokens)
                    drain(scheduler)
            prefix = prefix.extend(tokens)
        numbers.append(count[0])
    assert numbers[0] == numbers[1] <= 2 * STEP


def test_branches_and_suspended_requests_go_on_from_where_their_texts_part(
    qwen: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = qwen.scheduler(max_running=1)
    trunk = Prefix(text_of(150))
    write(scheduler, EngineRequest(trunk, 1), 0)
    with visited(monkeypatch) as count:
        scheduler.submit(1, EngineRequest(trunk.extend((1, 2, 3)), STEP, priority=2))
        scheduler.step()
        scheduler.submit(2, EngineRequest(trunk.extend((4,)), STEP, priority=1))
        results = drain(scheduler)
    assert count[0] <= 3 * (3 + STEP)
    for number, branch in ((1, (1, 2, 3)), (2, (4,))):
        result = results[number]
        assert isinstance(result, GenerationResult)
        assert result.tokens == qwen.generate((*trunk.to_tuple(), *branch), STEP)


def test_a_text_whose_slots_went_to_others_is_computed_anew(qwen: Served) -> None:
    scheduler = Scheduler(qwen.model, qwen.tokenizer, num_slots=256, debug=True)
    prefix = Prefix(text_of(100))
    prefix = prefix.extend(write(scheduler, EngineRequest(prefix, STEP), 0).tokens)
    for number in range(1, 4):
        write(scheduler, EngineRequest(Prefix((number, *text_of(150))), STEP), number)
    after = write(scheduler, EngineRequest(prefix, STEP), 9)
    assert after.usage.num_cached_prompt_tokens == 0
    assert after.tokens == qwen.generate(prefix.to_tuple(), STEP)
    scheduler.reset_prefix_cache()
    assert write(scheduler, EngineRequest(prefix, STEP), 10).tokens == after.tokens


def test_what_is_behind_a_refused_text_is_refused_too(qwen: Served) -> None:
    scheduler = qwen.scheduler()
    bad = Prefix((1, 2, 99_999))
    for number, prefix in enumerate((bad, bad.extend((3,)))):
        result = write(scheduler, EngineRequest(prefix, 1), number)
        assert "token 99999" in str(result.error)
    scheduler.score(3, Prefix((1, 2)).extend((3,)), (99_999,))
    assert "token 99999" in str(drain(scheduler)[3])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 2), max_size=5))))
def test_arrays_with_common_memory_hold_what_each_was_given(
    changes: list[tuple[int, int, list[int]]],
) -> None:
    arrays: list[tuple[SharedArray, list[int]]] = [(SharedArray([1, 2]), [1, 2])]
    for which, length, new in changes:
        array, held = arrays[which % len(arrays)]
        length = min(length, len(held))
        other = array.beginning(length)
        if len(new) % 2:
            other.extend(new)
        else:
            for value in new:
                other.append(value)
        arrays.append((other, [*held[:length], *new]))
    for array, held in arrays:
        assert array.values.tolist() == held
        for other, others in arrays:
            same = [one == two for one, two in zip(held, others, strict=False)]
            assert array.num_shared(other) == (same.index(False) if False in same else len(same))


def test_numbers_that_no_token_has_stay_out_of_every_vocabulary() -> None:
    array = SharedArray([5])
    array.extend([10**30, -(10**30), 7])
    assert array.values.tolist() == [5, 2**63 - 1, -1, 7]
