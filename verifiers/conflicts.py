"""Word-level guards: names, directions, negations and what belongs to whom must agree.

Sentence embeddings hardly move when two names are swapped, ``more`` becomes ``less`` or a ``not`` is
added. Each guard here looks at one such change and returns the reason why the two steps cannot be
taken for the same, or None. The guards refuse in doubt: a lost acceptance costs time, a wrong one
costs the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fractions import Fraction
from typing import Final, NamedTuple

from reason_spec.verifiers.lexicon import (
    AMOUNT_DOWN,
    AMOUNT_UP,
    ANY_UNITS,
    FILLERS,
    IRREGULAR_PLURALS,
    NEGATIONS,
    OPENERS,
    OPERATION_WORDS,
    PARTICLE_VERBS,
    POLES,
    stem,
)
from reason_spec.verifiers.wording import Ordering, Wording, WordingPair, is_operand, owner_of_result

_MAX_ALIGNED: Final = 1200


def find_conflict(pair: WordingPair, has_operations: bool = False) -> str | None:
    """Return the first reason why the words forbid to take both steps for the same, None without one.

    Args:
        has_operations: both steps show their arithmetic, so that a comparison may be said by one of
            them only.
    """
    a, b, context = pair
    for guard in (
        _retractions_differ,
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


def _retractions_differ(a: Wording, b: Wording) -> str | None:
    return "only one of the steps takes back what was said" if a.retracts != b.retracts else None


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
        if token.kind == "word" and index not in wording.ordered and not _joins(wording, index):
            for group, pole in POLES.get(stem(token.text), ()):
                poles[group] = poles.get(group, frozenset()) | {pole}
    return poles


def _joins(wording: Wording, index: int) -> bool:
    """Whether a ``with`` is no contrary of ``without``: ``left with 5``, ``with 5 less``."""
    if wording.tokens[index].text != "with":
        return False
    around = [stem(token.text) for token in wording.tokens[max(index - 1, 0) : index + 4]]
    return not PARTICLE_VERBS.isdisjoint(around[:1]) or not AMOUNT_DOWN.isdisjoint(around[1:])


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
        names = _names_of_numbers(wording, clause)
        for index in clause:
            value = wording.tokens[index].value
            if value is None or is_operand(wording, index):
                continue
            bound = bindings.setdefault(value, _Binding())
            bound.names |= names.get(index, frozenset())
            bound.units |= _units(wording, range(index + 1, min(index + 4, clause.stop)))
    return bindings


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


def _counts(bindings: dict[Fraction, _Binding]) -> dict[str, frozenset[Fraction]]:
    counts: dict[str, frozenset[Fraction]] = {}
    for value, binding in bindings.items():
        for unit in binding.units:
            counts[unit] = counts.get(unit, frozenset()) | {value}
    return counts


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
            units |= {word} - ANY_UNITS
            break
    return frozenset(units)


def _last_number(wording: Wording) -> Fraction | None:
    values = [token.value for token in wording.tokens if token.value is not None and not token.weak]
    return values[-1] if values else None


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
    settled = _settled(a, b)
    matcher = SequenceMatcher(None, [p.slot for p in left], [p.slot for p in right], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size < 3:
            continue
        for offset in range(block.size):
            x, y = left[block.a + offset], right[block.b + offset]
            if (
                x.slot in settled
                or not x.filling
                or not y.filling
                or x.filling == y.filling
                or _same_pole(x.filling, y.filling)
            ):
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


def _settled(a: Wording, b: Wording) -> frozenset[str]:
    """Return the slots, of numbers or names, that the words of both steps fill alike, in the same order."""
    slots = {"#": _numbers_in_words, "@": _names_in_order}
    return frozenset(slot for slot, fillings in slots.items() if fillings(a) == fillings(b))


def _numbers_in_words(wording: Wording) -> list[Fraction]:
    """Return the numbers, but operands and right-hand sides, in order."""
    tokens = wording.tokens
    return [
        value
        for index, token in enumerate(tokens)
        if (value := token.value) is not None
        and not is_operand(wording, index)
        and (index == 0 or tokens[index - 1].kind != "relation")
    ]


def _names_in_order(wording: Wording) -> list[str]:
    return [token.text for token in wording.tokens if wording.is_name(token)]


def _enclosed(a: int, b: int, size: int, offset: int, num_left: int, num_right: int) -> bool:
    """Whether equal places, or the ends of both steps, stand on both sides of a place of the block."""
    starts = offset > 0 or (a == 0 and b == 0)
    ends = offset < size - 1 or (a + size == num_left and b + size == num_right)
    return starts and ends


def _same_pole(x: str, y: str) -> bool:
    return bool(POLES.get(x, frozenset()) & POLES.get(y, frozenset()))


def _known(places: Sequence[_Place], vocabulary: frozenset[str]) -> frozenset[str]:
    return frozenset(place.filling for place in places if place.word and place.filling in vocabulary)
