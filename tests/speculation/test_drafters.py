"""What the drafters guess."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.drafters import HintDrafter, look_up

texts = st.lists(st.integers(0, 3), max_size=60)


def test_a_hint_is_followed_from_the_start() -> None:
    drafter = HintDrafter()
    drafter.offer((1, 2, 3, 4))
    assert drafter.propose(10) == [1, 2, 3, 4]
    drafter.extend([1, 2])
    assert drafter.propose(1) == [3]
    assert drafter.propose(10) == [3, 4]


def test_a_late_hint_goes_on_behind_what_is_written() -> None:
    drafter = HintDrafter()
    drafter.extend([1, 2])
    drafter.offer((1, 2, 3, 4))
    assert drafter.propose(10) == [3, 4]


def test_a_hint_that_parted_is_silent_until_it_is_aligned_again() -> None:
    drafter = HintDrafter()
    drafter.offer((1, 2, 3, 4, 5, 6, 7, 8))
    drafter.extend([1, 9])
    assert drafter.propose(10) == []
    drafter.extend([4, 5])
    assert drafter.propose(10) == []
    drafter.extend([6])
    assert drafter.propose(10) == [7, 8]


def test_a_hint_is_aligned_forwards_only() -> None:
    drafter = HintDrafter()
    drafter.offer((1, 2, 3, 4, 5, 6))
    drafter.extend([1, 2, 3, 4, 5])
    drafter.extend([9, 1, 2, 3])
    assert drafter.propose(10) == []


def test_a_late_hint_that_disagrees_is_aligned_by_what_is_written() -> None:
    drafter = HintDrafter()
    drafter.extend([9, 3, 4, 5])
    drafter.offer((1, 2, 3, 4, 5, 6))
    assert drafter.propose(10) == [6]


def test_a_new_hint_replaces_the_old_one() -> None:
    drafter = HintDrafter()
    drafter.offer((1, 2, 3))
    drafter.extend([1])
    drafter.offer((1, 7, 8))
    assert drafter.propose(10) == [7, 8]
    drafter.offer(())
    assert drafter.propose(10) == []


def test_a_hint_may_begin_further_on() -> None:
    drafter = HintDrafter()
    drafter.extend([9, 9])
    drafter.offer((1, 2, 3), start=3)
    assert drafter.propose(10) == []
    drafter.extend([9])
    assert drafter.propose(10) == [1, 2, 3]
    drafter.extend([1])
    assert drafter.propose(10) == [2, 3]


@given(texts, texts, texts, st.integers(0, 5))
def test_a_hint_from_a_place_on_is_the_hint_from_the_start(
    before: list[int], hint: list[int], more: list[int], num_late: int
) -> None:
    """What was written before the place agrees with both, so they propose the same behind it."""
    whole, part = HintDrafter(), HintDrafter()
    late = before[len(before) - num_late :] if num_late else []
    for drafter in (whole, part):
        drafter.extend(before[: len(before) - len(late)])
    whole.offer((*before, *hint))
    part.offer(tuple(hint), start=len(before))
    for drafter in (whole, part):
        drafter.extend(late)
    assert part.propose(9) == whole.propose(9) == hint[:9]
    agreed = hint[: len(more)]
    for drafter in (whole, part):
        drafter.extend(agreed)
    assert part.propose(9) == whole.propose(9)


@given(texts, texts)
def test_a_right_hint_is_always_proposed_whole(written: list[int], rest: list[int]) -> None:
    drafter = HintDrafter()
    drafter.offer((*written, *rest))
    drafter.extend(written)
    assert drafter.propose(100) == rest


def naive_lookup(tokens: list[int], max_match: int, min_match: int) -> int | None:
    for length in range(max_match, min_match - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if len(tokens) > length and tokens[start : start + length] == tokens[-length:]:
                return start + length
    return None


@given(texts, st.integers(1, 9))
def test_prompt_lookup_finds_the_latest_longest_match(text: list[int], budget: int) -> None:
    start = naive_lookup(text, 3, 2)
    proposed = look_up(np.array(text, dtype=np.int64), budget)
    if start is None:
        assert proposed == []
    else:
        assert proposed[: len(text) - start] == text[start : start + budget]
        assert 1 <= len(proposed) <= budget


def test_prompt_lookup_continues_a_period() -> None:
    assert look_up(np.array([9, 1, 2, 3, 1, 2, 3, 1, 2]), 7) == [3, 1, 2, 3, 1, 2, 3]
    assert look_up(np.array([1, 2, 3, 9, 1, 2]), 7) == [3, 9, 1, 2]
