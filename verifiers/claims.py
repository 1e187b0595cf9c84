"""What a step claims in numbers: quantities, equations, operations and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from reason_spec.verifiers.expressions import ExpressionError, Polynomial, leaves, parse_expression
from reason_spec.verifiers.longhand import find_unproven
from reason_spec.verifiers.mathtext import split_paragraphs, tokenize
from reason_spec.verifiers.scanner import Token

Truth: TypeAlias = Literal["true", "false", "open"]
"""Of a relation between numbers; ``open`` where symbols are left or the form is not understood."""

ARITHMETIC: Final = frozenset("+-*/")
_MAX_RUN: Final = 400
_OPERATORS: Final = frozenset("+-*/^!%±")


@dataclass(frozen=True, slots=True)
class Relation:
    """Two expressions and what stands between them, oriented so that only =, ≠, ≈, <, ≤, ≡ occur.

    ``canonical`` is equal for equal relations: 2x = 8, 8 = 2x and x = 4. ``value`` is the number on the
    right of a numeric equation.
    """

    canonical: str
    truth: Truth
    value: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """Operands joined by operators: the operands, the operators, and what the whole comes to.

    ``derived`` marks one that stands in a correct relation between numbers: its value follows.
    """

    leaves: tuple[str, ...]
    operators: tuple[str, ...]
    canonical: str
    derived: bool


@dataclass(frozen=True, slots=True)
class Claims:
    """The mathematics of one step.

    ``quantities`` are the numbers that must find a partner, ``weak_quantities`` those that may go
    without ("one", list numbers). ``result`` is the last quantity; ``result_in_formula`` tells whether an
    operator or relation stands beside it. ``unproven`` are the workings whose columns do not follow from
    their calculation. ``calculations`` are the expressions that calculate, in order, the first of each
    formula. ``assigned`` maps a symbol to the numbers that the step says it equals.
    """

    tokens: tuple[Token, ...]
    quantities: frozenset[Fraction]
    weak_quantities: frozenset[Fraction]
    symbols: frozenset[str]
    operations: frozenset[str]
    relations: frozenset[Relation]
    expressions: frozenset[Expression]
    assigned: tuple[tuple[str, frozenset[Fraction]], ...]
    result: Fraction | None
    result_in_formula: bool
    unproven: frozenset[str]
    calculations: tuple[Expression, ...]

    @property
    def false_relations(self) -> frozenset[str]:
        return frozenset(relation.canonical for relation in self.relations if relation.truth == "false")

    @property
    def main(self) -> Expression | None:
        """The first expression that calculates."""
        return self.calculations[0] if self.calculations else None

    @property
    def has_mathematics(self) -> bool:
        return bool(self.quantities or self.symbols or self.operations)


@dataclass(frozen=True, slots=True)
class Known:
    """What the text before two steps holds already, so that either may repeat it."""

    quantities: frozenset[Fraction]
    symbols: frozenset[str]
    open_relations: frozenset[str]
    expressions: frozenset[str]


@lru_cache(maxsize=256)
def read_known(context: str) -> Known:
    """Return what ``context`` claims; no formula goes on from one paragraph to the next."""
    parts = [read_claims(paragraph) for paragraph in split_paragraphs(context)]
    return Known(
        frozenset[Fraction]().union(*(part.quantities for part in parts)),
        frozenset[str]().union(*(part.symbols for part in parts)),
        frozenset(r.canonical for part in parts for r in part.relations if r.truth == "open"),
        frozenset(e.canonical for part in parts for e in part.expressions),
    )


@lru_cache(maxsize=4096)
def read_claims(text: str) -> Claims:
    """Return what ``text`` claims; text without numbers gives empty claims."""
    tokens = tokenize(text)
    runs = [_read_run(tuple(run)) for run in _runs(tokens)]
    numbers = [token for token in tokens if token.value is not None]
    strong = [token.value for token in numbers if not token.weak and token.value is not None]
    weak = frozenset(token.value for token in numbers if token.weak and token.value is not None)
    assigned: dict[str, set[Fraction]] = {}
    for run in runs:
        for symbol, value in run.assigned:
            assigned.setdefault(symbol, set()).add(value)
    return Claims(
        tokens=tokens,
        quantities=frozenset(strong),
        weak_quantities=weak - frozenset(strong),
        symbols=frozenset(token.text for token in tokens if token.kind == "symbol"),
        operations=frozenset(operator for run in runs for operator in run.operations),
        relations=frozenset(relation for run in runs for relation in run.relations),
        expressions=frozenset(expression for run in runs for expression in run.expressions),
        assigned=tuple((symbol, frozenset(values)) for symbol, values in sorted(assigned.items())),
        result=strong[-1] if strong else None,
        result_in_formula=_last_in_formula(tokens),
        unproven=find_unproven(tokens),
        calculations=tuple(run.calculation for run in runs if run.calculation is not None),
    )


def _last_in_formula(tokens: Sequence[Token]) -> bool:
    last = next(
        (i for i in reversed(range(len(tokens))) if tokens[i].value is not None and not tokens[i].weak), 0
    )
    return any(token.kind in ("operator", "relation") for token in tokens[max(last - 1, 0) : last + 2])


def _runs(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the maximal runs of mathematics: no words, no punctuation outside brackets."""
    run: list[Token] = []
    level = 0
    for token in tokens:
        inside = token.kind == "break" and token.text in (",", ";") and level > 0
        if token.kind == "word" or (token.kind == "break" and not inside):
            if run:
                yield run
            run, level = [], 0
            continue
        level += (token.kind == "open") - (token.kind == "close")
        if level < 0:
            if run:
                yield run
            run, level = [], 0
            continue
        run.append(token)
    if run:
        yield run


class _Run(NamedTuple):
    operations: frozenset[str]
    relations: tuple[Relation, ...]
    expressions: tuple[Expression, ...]
    assigned: tuple[tuple[str, Fraction], ...]

    @property
    def calculation(self) -> Expression | None:
        return next((e for e in self.expressions if not ARITHMETIC.isdisjoint(e.operators)), None)


class _Side(NamedTuple):
    tokens: tuple[Token, ...]
    polynomial: Polynomial | None


@lru_cache(maxsize=8192)
def _read_run(run: tuple[Token, ...]) -> _Run:
    operations = frozenset(t.text for t in run if t.kind == "operator" and t.text in _OPERATORS)
    if len(run) > _MAX_RUN or (len(run) == 1 and run[0].kind in ("number", "symbol")):
        return _Run(operations, (), (), ())
    sides: list[_Side] = []
    signs: list[str] = []
    side: list[Token] = []
    for token in run:
        if token.kind == "relation":
            sides.append(_side(side))
            signs.append(token.text)
            side = []
        else:
            side.append(token)
    sides.append(_side(side))
    relations = [
        _relate(left, sign, right) for left, sign, right in zip(sides, signs, sides[1:], strict=False)
    ]
    assigned = [
        pair
        for left, sign, right in zip(sides, signs, sides[1:], strict=False)
        if sign == "="
        for pair in _assignment(left, right)
    ]
    holds = [relation.truth == "true" for relation in relations]
    expressions = [
        _expression(side, derived=any(holds[max(i - 1, 0) : i + 1]))
        for i, side in enumerate(sides)
        if any(token.kind == "operator" for token in side.tokens) or len(leaves(side.tokens)) > 1
    ]
    return _Run(operations, tuple(relations), tuple(expressions), tuple(assigned))


def _side(tokens: list[Token]) -> _Side:
    try:
        return _Side(tuple(tokens), parse_expression(tokens))
    except ExpressionError:
        return _Side(tuple(tokens), None)


def _literal(side: _Side) -> str:
    return " ".join(str(token.value) if token.value is not None else token.text for token in side.tokens)


def _expression(side: _Side, derived: bool) -> Expression:
    canonical = _literal(side) if side.polynomial is None else str(side.polynomial)
    operators = tuple(sorted(token.text for token in side.tokens if token.kind == "operator"))
    return Expression(leaves(side.tokens), operators, canonical, derived)


def _relate(left: _Side, sign: str, right: _Side) -> Relation:
    if sign in (">", "≥"):
        left, right, sign = right, left, {">": "<", "≥": "≤"}[sign]
    if left.polynomial is None or right.polynomial is None:
        return Relation(f"{_literal(left)} {sign} {_literal(right)}", "open")
    x, y = left.polynomial.value, right.polynomial.value
    if x is not None and y is not None:
        truth: Truth = "true" if _holds(x, sign, y, right, left) else "false"
        return Relation(f"{left.polynomial} {sign} {right.polynomial}", truth, y)
    try:
        difference = left.polynomial - right.polynomial
        canonical = difference.scaled() if sign in ("=", "≠", "≈") else difference
    except ExpressionError:
        return Relation(f"{_literal(left)} {sign} {_literal(right)}", "open")
    # An identity says nothing that has to be repeated.
    return Relation(f"{canonical} {sign} 0", "true" if sign == "=" and difference.value == 0 else "open")


def _holds(x: Fraction, sign: str, y: Fraction, right: _Side, left: _Side) -> bool:
    if sign == "=":
        return x == y or _is_rounding(x, y, right) or _is_rounding(y, x, left) or _names_percent(x, y, right)
    if sign == "≈":
        return abs(x - y) <= max(abs(x), abs(y)) / 10 or _is_rounding(x, y, right)
    if sign == "≠":
        return x != y
    if sign == "≡":
        return True
    return x < y if sign == "<" else x <= y


def _is_rounding(exact: Fraction, rounded: Fraction, side: _Side) -> bool:
    """Whether a number written with decimals is ``exact`` to its last place (10/3 = 3.33)."""
    if len(side.tokens) != 1 or side.tokens[0].decimals < 1:
        return False
    return abs(exact - rounded) <= Fraction(1, 10 ** side.tokens[0].decimals)


def _names_percent(x: Fraction, y: Fraction, right: _Side) -> bool:
    """``0.4 * 100 = 40%`` is false by its signs, and everyone writes it."""
    return bool(right.tokens) and right.tokens[-1].percent and x == 100 * y


def _assignment(left: _Side, right: _Side) -> Iterator[tuple[str, Fraction]]:
    for symbol, number in ((left, right), (right, left)):
        one_symbol = len(symbol.tokens) == 1 and symbol.tokens[0].kind == "symbol"
        if one_symbol and number.polynomial is not None and number.polynomial.value is not None:
            yield symbol.tokens[0].text, number.polynomial.value
