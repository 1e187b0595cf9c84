from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.segment import (
    BLANK_LINE,
    SENTENCE_AFTER_BYTES,
    Boundary,
    BoundaryScanner,
    StopScanner,
    split_steps,
)

# Blank lines and whole fences: of single characters they are rare.
PIECES = [*'ab1.\n \t{}[]"`\\,\r', "é", "😀", "\n\n", "\n\n", "\n\n", "```\n", "~~~\n", "<tool_call>\n"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("one\n\ntwo\n\nthree", ["one\n\n", "two\n\n", "three"]),
        ("\n\n\none\n\ntwo", ["\n\n\none\n\n", "two"]),
        ("one\n \t\ntwo", ["one\n \t\n", "two"]),
        ("one\r\n\r\ntwo", ["one\r\n\r\n", "two"]),
        ("one\ntwo", ["one\ntwo"]),
        ("one\n\n\n\ntwo", ["one\n\n", "\n\ntwo"]),
        ("one\n\n", ["one\n\n"]),
        ("one\n\n\n", ["one\n\n\n"]),
        ("\n\n", ["\n\n"]),
        ("", []),
        ("see:\n```py\na = 1\n\nb = 2\n```\n\nnext", ["see:\n```py\na = 1\n\nb = 2\n```\n\n", "next"]),
        ("```inline``` code\n\nnext", ["```inline``` code\n\n", "next"]),
        (
            '<tool_call>\n{"a": 1}\n\n</tool_call>\n\nnext',
            ['<tool_call>\n{"a": 1}\n\n</tool_call>\n\n', "next"],
        ),
        ('{\n  "a": [1,\n\n 2]\n}\n\nnext', ['{\n  "a": [1,\n\n 2]\n}\n\n', "next"]),
        ('{"a": "}\\"{"}\n\nnext', ['{"a": "}\\"{"}\n\n', "next"]),
        ("[0, 1) is half open\n\nnext", ["[0, 1) is half open\n\n", "next"]),
        ("the set {1, 2\n\nnext", ["the set {1, 2\n\n", "next"]),
        ("{[0,1), [1,2)}\n\nnext", ["{[0,1), [1,2)}\n\n", "next"]),
        ('{"x" | x > 0\n\nnext', ['{"x" | x > 0\n\n', "next"]),
        ('["Hello," he said.\n\nnext', ['["Hello," he said.\n\n', "next"]),
        ('{\n"a": so it is.\n\nnext', ['{\n"a": so it is.\n\n', "next"]),
        ("Use `<tool_call>` tags\n\nnext", ["Use `<tool_call>` tags\n\n", "next"]),
        ("Code: ```py\na\n\nb\n```\n\nnext", ["Code: ```py\na\n\nb\n```\n\n", "next"]),
        ("1. ```py\na\n\nb\n```\n\nnext", ["1. ```py\na\n\nb\n```\n\n", "next"]),
        ("~~~\na\n\nb\n~~~\n\nnext", ["~~~\na\n\nb\n~~~\n\n", "next"]),
        ("````\n```\n\n```\n\n````\n\nnext", ["````\n```\n\n```\n\n````\n\n", "next"]),
    ],
)
def test_text_is_cut_at_blank_lines_outside_of_blocks(text: str, steps: list[str]) -> None:
    assert split_steps(text) == steps


@given(TEXTS)
def test_steps_joined_are_the_text_and_none_is_blank(text: str) -> None:
    steps = split_steps(text)
    assert "".join(steps) == text
    assert not text.strip() or all(step.strip() for step in steps)


@given(TEXTS, st.lists(st.integers(1, 5), max_size=40))
def test_the_boundary_does_not_depend_on_how_text_is_cut_into_tokens(text: str, sizes: list[int]) -> None:
    data = text.encode()
    by_byte, by_token = BoundaryScanner(Boundary()), BoundaryScanner(Boundary())
    end = next((index + 1 for index, byte in enumerate(data) if by_byte.feed(bytes([byte]))), None)
    position = 0
    for size in [*sizes, len(data)]:
        token = data[position : position + max(size, 1)]
        position += len(token)
        if by_token.feed(token):
            assert end is not None
            assert position - len(token) < end <= position
            return
        if position >= len(data):
            break
    assert end is None


def test_a_boundary_may_straddle_two_tokens_and_a_token_may_run_past_it() -> None:
    straddling = BoundaryScanner(Boundary())
    assert not straddling.feed(b"done.\n")
    assert straddling.feed(b"\n")
    assert BoundaryScanner(Boundary()).feed(b"done.\n\nThe")


@given(TEXTS, st.integers(0, 80))
def test_a_step_that_is_cut_leaves_its_blocks_open_for_the_next(text: str, cut: int) -> None:
    whole, begun = BoundaryScanner(Boundary()), BoundaryScanner(Boundary())
    before, behind = text[:cut], text[cut:]
    if begun.feed(before.encode()):
        return
    rest = BoundaryScanner(Boundary(), begun.open_blocks)
    whole.feed(before.encode())
    has_content = False
    for character in behind:
        # Blank lines behind the cut belong to the step that begins there.
        has_content = has_content or bool(character.strip())
        ends, rest_ends = whole.feed(character.encode()), rest.feed(character.encode())
        assert rest_ends <= ends
        if ends:
            assert rest_ends == has_content
            return


def test_the_fence_of_a_cut_step_is_closed_by_the_next() -> None:
    begun = BoundaryScanner(Boundary())
    assert not begun.feed(b"see:\n```py\na = 1\n``")
    rest = BoundaryScanner(Boundary(), begun.open_blocks)
    assert not rest.feed(b"`\nand then\n")
    assert rest.feed(b"\n")


SENTENCE = "Then each of the seven friends pays for a third of what is left over."
LINE = f"{SENTENCE}\n"


def test_a_long_paragraph_is_cut_at_line_ends() -> None:
    assert split_steps(3 * LINE) == [2 * LINE, LINE]
    assert split_steps("One.\nTwo.\nThree.") == ["One.\nTwo.\nThree."]


def test_a_long_line_is_cut_at_sentence_ends() -> None:
    text = " ".join([SENTENCE] * 5)
    first, rest = split_steps(text)
    assert first == " ".join([SENTENCE] * 4)
    assert rest == f" {SENTENCE}"
    assert len(split_steps("每个朋友付三分之一。" * 20)) == 3


@pytest.mark.parametrize(
    "end", ["so it is 3.", "as Dr.", "i.e.", "or 1.5", "at 3 p.m.", "which is 12!", "so (a)."]
)
def test_a_stop_that_may_go_on_ends_no_sentence(end: str) -> None:
    text = f"{'word ' * 60}{end}"
    assert split_steps(f"{text} more") == [f"{text} more"]


@pytest.mark.parametrize(
    "block",
    [
        "```py\n" + "value = other.name\n" * 20 + "```",
        "<tool_call>" + "Call this function. " * 20 + "</tool_call>",
        "{" + '\n"key": "Some text. More text."' * 20 + "\n}",
        "\\[\n" + "a = b + c\n" * 30 + "\\]",
        "$$\n" + "a = b + c\n" * 30 + "$$",
        "\\[\n" + "a + b \\\\[6pt]\nc + d\n" * 15 + "\\]",
        f"Therefore, {'from what was said above, ' * 6}we find:",
    ],
)
def test_blocks_formulas_and_what_a_line_announces_stay_whole(block: str) -> None:
    first = split_steps(f"{block}\nend")[0]
    assert first.startswith(block)


def test_a_formula_that_is_cut_is_closed_by_the_next_step() -> None:
    begun = BoundaryScanner(Boundary())
    assert not begun.feed(b"So:\n$$\na = b\n")
    rest = BoundaryScanner(Boundary(), begun.open_blocks)
    assert not rest.feed(b"a = b + c\n" * 30)
    assert rest.feed(b"$$\n")


def test_what_looks_like_a_formula_in_code_is_none() -> None:
    code = "```sh\nkill $$\n```\n"
    assert split_steps(code + 3 * LINE) == [code + 2 * LINE, LINE]


def test_a_formula_that_is_never_closed_ends_at_a_blank_line() -> None:
    assert split_steps("\\[ a = b\n\nnext") == ["\\[ a = b\n\n", "next"]


def test_blank_lines_alone_are_boundaries_where_that_is_asked_for() -> None:
    assert split_steps(9 * LINE, Boundary(BLANK_LINE)) == [9 * LINE]


@given(
    st.lists(st.sampled_from([LINE, f"{SENTENCE} ", "\n", "It is $5.\n", "1. **Sum:** 3.5\n"]), max_size=30)
)
def test_no_step_of_prose_is_longer_than_a_sentence_beyond_the_limit(parts: list[str]) -> None:
    steps = split_steps("".join(parts))
    assert "".join(steps) == "".join(parts)
    assert all(len(step) <= SENTENCE_AFTER_BYTES + 3 * len(SENTENCE) for step in steps)


def test_a_literal_delimiter_is_matched_as_it_stands() -> None:
    assert split_steps("a;b;;c", Boundary(delimiter=";;")) == ["a;b;;", "c"]
    assert split_steps("one\n\ntwo|three", Boundary(delimiter="|")) == ["one\n\ntwo|", "three"]


@pytest.mark.parametrize("block", ['<tool_call>{"q": "x. y"}</tool_call>', '{"q": "x. y"}'])
def test_a_literal_delimiter_within_a_block_of_one_line_is_none(block: str) -> None:
    text = f"{block}. Then. End"
    assert split_steps(text, Boundary(delimiter=". ")) == [f"{block}. ", "Then. ", "End"]


def test_long_lines_take_linear_time() -> None:
    """A search that tried every split of this line would take minutes."""
    for line in ("a" * 50_000, "[" * 50_000, "`a" * 25_000, '["' + "a" * 50_000):
        assert split_steps(f"{line}\n\nnext", Boundary(delimiter="\n\n"))


def test_an_empty_delimiter_is_refused() -> None:
    with pytest.raises(ValueError, match="delimiter is empty"):
        Boundary(delimiter="")


@given(TEXTS, st.lists(TEXTS.filter(bool), min_size=1, max_size=3), st.integers(1, 7))
def test_a_stop_is_found_where_it_first_occurs_whatever_the_chunks(
    text: str, stops: list[str], size: int
) -> None:
    scanner = StopScanner(tuple(stops))
    expected = min((text.find(stop) for stop in stops if stop in text), default=None)
    for start in range(0, len(text), size):
        hit = scanner.feed(text[start : start + size])
        if hit is not None:
            # Of two stops, the one complete first is found first, even where the other began earlier.
            assert text.startswith(hit.stop, hit.start)
            assert hit.start + len(hit.stop) <= start + size
            assert expected is not None
            return
    assert expected is None


def test_a_stop_that_began_in_the_context_is_found() -> None:
    hit = StopScanner(("Observation:",), context="\n\nObser").feed("vation: 3")
    assert hit is not None
    assert hit.start == 2


def test_a_stop_that_lies_in_the_context_is_none() -> None:
    scanner = StopScanner(("\n", "Observation:"), context="four.\n</th")
    assert scanner.feed("It is 4.") is None
    assert scanner.feed(" Yes\nNo") == (len("four.\n</thIt is 4. Yes"), "\n")


@given(TEXTS, TEXTS.filter(bool))
def test_text_not_held_back_can_never_become_part_of_a_stop(text: str, stop: str) -> None:
    scanner = StopScanner((stop,))
    if scanner.feed(text) is None:
        shown = len(text) - scanner.held_back()
        for split in range(len(stop)):
            assert (text + stop[split:]).find(stop) < 0 or (text + stop[split:]).find(stop) >= shown
