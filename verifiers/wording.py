"""Reads the words of a step: names, comparisons, clauses, and whom the numbers belong to.

Two steps and their context are read together, because the one tells what a capital means in the other.
What the readings forbid to take for the same is said in ``conflicts`` and ``consistency``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NamedTuple

from reason_spec.verifiers.lexicon import (
    AFFIRMATIONS,
    COMPARATIVES,
    FILLERS,
    NEGATIONS,
    OPENERS,
    OPERATION_WORDS,
    RETRACTED,
    RETRACTIONS,
    is_filler,
    stem,
)
from reason_spec.verifiers.mathtext import tokenize
from reason_spec.verifiers.scanner import Token

_RETRACTING: Final = RETRACTIONS | RETRACTED | AFFIRMATIONS | FILLERS
_CLAUSE_WORDS: Final = frozenset("so and while but because since whereas then therefore thus hence".split())


class Ordering(NamedTuple):
    """``low`` is less than ``high`` on ``axis``, whichever way round the step says it."""

    axis: str
    low: str
    high: str

    @property
    def reversed(self) -> Ordering:
        return Ordering(self.axis, self.high, self.low)


@dataclass(frozen=True)
class Wording:
    """The words of one step, read against the vocabulary of both steps and their context."""

    tokens: tuple[Token, ...]
    names: frozenset[str]
    """Capitalised words that name somebody or something."""
    orderings: frozenset[Ordering]
    ordered: frozenset[int]
    """Indices of the tokens whose order an ``Ordering`` already states."""
    differences: frozenset[Fraction] = frozenset()
    """Numbers by which an ``Ordering`` says that its sides differ."""
    retracts: bool = False
    """Whether the step begins by taking back what was said before (``Wait, that is wrong.``); ``tokens`` are
    what follows."""

    def is_name(self, token: Token) -> bool:
        return token.kind == "word" and token.capital and token.text in self.names

    def content(self) -> tuple[str, ...]:
        """Return the stems of the names and of the words that are no fillers, in order."""
        return tuple(
            stem(token.text)
            for token in self.tokens
            if token.kind == "word" and (self.is_name(token) or not is_filler(token.text))
        )

    def operations(self) -> frozenset[str]:
        stems = (stem(token.text) for token in self.tokens if token.kind == "word")
        return frozenset(OPERATION_WORDS[word] for word in stems if word in OPERATION_WORDS)

    def clauses(self) -> Iterator[range]:
        return self._split(
            lambda token: (token.kind == "break" and token.text != "") or token.text in _CLAUSE_WORDS
        )

    def _split(self, ends: Callable[[Token], bool]) -> Iterator[range]:
        start = 0
        for index, token in enumerate(self.tokens):
            if ends(token):
                if index > start:
                    yield range(start, index)
                start = index + 1
        if start < len(self.tokens):
            yield range(start, len(self.tokens))


class WordingPair(NamedTuple):
    """Two steps and what they follow, read with one vocabulary."""

    drafted: Wording
    target: Wording
    context: Wording


def read_wording(drafted: str, target: str, context: str = "") -> WordingPair:
    """Read two steps together: a word that one of them writes in lower case is nobody's name."""
    openings = [_skip_retraction(tokenize(text)) for text in (drafted, target, context)]
    streams = [_join_phrases(opening.rest) for opening in openings]
    everything = [token for stream in streams for token in stream]
    common = frozenset(t.text for t in everything if t.kind == "word" and not t.capital)
    certain = frozenset(
        t.text for t in everything if t.kind == "word" and t.capital and (not t.initial or t.possessive)
    )
    readings = [
        replace(_read(tokens, common, certain), retracts=opening.retracts)
        for opening, tokens in zip(openings, streams, strict=True)
    ]
    return WordingPair(readings[0], readings[1], readings[2])


class _Opening(NamedTuple):
    retracts: bool
    rest: tuple[Token, ...]


def _skip_retraction(tokens: tuple[Token, ...]) -> _Opening:
    """Take off the clauses at the start that only take back what was said, however they put it."""
    start, retracts = 0, False
    while start < len(tokens):
        end = next((i for i in range(start, len(tokens)) if tokens[i].kind == "break"), len(tokens))
        stems = frozenset(stem(token.text) for token in tokens[start:end])
        if any(token.kind != "word" for token in tokens[start:end]) or not stems <= _RETRACTING:
            break
        if stems & AFFIRMATIONS and not stems & NEGATIONS:
            return _Opening(False, tokens)
        retracts = retracts or bool(stems & RETRACTIONS)
        start = end + 1
    return _Opening(True, tokens[start:]) if retracts else _Opening(False, tokens)


def _join_phrases(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Join ``at least``, ``at most`` and ``each friend``, which owns things as a name does."""
    out: list[Token] = []
    for token in tokens:
        previous = out[-1] if out else None
        if previous is None or previous.kind != "word" or token.kind != "word":
            out.append(token)
        elif previous.text == "at" and token.text in ("least", "most"):
            out[-1] = Token("word", "at" + token.text)
        elif previous.text == "each" and stem(token.text) not in FILLERS and token.text != "one":
            out[-1] = Token("word", f"each {stem(token.text)}", capital=True)
        else:
            out.append(token)
    return tuple(out)


def _read(tokens: tuple[Token, ...], common: frozenset[str], certain: frozenset[str]) -> Wording:
    names = frozenset(t.text for t in tokens if t.kind == "word" and t.capital and _names(t, common, certain))
    bare = Wording(tokens, names, frozenset(), frozenset())
    orderings: set[Ordering] = set()
    ordered: set[int] = set()
    differences: set[Fraction] = set()
    for clause in bare.clauses():
        found = _ordering(bare, clause) or _removal(bare, clause)
        if found is not None:
            orderings.add(found.ordering)
            ordered.update(found.indices)
            differences.update(value for i in clause if (value := tokens[i].value) is not None)
    return Wording(tokens, names, frozenset(orderings), frozenset(ordered), frozenset(differences))


def _names(token: Token, common: frozenset[str], certain: frozenset[str]) -> bool:
    if token.text in common or stem(token.text) in OPENERS or len(token.text) < 2:
        return False
    if token.text in certain:
        return True
    return not token.text.endswith(("ing", "ly"))


class _FoundOrdering(NamedTuple):
    ordering: Ordering
    indices: tuple[int, ...]


def _ordering(wording: Wording, clause: range) -> _FoundOrdering | None:
    """Read ``x has 8 more than y``, ``y is younger than x``, ``x has 3 times as many as y``."""
    tokens = wording.tokens
    names = [index for index in clause if wording.is_name(tokens[index])]
    if len({tokens[index].text for index in names}) != 2:
        return None
    pivot = next((i for i in clause if tokens[i].text == "than"), None)
    comparative = next((i for i in clause if stem(tokens[i].text) in COMPARATIVES), None)
    if pivot is not None and comparative is not None and comparative < pivot:
        axis, sign = COMPARATIVES[stem(tokens[comparative].text)]
    else:
        pivot = next((i for i in clause if tokens[i].text in ("many", "much")), None)
        comparative = pivot
        ratio = next((tokens[i].value for i in clause if tokens[i].value is not None), None)
        if pivot is None or ratio is None or not any(tokens[i].text == "as" for i in clause if i < pivot):
            return None
        axis, sign = "amount", 1 if ratio > 1 else -1
    before = [index for index in names if index < pivot]
    after = [index for index in names if index > pivot]
    if len(before) != 1 or len(after) != 1:
        return None
    subject, standard = tokens[before[0]].text, tokens[after[0]].text
    low, high = (standard, subject) if sign > 0 else (subject, standard)
    assert comparative is not None
    times = tuple(i for i in clause if tokens[i].text == "times")
    return _FoundOrdering(Ordering(axis, low, high), (before[0], comparative, after[0], *times))


def _removal(wording: Wording, clause: range) -> _FoundOrdering | None:
    """Read ``take x from y`` and ``subtracting x from y``: x is the less."""
    tokens = wording.tokens
    verb = next((i for i in clause if stem(tokens[i].text) in ("take", "tak", "subtract")), None)
    pivot = next((i for i in clause if verb is not None and i > verb and tokens[i].text == "from"), None)
    names = [index for index in clause if wording.is_name(tokens[index])]
    if verb is None or pivot is None or len(names) != 2 or not verb < names[0] < pivot < names[1]:
        return None
    return _FoundOrdering(
        Ordering("amount", tokens[names[0]].text, tokens[names[1]].text), (names[0], verb, names[1])
    )


def is_operand(wording: Wording, index: int) -> bool:
    """Whether an operator joins the number; a right-hand side alone (``= 55 books``) is no operand."""
    before = wording.tokens[index - 1] if index else None
    after = wording.tokens[index + 1] if index + 1 < len(wording.tokens) else None
    return (before is not None and before.kind == "operator") or (
        after is not None and after.kind in ("operator", "relation")
    )


def owner_of_result(wording: Wording) -> str | None:
    """Return the first name of the clause that holds the last number, None without one."""
    last = max((i for i, t in enumerate(wording.tokens) if t.value is not None and not t.weak), default=-1)
    for clause in wording.clauses():
        if last in clause:
            names = [wording.tokens[i].text for i in clause if wording.is_name(wording.tokens[i])]
            return names[0] if names else None
    return None


def same_content(a: Wording, b: Wording) -> bool:
    """Whether both steps use the same words in the same order, fillers and notation aside."""
    return a.content() == b.content() and Counter(map(_name_or_none, _names_in(a))) == Counter(
        map(_name_or_none, _names_in(b))
    )


def _names_in(wording: Wording) -> list[Token]:
    return [token for token in wording.tokens if wording.is_name(token)]


def _name_or_none(token: Token) -> str:
    return token.text
