"""Arguments of a call that is still being written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.tools_ahead.calls import normal_json
from reason_spec.tools_ahead.streaming import complete_arguments

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.text(max_size=4), SCALARS, max_size=4), st.sampled_from([None, 2]))
def test_every_beginning_gives_complete_arguments_of_the_whole(
    arguments: dict[str, object], indent: int | None
) -> None:
    text = json.dumps(arguments, indent=indent)
    whole = {key: normal_json(value) for key, value in arguments.items()}
    sizes = []
    for size in range(len(text) + 1):
        found = complete_arguments(text[:size])
        assert found.items() <= whole.items()
        sizes.append(len(found))
    assert sizes == sorted(sizes)
    assert complete_arguments(text) == whole


def test_a_number_is_complete_only_when_something_follows() -> None:
    assert complete_arguments('{"n": 12') == {}
    assert complete_arguments('{"n": 12,') == {"n": "12"}
    assert complete_arguments("no object") == {}


def test_arguments_that_are_nested_without_end_are_incomplete() -> None:
    assert complete_arguments('{"a": 1, "b": ' + "[" * 100_000) == {"a": "1"}
    deep = "[" * 5_000 + "]" * 5_000
    assert complete_arguments('{"a": 1, "b": ' + deep + "}") == {"a": "1"}
