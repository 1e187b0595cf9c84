"""Word-level guards: names, directions, negations and what belongs to whom must agree.

Sentence embeddings hardly move when two names are swapped, ``more`` becomes ``less`` or a ``not`` is
added. Each guard here looks at one such change and returns the reason why the two steps cannot be
taken for the same, or None. The guards refuse in doubt: a lost acceptance costs time, a wrong one
costs the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from fractions import Fraction
from typing import Final, NamedTuple

from reason_spec.verifiers.lexicon import (
    AMOUNT_DOWN,
    AMOUNT_UP,
    FILLERS,
    NEGATIONS,
    OPENERS,
    OPERATION_WORDS,
    PARTICLE_VERBS,
    POLES,
    TREND_DOWN,
    TREND_UP,
    stem,
)
from reason_spec.verifiers.wording import (
    Background,
    Binding,
    Ordering,
    Wording,
    WordingPair,
    is_operand,
    owner_of_result,
)

_MAX_ALIGNED: Final = 1200
_AMOUNTS: Final = {"up": AMOUNT_UP, "down": AMOUNT_DOWN}
_TRENDS: Final = {"up": TREND_UP, "down": TREND_DOWN}
_SAME_TREND: Final = {word: trend for trend, members in _TRENDS.items() for word in members}
_PIVOTS: Final = ("before", "after", "then", "than", "from", "by", "into", "if")
"""Words whose sides cannot be exchanged."""


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
        _negated_differ,
        _directions_differ,
        _owners_differ,
        _clauses_cross,
        _sides_swapped,
        _reordered,
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
    for clause in wording.clauses:
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


def _negated_differ(a: Wording, b: Wording) -> str | None:
    """Both steps deny something: find what one denies first of all and the other affirms."""
    for mine, other in ((a, b), (b, a)):
        denied = [found[0] for found in _denials(mine) if found]
        elsewhere = {word for found in _denials(other) for word in found}
        affirmed = frozenset(word for word in denied if word not in elsewhere and word in other.stems)
        if affirmed and elsewhere:
            return f"{_listed(affirmed)} is denied in one step only"
    return None


def _denials(wording: Wording) -> list[list[str]]:
    """Return, for each negation, what stands behind it in its clause, without fillers."""
    return [
        [word for word in wording.stems[index + 1 : clause.stop] if word not in FILLERS]
        for clause in wording.clauses
        for index in clause
        if wording.tokens[index].text in NEGATIONS
    ]


def _poles(wording: Wording) -> dict[int, frozenset[int]]:
    poles: dict[int, frozenset[int]] = {}
    for index, token in enumerate(wording.tokens):
        found = POLES.get(wording.stems[index]) or _taken_from(wording, index)
        if found and token.kind == "word" and index not in wording.ordered and not _joins(wording, index):
            for group, pole in found:
                poles[group] = poles.get(group, frozenset()) | {pole}
    return poles


def _taken_from(wording: Wording, index: int) -> frozenset[tuple[int, int]]:
    """Read ``gets 4 pencils from her``, which is to receive them."""
    if wording.stems[index] != "get":
        return frozenset()
    behind = wording.tokens[index + 1 : index + 7]
    end = next((i for i, token in enumerate(behind) if token.kind == "break"), len(behind))
    from_whom = any(token.text == "from" for token in behind[:end])
    return POLES[stem("receive")] if from_whom else frozenset()


def _joins(wording: Wording, index: int) -> bool:
    """Whether a ``with`` is no contrary of ``without``: ``left with 5``, ``with 5 less``."""
    if wording.tokens[index].text != "with":
        return False
    around = wording.stems[max(index - 1, 0) : index + 4]
    return not PARTICLE_VERBS.isdisjoint(around[:1]) or not AMOUNT_DOWN.isdisjoint(around[1:])


def _directions_differ(a: Wording, b: Wording) -> str | None:
    left, right = _poles(a), _poles(b)
    for group in left.keys() & right.keys():
        if left[group] - right[group] and right[group] - left[group]:
            words = [sorted(_words_of(w, group)) for w in (a, b)]
            return f"opposite words: {', '.join(words[0])} against {', '.join(words[1])}"
    amounts = [_amounts(wording, _TRENDS) for wording in (a, b)]
    if _both_sided(amounts[0], amounts[1]):
        return "more in one step is less in the other"
    return None


def _words_of(wording: Wording, group: int) -> set[str]:
    return {
        token.text
        for token in wording.tokens
        if token.kind == "word" and any(g == group for g, _ in POLES.get(stem(token.text), ()))
    }


def _amounts(wording: Wording, poles: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found = wording.vocabulary
    if wording.ordered:
        found = frozenset(
            wording.stems[index]
            for index, token in enumerate(wording.tokens)
            if token.kind == "word" and index not in wording.ordered
        )
    return frozenset(name for name, members in poles.items() if not members.isdisjoint(found))


def _comparisons_differ(a: Wording, b: Wording) -> str | None:
    compares = [bool(w.orderings or _amounts(w, _AMOUNTS)) for w in (a, b)]
    return "only one of the steps compares amounts" if compares[0] != compares[1] else None


def _owners_differ(a: Wording, b: Wording) -> str | None:
    left, right = a.bindings, b.bindings
    for value in left.keys() & right.keys():
        for kind, x, y in (
            ("belongs to", left[value].names, right[value].names),
            ("counts", left[value].units, right[value].units),
        ):
            if x and y and (not x & y or (kind == "counts" and _both_sided(x, y))):
                return f"{value} {kind} {_listed(x)} in one step and {_listed(y)} in the other"
    counts = _counts(left), _counts(right)
    for unit in counts[0].keys() & counts[1].keys():
        if not counts[0][unit] & counts[1][unit]:
            numbers = [", ".join(sorted(map(str, count[unit]))) for count in counts]
            return f"{numbers[0]} {unit} in one step and {numbers[1]} in the other"
    last = _last_number(a), _last_number(b)
    compares = last[0] in a.differences and last[1] in b.differences
    if None not in last and last[0] == last[1] and not compares:
        owners = owner_of_result(a), owner_of_result(b)
        if owners[0] and owners[1] and owners[0] != owners[1]:
            return f"the result belongs to {owners[0]} in one step and to {owners[1]} in the other"
    return None


def _restated_wrongly(step: Wording, other: Wording, context: Background) -> str | None:
    """Find a number of the context that this step alone repeats, and counts something else with it."""
    elsewhere = {token.value for token in other.tokens if token.value is not None}
    alone = {value: units for value, units in step.units.items() if units and value not in elsewhere}
    if not alone:
        return None
    known = context.units
    counted = frozenset[str]().union(*known.values())
    for value, units in alone.items():
        if value in known and (wrong := (units & counted) - known[value]):
            return f"{value} {_listed(wrong)}, which the context counts otherwise"
    return None


def _counts(bindings: dict[Fraction, Binding]) -> dict[str, frozenset[Fraction]]:
    counts: dict[str, frozenset[Fraction]] = {}
    for value, binding in bindings.items():
        for unit in binding.units:
            counts[unit] = counts.get(unit, frozenset()) | {value}
    return counts


def _last_number(wording: Wording) -> Fraction | None:
    values = [token.value for token in wording.tokens if token.value is not None and not token.weak]
    return values[-1] if values else None


def _clauses_cross(a: Wording, b: Wording) -> str | None:
    """Find two clauses whose contents changed partners: ``x goats, y hens`` against ``x hens, y goats``."""
    cells: dict[tuple[int, int], str] = {}
    left, right = _clauses_of_words(a), _clauses_of_words(b)
    for word in left.keys() & right.keys():
        cells.setdefault((left[word], right[word]), word)
    for (i, p), word in cells.items():
        for (j, q), other in cells.items():
            if i < j and p < q and (i, q) in cells and (j, p) in cells:
                return f"{word} and {other} stand beside {cells[i, q]} and {cells[j, p]} in other pairs"
    return None


def _clauses_of_words(wording: Wording) -> dict[str, int]:
    """Map what stands in one clause only, and is no filler, to the clause; no operands."""
    clauses: dict[str, int] = {}
    several: set[str] = set()
    for number, clause in enumerate(wording.clauses):
        for index in clause:
            token, word = wording.tokens[index], wording.stems[index]
            if token.kind not in ("word", "symbol", "number") or (token.kind == "word" and word in FILLERS):
                continue
            if token.kind == "number" and is_operand(wording, index):
                continue
            word = _SAME_TREND.get(word, word)
            if clauses.setdefault(word, number) != number:
                several.add(word)
    return {word: number for word, number in clauses.items() if word not in several}


def _sides_swapped(a: Wording, b: Wording) -> str | None:
    """Find a word as ``before`` or ``by`` that stands between the same things the other way round."""
    for pivot in _PIVOTS:
        if pivot in a.lower and pivot in b.lower:
            left, right = _sides(a, pivot), _sides(b, pivot)
            if left and right and (x := left.before & right.behind) and (y := left.behind & right.before):
                return f"{_listed(x)} and {_listed(y)} stand on the other sides of {pivot}"
    for x_word, y_word in _joined_by_of(a) & frozenset((y, x) for x, y in _joined_by_of(b)):
        if x_word != y_word:
            return f"{x_word} of {y_word} is {y_word} of {x_word} in the other step"
    return None


def _joined_by_of(wording: Wording) -> frozenset[tuple[str, str]]:
    """Return the words beside each ``of``, but for those that stand both ways round."""
    pairs: set[tuple[str, str]] = set()
    for index, token in enumerate(wording.tokens):
        if token.text == "of" and 0 < index < len(wording.tokens) - 1:
            behind = (word for word in wording.stems[index + 1 : index + 4] if word not in FILLERS)
            pairs.add((wording.stems[index - 1], next(behind, "")))
    return frozenset((x, y) for x, y in pairs if (y, x) not in pairs)


def _reordered(a: Wording, b: Wording) -> str | None:
    """Find two words that changed places around others: ``the cat chased the mouse``."""
    left, right = _content_in_order(a), _content_in_order(b)
    if len(left) != len(right):
        return None
    places = [i for i, (x, y) in enumerate(zip(left, right, strict=True)) if x != y]
    if len(places) != 2 or places[1] - places[0] < 2:
        return None
    x, y = (left[i] for i in places)
    if (right[places[0]], right[places[1]]) == (y, x):
        return f"{x} and {y} have changed places"
    return None


def _content_in_order(wording: Wording) -> list[str]:
    return [
        wording.stems[index]
        for index, token in enumerate(wording.tokens)
        if token.kind in ("word", "symbol")
        and index not in wording.ordered
        and (wording.stems[index] not in FILLERS or wording.is_name(token))
    ]


class _Sides(NamedTuple):
    before: frozenset[str]
    behind: frozenset[str]


def _sides(wording: Wording, pivot: str) -> _Sides | None:
    """Return what stands on one side only of a word in its sentence, None if the word comes twice."""
    places = [i for i, t in enumerate(wording.tokens) if t.text == pivot and i not in wording.ordered]
    if len(places) != 1:
        return None
    at, tokens = places[0], wording.tokens
    ends = [i for i, t in enumerate(tokens) if t.kind == "break" and t.text in _SENTENCE_ENDS]
    start = max((i for i in ends if i < at), default=-1) + 1
    stop = min((i for i in ends if i > at), default=len(tokens))
    before, behind = (
        {
            wording.stems[i]
            for i in part
            if tokens[i].kind in ("word", "symbol", "number")
            and i not in wording.ordered
            and wording.stems[i] not in FILLERS
        }
        for part in (range(start, at), range(at + 1, stop))
    )
    return _Sides(frozenset(before - behind), frozenset(behind - before))


_SENTENCE_ENDS: Final = frozenset(".?;:\n")


class _Place(NamedTuple):
    """A token as its slot (``#`` for a number, ``@`` for a name, ``$`` for a letter) and what fills it."""

    slot: str
    filling: str
    word: bool
    plural: bool = False


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
            word = wording.stems[index]
            group = min(POLES[word])[0] if word in POLES else None
            if word not in FILLERS or (group is not None and not _joins(wording, index)):
                slot = f"~{group}" if group is not None else word
                places.append(_Place(slot, word, True, _is_plural_noun(wording, index)))
        elif token.kind == "symbol" and not is_operand(wording, index):
            places.append(_Place("$", token.text, False))
        else:
            places.append(_Place(token.text, "", False))
    return places


def _is_plural_noun(wording: Wording, index: int) -> bool:
    """Whether the word, behind an article or a preposition, names several things."""
    text = wording.tokens[index].text
    plural = text.endswith("s") and not text.endswith(("ss", "us", "is"))
    return plural and index > 0 and wording.tokens[index - 1].text in _BEFORE_NOUNS


_BEFORE_NOUNS: Final = frozenset("the these those her his their its of from for".split())


def _places_differ(a: Wording, b: Wording, context: Background) -> str | None:
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
    return _words_replaced(left, right, matcher.get_opcodes(), context)


def _words_replaced(
    left: Sequence[_Place],
    right: Sequence[_Place],
    opcodes: Sequence[tuple[str, int, int, int, int]],
    context: Background,
) -> str | None:
    """Find words in the place of others: exchanged, opposite, or both known from the context."""
    vocabulary = context.vocabulary - FILLERS - OPENERS - OPERATION_WORDS.keys()
    replaced = [
        (left[i1:i2], right[j1:j2])
        for tag, i1, i2, j1, j2 in opcodes
        if tag == "replace" and i2 - i1 <= 2 and j2 - j1 <= 2
    ]
    fillings = {(_all_fillings(mine), _all_fillings(other)) for mine, other in replaced}
    for x_text, y_text in fillings:
        if x_text != y_text and (y_text, x_text) in fillings:
            return f"{x_text} and {y_text} have changed places"
    for mine, other in replaced:
        if len(mine) == len(other) == 1 and _opposite(mine[0].filling, other[0].filling):
            return f"{mine[0].filling} stands where the other step has {other[0].filling}"
        if len(mine) == len(other) == 1 and mine[0].plural and other[0].plural:
            return f"{mine[0].filling} stands where the other step has {other[0].filling}"
        x_words, y_words = _known(mine, vocabulary), _known(other, vocabulary)
        if x_words and y_words and not x_words & y_words:
            return f"{_listed(x_words)} stands where the other step has {_listed(y_words)}"
    return None


def _settled(a: Wording, b: Wording) -> frozenset[str]:
    """Return the slots, of numbers, names or letters, that both steps fill alike, in the same order."""
    slots = {"#": _numbers_in_words, "@": _names_in_order, "$": _symbols_in_order}
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


def _symbols_in_order(wording: Wording) -> list[str]:
    tokens = wording.tokens
    return [t.text for i, t in enumerate(tokens) if t.kind == "symbol" and not is_operand(wording, i)]


def _enclosed(a: int, b: int, size: int, offset: int, num_left: int, num_right: int) -> bool:
    """Whether equal places, or the ends of both steps, stand on both sides of a place of the block."""
    starts = offset > 0 or (a == 0 and b == 0)
    ends = offset < size - 1 or (a + size == num_left and b + size == num_right)
    return starts and ends


def _opposite(x: str, y: str) -> bool:
    """Whether two words are different poles of a group, and the same of none."""
    groups = [{group for group, _ in POLES.get(word, ())} for word in (x, y)]
    return not groups[0].isdisjoint(groups[1]) and not _same_pole(x, y)


def _same_pole(x: str, y: str) -> bool:
    return bool(POLES.get(x, frozenset()) & POLES.get(y, frozenset()))


def _all_fillings(places: Sequence[_Place]) -> str:
    return " ".join(place.filling or place.slot for place in places)


def _known(places: Sequence[_Place], vocabulary: frozenset[str]) -> frozenset[str]:
    return frozenset(place.filling for place in places if place.word and place.filling in vocabulary)
