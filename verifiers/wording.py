"""Word-level guards: names, directions, negations and what belongs to whom must agree.

Sentence embeddings hardly move when two names are swapped, ``more`` becomes ``less`` or a ``not`` is
added. Each guard here looks at one such change and returns the reason why the two steps cannot be
taken for the same, or None. The guards refuse in doubt: a lost acceptance costs time, a wrong one
costs the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fractions import Fraction
from typing import Final, NamedTuple

from reason_spec.verifiers.lexicon import (
    AMOUNT_DOWN,
    AMOUNT_UP,
    COMPARATIVES,
    FILLERS,
    IRREGULAR_PLURALS,
    NEGATIONS,
    OPENERS,
    OPERATION_WORDS,
    POLES,
    stem,
)
from reason_spec.verifiers.mathtext import Token, tokenize

_CLAUSE_WORDS: Final = frozenset("so and while but because since whereas then therefore thus hence".split())
_MAX_ALIGNED: Final = 1200


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

    def is_name(self, token: Token) -> bool:
        return token.kind == "word" and token.capital and token.text in self.names

    def content(self) -> tuple[str, ...]:
        """Return the stems of the words that are no fillers, in order."""
        stems = (stem(token.text) for token in self.tokens if token.kind == "word")
        return tuple(word for word in stems if word not in FILLERS)

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
    streams = [_join_phrases(tokenize(text)) for text in (drafted, target, context)]
    everything = [token for stream in streams for token in stream]
    common = frozenset(t.text for t in everything if t.kind == "word" and not t.capital)
    certain = frozenset(
        t.text for t in everything if t.kind == "word" and t.capital and (not t.initial or t.possessive)
    )
    readings = [_read(tokens, common, certain) for tokens in streams]
    return WordingPair(readings[0], readings[1], readings[2])


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


# --- guards ---------------------------------------------------------------------------------------


def find_conflict(pair: WordingPair, has_operations: bool = False) -> str | None:
    """Return the first reason why the words forbid to take both steps for the same, None without one.

    Args:
        has_operations: both steps show their arithmetic, so that a comparison may be said by one of
            them only.
    """
    a, b, context = pair
    for guard in (
        _names_differ,
        _symbols_differ,
        _orderings_differ,
        _negations_differ,
        _directions_differ,
        _owners_differ,
    ):
        if reason := guard(a, b):
            return reason
    if not has_operations and (reason := _comparisons_differ(a, b)):
        return reason
    return (
        _restated_wrongly(a, b, context) or _restated_wrongly(b, a, context) or _places_differ(a, b, context)
    )


def _both_sided(a: frozenset[str], b: frozenset[str]) -> bool:
    return bool(a - b) and bool(b - a)


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))


def _names_differ(a: Wording, b: Wording) -> str | None:
    if _both_sided(a.names, b.names):
        return f"other names: {_listed(a.names - b.names)} against {_listed(b.names - a.names)}"
    return None


def _symbols_differ(a: Wording, b: Wording) -> str | None:
    symbols = [frozenset(t.text for t in w.tokens if t.kind == "symbol") for w in (a, b)]
    if _both_sided(symbols[0], symbols[1]):
        return f"other symbols: {_listed(symbols[0] - symbols[1])} against {_listed(symbols[1] - symbols[0])}"
    return None


def _orderings_differ(a: Wording, b: Wording) -> str | None:
    for axis, low, high in a.orderings:
        if Ordering(axis, low, high).reversed in b.orderings:
            return f"opposite comparison of {low} and {high}"
    pairs = [_pairs_in_order(wording) for wording in (a, b)]
    for x, y in pairs[0] - pairs[1]:
        if (y, x) in pairs[1] and (y, x) not in pairs[0]:
            return f"{x} and {y} stand in the other order"
    return None


def _pairs_in_order(wording: Wording) -> frozenset[tuple[str, str]]:
    """Return the pairs of names that share a clause, the first one first, but for orderings."""
    pairs: set[tuple[str, str]] = set()
    for clause in wording.clauses():
        names = [
            wording.tokens[i].text
            for i in clause
            if wording.is_name(wording.tokens[i]) and i not in wording.ordered
        ]
        pairs.update((x, y) for i, x in enumerate(names) for y in names[i + 1 :] if x != y)
    return frozenset(pairs)


def _negations_differ(a: Wording, b: Wording) -> str | None:
    counts = [sum(token.text in NEGATIONS for token in wording.tokens) for wording in (a, b)]
    return "a negation stands in one step only" if counts[0] != counts[1] else None


def _poles(wording: Wording) -> dict[int, frozenset[int]]:
    poles: dict[int, frozenset[int]] = {}
    for index, token in enumerate(wording.tokens):
        if token.kind == "word" and index not in wording.ordered:
            for group, pole in POLES.get(stem(token.text), ()):
                poles[group] = poles.get(group, frozenset()) | {pole}
    return poles


def _directions_differ(a: Wording, b: Wording) -> str | None:
    left, right = _poles(a), _poles(b)
    for group in left.keys() & right.keys():
        if left[group] - right[group] and right[group] - left[group]:
            words = [sorted(_words_of(w, group)) for w in (a, b)]
            return f"opposite words: {', '.join(words[0])} against {', '.join(words[1])}"
    amounts = [_amounts(wording) for wording in (a, b)]
    if _both_sided(amounts[0], amounts[1]):
        return "more in one step is less in the other"
    return None


def _words_of(wording: Wording, group: int) -> set[str]:
    return {
        token.text
        for token in wording.tokens
        if token.kind == "word" and any(g == group for g, _ in POLES.get(stem(token.text), ()))
    }


def _amounts(wording: Wording) -> frozenset[str]:
    stems = {
        stem(token.text)
        for index, token in enumerate(wording.tokens)
        if token.kind == "word" and index not in wording.ordered
    }
    return frozenset(name for name, members in (("up", AMOUNT_UP), ("down", AMOUNT_DOWN)) if stems & members)


def _comparisons_differ(a: Wording, b: Wording) -> str | None:
    compares = [bool(w.orderings or _amounts(w)) for w in (a, b)]
    return "only one of the steps compares amounts" if compares[0] != compares[1] else None


def _owners_differ(a: Wording, b: Wording) -> str | None:
    left, right = _bindings(a), _bindings(b)
    for value in left.keys() & right.keys():
        for kind, x, y in (
            ("belongs to", left[value].names, right[value].names),
            ("counts", left[value].units, right[value].units),
        ):
            if x and y and not x & y:
                return f"{value} {kind} {_listed(x)} in one step and {_listed(y)} in the other"
    counts = _counts(left), _counts(right)
    for unit in counts[0].keys() & counts[1].keys():
        if not counts[0][unit] & counts[1][unit]:
            numbers = [", ".join(sorted(map(str, count[unit]))) for count in counts]
            return f"{numbers[0]} {unit} in one step and {numbers[1]} in the other"
    last = _last_number(a), _last_number(b)
    if None not in last and last[0] == last[1]:
        owners = owner_of_result(a), owner_of_result(b)
        if owners[0] and owners[1] and owners[0] != owners[1]:
            return f"the result belongs to {owners[0]} in one step and to {owners[1]} in the other"
    return None


def _restated_wrongly(step: Wording, other: Wording, context: Wording) -> str | None:
    """Find a number of the context that this step alone repeats, and counts something else with it."""
    elsewhere = {token.value for token in other.tokens}
    known = _bindings(context)
    counted = frozenset[str]().union(*(binding.units for binding in known.values()))
    for value, binding in _bindings(step).items():
        if value in elsewhere or value not in known:
            continue
        if wrong := (binding.units & counted) - known[value].units:
            return f"{value} {_listed(wrong)}, which the context counts otherwise"
    return None


@dataclass
class _Binding:
    names: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()


def _bindings(wording: Wording) -> dict[Fraction, _Binding]:
    """Map each number that stands among words to the names of its clause and the noun behind it.

    Clauses with an ``Ordering`` bind no names: either name may be called the owner of the difference.
    """
    bindings: dict[Fraction, _Binding] = {}
    for clause in wording.clauses():
        names = frozenset(wording.tokens[i].text for i in clause if wording.is_name(wording.tokens[i]))
        if not wording.ordered.isdisjoint(clause):
            names = frozenset()
        for index in clause:
            value = wording.tokens[index].value
            if value is None or is_operand(wording, index):
                continue
            bound = bindings.setdefault(value, _Binding())
            bound.names |= names
            bound.units |= _units(wording, range(index + 1, min(index + 4, clause.stop)))
    return bindings


def _counts(bindings: dict[Fraction, _Binding]) -> dict[str, frozenset[Fraction]]:
    counts: dict[str, frozenset[Fraction]] = {}
    for value, binding in bindings.items():
        for unit in binding.units:
            counts[unit] = counts.get(unit, frozenset()) | {value}
    return counts


def is_operand(wording: Wording, index: int) -> bool:
    """Whether an operator joins the number; a right-hand side alone (``= 55 books``) is no operand."""
    before = wording.tokens[index - 1] if index else None
    after = wording.tokens[index + 1] if index + 1 < len(wording.tokens) else None
    return (before is not None and before.kind == "operator") or (
        after is not None and after.kind in ("operator", "relation")
    )


def _units(wording: Wording, indices: range) -> frozenset[str]:
    units: set[str] = set()
    for index in indices:
        token = wording.tokens[index]
        if token.kind != "word" or token.capital:
            break
        plural = token.text.endswith("s") and not token.text.endswith(("ss", "us", "is", "as"))
        word = stem(token.text)
        if (
            plural and word not in FILLERS and word not in OPERATION_WORDS
        ) or token.text in IRREGULAR_PLURALS:
            units.add(word)
            break
    return frozenset(units)


def _last_number(wording: Wording) -> Fraction | None:
    values = [token.value for token in wording.tokens if token.value is not None and not token.weak]
    return values[-1] if values else None


def owner_of_result(wording: Wording) -> str | None:
    """Return the first name of the clause that holds the last number, None without one."""
    last = max((i for i, t in enumerate(wording.tokens) if t.value is not None and not t.weak), default=-1)
    for clause in wording.clauses():
        if last in clause:
            names = [wording.tokens[i].text for i in clause if wording.is_name(wording.tokens[i])]
            return names[0] if names else None
    return None


class _Place(NamedTuple):
    """A token as its slot (``#`` for any number, ``@`` for any name) and what fills the slot."""

    slot: str
    filling: str
    word: bool


def _places(wording: Wording) -> list[_Place]:
    places: list[_Place] = []
    for index, token in enumerate(wording.tokens):
        if token.kind == "break" or index in wording.ordered:
            if index in wording.ordered:
                places.append(_Place("~", "", False))
        elif token.value is not None:
            filling = "" if is_operand(wording, index) else str(token.value)
            places.append(_Place("#", filling, False))
        elif wording.is_name(token):
            places.append(_Place("@", token.text, False))
        elif token.kind == "word":
            word = stem(token.text)
            group = min(POLES[word])[0] if word in POLES else None
            if word not in FILLERS:
                places.append(_Place(f"~{group}" if group is not None else word, word, True))
        else:
            places.append(_Place(token.text, "", False))
    return places


def _places_differ(a: Wording, b: Wording, context: Wording) -> str | None:
    """Find a number, name or direction replaced where the words around it are the same."""
    left, right = _places(a), _places(b)
    if len(left) + len(right) > _MAX_ALIGNED:
        return "too long to compare place by place"
    matcher = SequenceMatcher(None, [p.slot for p in left], [p.slot for p in right], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size < 3:
            continue
        for offset in range(block.size):
            x, y = left[block.a + offset], right[block.b + offset]
            if not x.filling or not y.filling or x.filling == y.filling or _same_pole(x.filling, y.filling):
                continue
            long = block.size >= 5 and x.slot == "#"
            if long or _enclosed(block.a, block.b, block.size, offset, len(left), len(right)):
                return f"{x.filling} stands where the other step has {y.filling}"
    vocabulary = frozenset(stem(t.text) for t in context.tokens if t.kind == "word")
    vocabulary = vocabulary - FILLERS - OPENERS - OPERATION_WORDS.keys()
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "replace" and i2 - i1 <= 2 and j2 - j1 <= 2:
            x_words, y_words = _known(left[i1:i2], vocabulary), _known(right[j1:j2], vocabulary)
            if x_words and y_words and not x_words & y_words:
                return f"{_listed(x_words)} stands where the other step has {_listed(y_words)}"
    return None


def _enclosed(a: int, b: int, size: int, offset: int, num_left: int, num_right: int) -> bool:
    """Whether equal places, or the ends of both steps, stand on both sides of a place of the block."""
    starts = offset > 0 or (a == 0 and b == 0)
    ends = offset < size - 1 or (a + size == num_left and b + size == num_right)
    return starts and ends


def _same_pole(x: str, y: str) -> bool:
    return bool(POLES.get(x, frozenset()) & POLES.get(y, frozenset()))


def _known(places: Sequence[_Place], vocabulary: frozenset[str]) -> frozenset[str]:
    return frozenset(place.filling for place in places if place.word and place.filling in vocabulary)


def same_content(a: Wording, b: Wording) -> bool:
    """Whether both steps use the same words in the same order, fillers and notation aside."""
    return a.content() == b.content() and Counter(map(_name_or_none, _names_in(a))) == Counter(
        map(_name_or_none, _names_in(b))
    )


def _names_in(wording: Wording) -> list[Token]:
    return [token for token in wording.tokens if wording.is_name(token)]


def _name_or_none(token: Token) -> str:
    return token.text
