"""Reads the words of a step: names, comparisons, clauses, and whom the numbers belong to.

Two steps and their context are read together, because the one tells what a capital means in the other.
What the readings forbid to take for the same is said in ``conflicts`` and ``consistency``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from reason_spec.verifiers.lexicon import (
    AFFIRMATIONS,
    ANY_UNITS,
    COMPARATIVES,
    FILLERS,
    IRREGULAR_PLURALS,
    NEGATIONS,
    OPENERS,
    OPERATION_WORDS,
    RETRACTED,
    RETRACTIONS,
    is_filler,
    stem,
)
from reason_spec.verifiers.mathtext import split_paragraphs, tokenize
from reason_spec.verifiers.scanner import Token

_RETRACTING: Final = RETRACTIONS | RETRACTED | AFFIRMATIONS | FILLERS
_CLAUSE_WORDS: Final = frozenset("so and while but because since whereas then therefore thus hence".split())


_DOLLARS: Final = frozenset({stem("dollars")})
_DEGREES: Final = frozenset({stem("degrees")})


class Ordering(NamedTuple):
    """``low`` is less than ``high`` on ``axis``, whichever way round the step says it."""

    axis: str
    low: str
    high: str

    @property
    def reversed(self) -> Ordering:
        return Ordering(self.axis, self.high, self.low)


@dataclass(eq=False)
class Binding:
    """Whose a number is, and what it counts."""

    names: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Prose:
    """The words of a text, as far as no other text is needed to read them.

    ``lower`` are the words in lower case, ``certain`` those whose capital is not owed to the start of a
    sentence, ``capitals`` those that may be names.
    """

    tokens: tuple[Token, ...]
    retracts: bool
    stems: tuple[str, ...]
    clauses: tuple[range, ...]
    lower: frozenset[str]
    certain: frozenset[str]
    capitals: frozenset[str]

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """The stems of the words."""
        pairs = zip(self.tokens, self.stems, strict=True)
        return frozenset(word for token, word in pairs if token.kind == "word")

    @cached_property
    def units(self) -> dict[Fraction, frozenset[str]]:
        """What each number among the words counts."""
        units: dict[Fraction, frozenset[str]] = {}
        for clause in self.clauses:
            for index in clause:
                token = self.tokens[index]
                value = token.value
                if value is None:
                    continue
                if token.money:
                    counted = _DOLLARS
                elif index + 1 < clause.stop and self.tokens[index + 1].text == "°":
                    counted = _DEGREES
                elif is_operand(self, index):
                    continue
                else:
                    counted = _units(self, range(index + 1, min(index + 4, clause.stop)))
                units[value] = units.get(value, frozenset()) | counted
        return units


@dataclass(frozen=True, eq=False)
class Wording(Prose):
    """The words of one step, read against the vocabulary of both steps and their context."""

    names: frozenset[str] = frozenset()
    """Capitalised words that name somebody or something."""
    orderings: frozenset[Ordering] = frozenset()
    ordered: frozenset[int] = frozenset()
    """Indices of the tokens whose order an ``Ordering`` already states."""
    differences: frozenset[Fraction] = frozenset()
    """Numbers by which an ``Ordering`` says that its sides differ."""

    def is_name(self, token: Token) -> bool:
        return token.capital and token.kind == "word" and token.text in self.names

    def is_thing(self, token: Token) -> bool:
        """Whether a token names somebody, or something by a letter."""
        return token.kind == "symbol" or self.is_name(token)

    @cached_property
    def content(self) -> tuple[str, ...]:
        """The stems of the names and of the words that are no fillers, in order."""
        return tuple(
            word
            for token, word in zip(self.tokens, self.stems, strict=True)
            if token.kind == "word" and (self.is_name(token) or not is_filler(token.text))
        )

    @cached_property
    def operations(self) -> frozenset[str]:
        """The operations that words name."""
        return frozenset(OPERATION_WORDS[word] for word in self.vocabulary if word in OPERATION_WORDS)

    @cached_property
    def bindings(self) -> dict[Fraction, Binding]:
        """Each number that stands among words, with the names of its clause and the noun behind it.

        Clauses with an ``Ordering`` bind no names: either name may be called the owner of the difference.
        """
        bindings = {value: Binding(units=units) for value, units in self.units.items()}
        for clause in self.clauses:
            for index, names in _names_of_numbers(self, clause).items():
                value = self.tokens[index].value
                if value is not None:
                    bindings.setdefault(value, Binding()).names |= names
        return bindings


@dataclass(frozen=True, eq=False)
class Background:
    """The words of what both steps follow, paragraph by paragraph."""

    lower: frozenset[str]
    certain: frozenset[str]
    parts: tuple[Prose, ...]

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """The stems of the words."""
        return frozenset[str]().union(*(part.vocabulary for part in self.parts))

    @cached_property
    def units(self) -> dict[Fraction, frozenset[str]]:
        """What each number among the words counts."""
        units: dict[Fraction, frozenset[str]] = {}
        for part in self.parts:
            for value, counted in part.units.items():
                units[value] = units.get(value, frozenset()) | counted
        return units


class WordingPair(NamedTuple):
    """Two steps and what they follow, read with one vocabulary."""

    drafted: Wording
    target: Wording
    context: Background


@lru_cache(maxsize=256)
def read_wording(drafted: str, target: str, context: str = "") -> WordingPair:
    """Read two steps together: a word that one of them writes in lower case is nobody's name."""
    texts = drafted, target
    background = _read_background(context)
    steps = [_read_prose(text) for text in texts]
    common = background.lower.union(*(step.lower for step in steps))
    certain = background.certain.union(*(step.certain for step in steps))
    readings = [
        _read(
            text,
            frozenset(
                word
                for word in step.capitals
                if word not in common and (word in certain or not word.endswith(("ing", "ly")))
            ),
        )
        for text, step in zip(texts, steps, strict=True)
    ]
    return WordingPair(readings[0], readings[1], background)


@lru_cache(maxsize=256)
def _read_background(context: str) -> Background:
    # Only the very start of a context can take back what was said before it.
    opening = _skip_retraction(tokenize(context))
    if opening.retracts:
        parts: tuple[Prose, ...] = (_prose(opening.rest),)
    else:
        parts = tuple(_read_paragraph(paragraph) for paragraph in split_paragraphs(context))
    return Background(
        frozenset[str]().union(*(part.lower for part in parts)),
        frozenset[str]().union(*(part.certain for part in parts)),
        parts,
    )


@lru_cache(maxsize=4096)
def _read_prose(text: str) -> Prose:
    opening = _skip_retraction(tokenize(text))
    return _prose(opening.rest, opening.retracts)


@lru_cache(maxsize=4096)
def _read_paragraph(text: str) -> Prose:
    prose = _read_prose(text)
    return _prose(tokenize(text)) if prose.retracts else prose


def _prose(tokens: tuple[Token, ...], retracts: bool = False) -> Prose:
    tokens = _join_phrases(tokens)
    words = [token for token in tokens if token.kind == "word"]
    return Prose(
        tokens,
        retracts,
        stems=tuple(stem(token.text) for token in tokens),
        clauses=tuple(_clauses(tokens)),
        lower=frozenset(token.text for token in words if not token.capital),
        certain=frozenset(
            token.text for token in words if token.capital and (not token.initial or token.possessive)
        ),
        capitals=frozenset(
            token.text
            for token in words
            if token.capital and len(token.text) > 1 and stem(token.text) not in OPENERS
        ),
    )


def _clauses(tokens: Sequence[Token]) -> Iterator[range]:
    start = 0
    for index, token in enumerate(tokens):
        if (token.kind == "break" and token.text != "") or token.text in _CLAUSE_WORDS:
            if index > start:
                yield range(start, index)
            start = index + 1
    if start < len(tokens):
        yield range(start, len(tokens))


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


_BOUNDS: Final = {
    (negation, comparative): bound
    for negation in ("no", "not")
    for comparative, bound in (
        *((word, "atmost") for word in ("more", "greater", "larger", "higher", "longer")),
        *((word, "atleast") for word in ("less", "fewer", "smaller", "lower", "shorter")),
    )
}
_OR_MORE: Final = {
    **dict.fromkeys(("more", "greater", "above", "higher"), "atleast"),
    **dict.fromkeys(("less", "fewer", "below", "lower"), "atmost"),
}


def _counts_something(tokens: Sequence[Token]) -> bool:
    """Whether a number stands before the last token, with at most two words between."""
    return any(token.value is not None for token in tokens[-4:-1])


def _join_phrases(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Join ``at least``, ``no more than`` and ``each friend``, which owns things as a name does."""
    out: list[Token] = []
    for token in tokens:
        previous = out[-1] if out else None
        if previous is None or previous.kind != "word" or token.kind != "word":
            out.append(token)
        elif token.text == "than" and len(out) > 1 and (bound := _BOUNDS.get((out[-2].text, previous.text))):
            out[-2:] = [Token("word", bound)]
        elif previous.text == "or" and len(out) > 1 and token.text in _OR_MORE and _counts_something(out):
            out[-1] = Token("word", _OR_MORE[token.text])
        elif previous.text in ("square", "cube") and token.text in ("root", "roots"):
            out[-1] = Token("word", f"{previous.text}root")
        elif previous.text == "at" and token.text in ("least", "most"):
            out[-1] = Token("word", "at" + token.text)
        elif previous.text == "each" and stem(token.text) not in FILLERS and token.text != "one":
            out[-1] = Token("word", f"each {stem(token.text)}", capital=True)
        else:
            out.append(token)
    return tuple(out)


@lru_cache(maxsize=4096)
def _read(text: str, names: frozenset[str]) -> Wording:
    prose = _read_prose(text)
    plain = (
        prose.tokens,
        prose.retracts,
        prose.stems,
        prose.clauses,
        prose.lower,
        prose.certain,
        prose.capitals,
        names,
    )
    bare = Wording(*plain)
    orderings: set[Ordering] = set()
    ordered: set[int] = set()
    differences: set[Fraction] = set()
    things = len(names) + len({token.text for token in prose.tokens if token.kind == "symbol"})
    for clause in prose.clauses if things > 1 else ():
        found = _ordering(bare, clause) or _removal(bare, clause)
        if found is not None:
            orderings.add(found.ordering)
            ordered.update(found.indices)
            differences.update(value for i in clause if (value := prose.tokens[i].value) is not None)
    if not orderings:
        return bare
    return Wording(*plain, frozenset(orderings), frozenset(ordered), frozenset(differences))


class _FoundOrdering(NamedTuple):
    ordering: Ordering
    indices: tuple[int, ...]


def _ordering(wording: Wording, clause: range) -> _FoundOrdering | None:
    """Read ``x has 8 more than y``, ``y is younger than x``, ``x has 3 times as many as y``."""
    tokens, stems = wording.tokens, wording.stems
    names = [index for index in clause if wording.is_thing(tokens[index])]
    if len({tokens[index].text for index in names}) != 2:
        return None
    pivot = next((i for i in clause if tokens[i].text == "than"), None)
    comparative = next((i for i in clause if stems[i] in COMPARATIVES), None)
    if pivot is not None and comparative is not None and comparative < pivot:
        axis, sign = COMPARATIVES[stems[comparative]]
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
    verb = next((i for i in clause if wording.stems[i] in ("take", "tak", "subtract")), None)
    pivot = next((i for i in clause if verb is not None and i > verb and tokens[i].text == "from"), None)
    names = [index for index in clause if wording.is_name(tokens[index])]
    if verb is None or pivot is None or len(names) != 2 or not verb < names[0] < pivot < names[1]:
        return None
    return _FoundOrdering(
        Ordering("amount", tokens[names[0]].text, tokens[names[1]].text), (names[0], verb, names[1])
    )


def is_operand(wording: Prose, index: int) -> bool:
    """Whether an operator joins the number; a right-hand side alone (``= 55 books``) is no operand."""
    before = wording.tokens[index - 1] if index else None
    after = wording.tokens[index + 1] if index + 1 < len(wording.tokens) else None
    return (before is not None and before.kind == "operator") or (
        after is not None and after.kind in ("operator", "relation")
    )


def owner_of_result(wording: Wording) -> str | None:
    """Return the first name of the clause that holds the last number, None without one."""
    last = max((i for i, t in enumerate(wording.tokens) if t.value is not None and not t.weak), default=-1)
    for clause in wording.clauses:
        if last in clause:
            names = [wording.tokens[i].text for i in clause if wording.is_name(wording.tokens[i])]
            return names[0] if names else None
    return None


def same_content(a: Wording, b: Wording) -> bool:
    """Whether both steps use the same words in the same order, fillers and notation aside."""
    return a.content == b.content and Counter(map(_name_or_none, _names_in(a))) == Counter(
        map(_name_or_none, _names_in(b))
    )


def _names_in(wording: Wording) -> list[Token]:
    return [token for token in wording.tokens if wording.is_name(token)]


def _name_or_none(token: Token) -> str:
    return token.text


def _names_of_numbers(wording: Wording, clause: range) -> dict[int, frozenset[str]]:
    """Map the numbers of a clause to their names: its own where they take turns, else all of the clause."""
    tokens = wording.tokens
    if not wording.ordered.isdisjoint(clause):
        return {}
    names = [i for i in clause if wording.is_name(tokens[i])]
    numbers = [i for i in clause if tokens[i].value is not None and not is_operand(wording, i)]
    if len(names) == len(numbers) and len({tokens[i].text for i in names}) > 1:
        for first, second in ((names, numbers), (numbers, names)):
            turns = [i for pair in zip(first, second, strict=True) for i in pair]
            if turns == sorted(turns):
                pairs = zip(numbers, names, strict=True)
                return {number: frozenset({tokens[name].text}) for number, name in pairs}
    everybody = frozenset(tokens[i].text for i in names)
    return dict.fromkeys(numbers, everybody)


def _units(prose: Prose, indices: range) -> frozenset[str]:
    power = ""
    for index in indices:
        token = prose.tokens[index]
        if token.kind != "word" or token.capital:
            break
        word = prose.stems[index]
        if word in _POWERS:
            power = f"{word} "
            continue
        plural = token.text.endswith("s") and not token.text.endswith(("ss", "us", "is", "as"))
        counts = plural and word not in FILLERS and word not in OPERATION_WORDS
        if counts or token.text in IRREGULAR_PLURALS:
            return frozenset({power + word}) if power else frozenset({word}) - ANY_UNITS
    return frozenset()


_POWERS: Final = frozenset({stem("square"), stem("cubic")})
