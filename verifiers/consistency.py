"""Do the words of a step announce the arithmetic that it carries out?

``Taking 18 from what Sara has, 1 + 18 = 19`` contradicts itself. Its numbers agree with those of a sound
step, so ``numbers`` cannot see it. A step that contradicts itself is never taken for one that does not;
where both do, the reading is at fault, and nothing follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final, NamedTuple

from reason_spec.verifiers.claims import ARITHMETIC, Claims, Expression
from reason_spec.verifiers.lexicon import ACTIONS, COMPARATIVES, PERSONAL_ACTIONS, TAKE_AWAY, stem
from reason_spec.verifiers.wording import Wording, is_operand, owner_of_result


def find_inconsistency(a: Wording, a_claims: Claims, b: Wording, b_claims: Claims) -> str | None:
    """Return why one of two steps contradicts itself where the other does not, None otherwise."""
    left, right = _contradiction(a, a_claims), _contradiction(b, b_claims)
    if bool(left) != bool(right):
        return left or right
    return _prose_differs(a, a_claims, b, b_claims)


def _contradiction(wording: Wording, claims: Claims) -> str | None:
    if claims.main is None:
        return None
    computed = [ARITHMETIC & frozenset(calculation.operators) for calculation in claims.calculations]
    announcements = list(_announcements(wording, len(computed)))
    announced = [found.operations for found in announcements]
    in_turn = len(announced) == len(computed) and len(computed) > 1
    if in_turn and any(mine.isdisjoint(theirs) for mine, theirs in zip(announced, computed, strict=True)):
        return f"announces {_in_turn(announced)} and computes {_in_turn(computed)}"
    if announced and frozenset().union(*announced).isdisjoint(frozenset().union(*computed)):
        return f"announces {_in_turn(announced)} and computes {_in_turn(computed)}"
    operands = {leaf for calculation in claims.calculations for leaf in calculation.leaves}
    strange = {str(v) for found in announcements for v in found.operands} - operands
    if strange:
        return f"announces {', '.join(sorted(strange))} and computes with {', '.join(sorted(operands))}"
    minuend = _minuend(claims)
    if any({str(value) for value in found.lost} == {minuend} for found in announcements):
        return f"takes {minuend} away and computes from it"
    return _ordering_contradicts(wording, claims.main, computed[0])


def _minuend(claims: Claims) -> str | None:
    """Return what the one calculation of a step takes something else away from."""
    if len(claims.calculations) != 1:
        return None
    leaves, operators = claims.calculations[0].leaves, claims.calculations[0].operators
    return leaves[0] if operators == ("-",) and len(set(leaves)) == 2 else None


def _in_turn(operations: Iterable[frozenset[str]]) -> str:
    return ", ".join("".join(sorted(alternatives)) for alternatives in operations)


class _Announcement(NamedTuple):
    """``adding 8 to ...``: an operation and the numbers named with it.

    ``lost`` are those that are taken away, where that is said: ``gives 8 away``.
    """

    operations: frozenset[str]
    operands: frozenset[Fraction]
    lost: frozenset[Fraction]


def _announcements(wording: Wording, num_calculations: int) -> Iterator[_Announcement]:
    """Read the clauses that announce a calculation; parts (50%, half) say it another way.

    A single calculation is announced before it is carried out, several also between them.
    """
    operators = [i for i, token in enumerate(wording.tokens) if token.text in ARITHMETIC]
    end = operators[0 if num_calculations == 1 else -1] if operators else len(wording.tokens)
    for clause in wording.clauses:
        numbers = frozenset(_prose_in(wording, clause))
        operations = frozenset(_announced(wording, clause))
        if clause.start < end and operations and not any(0 < value < 1 for value in numbers):
            yield _Announcement(operations, numbers, _lost(wording, clause, operations))


_LOSSES: Final = frozenset(map(stem, ("subtract", "remove", "lose", "spend", "give", "take")))


def _lost(wording: Wording, clause: range, operations: frozenset[str]) -> frozenset[Fraction]:
    """Return the numbers behind a verb of losing; what stands behind ``from`` is what is left from."""
    verb = next((i for i in clause if wording.stems[i] in _LOSSES), None)
    words = {wording.tokens[i].text for i in clause}
    if verb is None or operations != {"-"} or "from" in words:
        return frozenset()
    return frozenset(_prose_in(wording, range(verb, clause.stop)))


_WAYS: Final = {"up": "+", "down": "-"}
"""Announce an operation behind ``go``: numbers are also written down and rounded up."""


def _announced(wording: Wording, clause: range) -> Iterator[str]:
    words = {wording.tokens[i].text for i in clause}
    for index in clause:
        token = wording.tokens[index]
        if token.kind != "word" or index in wording.ordered:
            continue
        word = wording.stems[index]
        personal = index > 0 and wording.is_name(wording.tokens[index - 1]) and "times" not in words
        takes = word == stem("take") and words.isdisjoint(TAKE_AWAY)
        if word in ACTIONS and not takes and token.text != "find":
            yield ACTIONS[word]
        elif word in PERSONAL_ACTIONS and personal:
            yield PERSONAL_ACTIONS[word]
        elif token.text in _WAYS and index and wording.stems[index - 1] == "go":
            yield _WAYS[token.text]
        elif word == stem("give") and "away" in words:
            yield "-"


def _ordering_contradicts(wording: Wording, main: Expression, computed: frozenset[str]) -> str | None:
    """The greater side is computed by + or *, the lesser by - or /."""
    strange = {str(value) for value in wording.differences if value.denominator == 1} - set(main.leaves)
    if strange:
        return f"compares by {', '.join(sorted(strange))} and does not compute with it"
    owner = owner_of_result(wording)
    if owner is None or _result_is_difference(wording):
        return None
    for ordering in wording.orderings:
        expected = {ordering.high: frozenset("+*"), ordering.low: frozenset("-/")}.get(owner)
        if ordering.axis == "amount" and expected and not expected & computed:
            return f"computes what {owner} has by {', '.join(sorted(computed))}"
    return None


def _result_is_difference(wording: Wording) -> bool:
    """Whether the last clause compares itself: ``so Hana has 18 cards more``."""
    return any(wording.stems[i] in COMPARATIVES for i in wording.clauses[-1])


def _prose_differs(a: Wording, a_claims: Claims, b: Wording, b_claims: Claims) -> str | None:
    """Two steps may name different operands, if one of them names what somebody has (``Ana has 47``).

    Every mention counts; a result that an equation already states cancels one mention.
    """
    left, right = _mentions(a) - _mentions(b, equations=True), _mentions(b) - _mentions(a, equations=True)
    if not left or not right:
        return None
    for values, other in ((left, b_claims), (right, a_claims)):
        operands = set(other.main.leaves) if other.main else set()
        strange = {str(v) for v in values if str(v) not in operands and not (v and str(1 / v) in operands)}
        if strange:
            return f"{', '.join(sorted(strange))} among the words of one step only"
    parts = any(0 < value < 1 for value in (*left, *right))
    if parts or left.keys() <= _states(a, a_claims) or right.keys() <= _states(b, b_claims):
        return None
    return f"{_listed(left)} in the place of {_listed(right)}"


def _mentions(wording: Wording, equations: bool = False) -> Counter[Fraction]:
    """Count the numbers among words, with ``equations`` also those behind an equals sign."""
    mentions = Counter(_prose_in(wording, range(len(wording.tokens))))
    if equations:
        pairs = zip(wording.tokens, wording.tokens[1:], strict=False)
        mentions.update(y.value for x, y in pairs if x.kind == "relation" and y.value is not None)
    return mentions


def _listed(values: Iterable[Fraction]) -> str:
    return ", ".join(sorted(map(str, values)))


def _states(wording: Wording, claims: Claims) -> frozenset[Fraction]:
    """Return the numbers, but the result, of clauses that say what is, and neither compare nor act."""
    states: set[Fraction] = set()
    for clause in wording.clauses:
        stems = set(wording.stems[clause.start : clause.stop])
        if (
            stems & {"have", "is", "own", "start"}
            and wording.ordered.isdisjoint(clause)
            and not stems & ACTIONS.keys()
        ):
            states.update(_prose_in(wording, clause))
    return frozenset(value for value in states if value != claims.result)


def _prose_in(wording: Wording, indices: range) -> Iterator[Fraction]:
    """Yield the numbers among words: no operands, no right-hand sides, no list numbers."""
    for index in indices:
        token = wording.tokens[index]
        if token.value is None or token.weak or is_operand(wording, index):
            continue
        if index == 0 or wording.tokens[index - 1].kind != "relation":
            yield token.value
