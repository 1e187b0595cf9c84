"""Both sides of the pipe have the same prefixes, as long as one side holds them."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.worker.prefixes import KnownPrefixes, ToldPrefixes
from reason_spec.types import Prefix

pytestmark = pytest.mark.usefixtures("quick_collections")


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 9), max_size=4))), st.integers(0, 20))
def test_the_worker_finds_what_was_told(nodes: list[tuple[int, list[int]]], kept: int) -> None:
    told, known = ToldPrefixes(), KnownPrefixes()
    prefixes = [Prefix((1, 2), owner="ana")]
    for parent, tokens in nodes:
        prefixes.append(prefixes[parent % len(prefixes)].extend(tuple(tokens)))
    for prefix in prefixes[::-1]:
        parts = told.tell(prefix)
        assert (parts.known is None) == (len(known) == 0)
        found = known.find(parts)
        assert (found.to_tuple(), found.owner) == (prefix.to_tuple(), "ana")
        assert known.find(told.tell(prefix)) is found
    assert len(known) == len(prefixes)
    left = prefixes[kept % len(prefixes)]
    num_left = len(list(left.nodes()))
    del prefixes, prefix
    gc.collect()
    known.forget(told.take_gone())
    assert len(known) == num_left
    assert known.find(told.tell(left)).to_tuple() == left.to_tuple()
    assert told.tell(left.extend((7,))).parts[0][1] == (7,)
