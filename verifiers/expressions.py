"""Expressions of tokens as polynomials over exact fractions, so that 2x + 3 and 3 + x*2 are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import isqrt
from typing import Final, TypeAlias

from reason_spec.verifiers.scanner import FUNCTIONS, Token

Monomial: TypeAlias = tuple[tuple[str, int], ...]
"""Symbols with their exponents, sorted by symbol; empty for a constant."""

_MAX_TERMS: Final = 32
_MAX_POWER: Final = 8
_MAX_BITS: Final = 2048
_MAX_NESTING: Final = 20


class ExpressionError(ValueError):
    """The tokens are no expression, or one too large to expand; it never leaves the verifiers."""


class Polynomial:
    """A sum of monomials with fractional coefficients; what is no polynomial becomes one opaque symbol."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = {monomial: value for monomial, value in terms.items() if value}
        if len(self.terms) > _MAX_TERMS:
            raise ExpressionError("too many terms")

    @classmethod
    def constant(cls, value: Fraction | int) -> Polynomial:
        return cls({(): Fraction(value)})

    @classmethod
    def symbol(cls, name: str) -> Polynomial:
        return cls({((name, 1),): Fraction(1)})

    @property
    def value(self) -> Fraction | None:
        """The number this is, None where symbols are left."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, value in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + value
        return Polynomial(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial({monomial: -value for monomial, value in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, Fraction] = {}
        for left, x in self.terms.items():
            for right, y in other.terms.items():
                monomial = _multiply(left, right)
                product = x * y
                if max(product.numerator.bit_length(), product.denominator.bit_length()) > _MAX_BITS:
                    raise ExpressionError("a coefficient is too large")
                terms[monomial] = terms.get(monomial, Fraction(0)) + product
        return Polynomial(terms)

    def __truediv__(self, other: Polynomial) -> Polynomial:
        divisor = other.value
        if divisor == 0:
            raise ExpressionError("division by zero")
        if divisor is not None:
            return Polynomial({monomial: value / divisor for monomial, value in self.terms.items()})
        return self * Polynomial.symbol(f"1/({other})")

    def power(self, exponent: Polynomial) -> Polynomial:
        n = exponent.value
        base = self.value
        if n is None or n.denominator != 1 or abs(n) > _MAX_POWER or (n < 0 and base is None):
            if base is not None and n is not None and n.denominator == 1 and abs(n) <= 64 and base:
                return Polynomial.constant(base ** int(n))
            return Polynomial.symbol(f"({self})^({exponent})")
        if n < 0:
            return Polynomial.constant(1) / self.power(-exponent)
        result = Polynomial.constant(1)
        for _ in range(int(n)):
            result = result * self
        return result

    def scaled(self) -> Polynomial:
        """Return this divided by its first coefficient: equal for 2x = 8 and x = 4 as differences."""
        if not self.terms:
            return self
        first = self.terms[min(self.terms)] if () not in self.terms or len(self.terms) == 1 else None
        if first is None:
            first = self.terms[min(monomial for monomial in self.terms if monomial)]
        return Polynomial({monomial: value / first for monomial, value in self.terms.items()})

    def __str__(self) -> str:
        parts = []
        for monomial in sorted(self.terms):
            symbols = "*".join(name if power == 1 else f"{name}^{power}" for name, power in monomial)
            parts.append(f"{self.terms[monomial]}{'*' if symbols else ''}{symbols}")
        return " + ".join(parts) or "0"


def _multiply(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + power
    if sum(powers.values()) > 2 * _MAX_POWER:
        raise ExpressionError("the degree is too high")
    return tuple(sorted(powers.items()))


# Everything but sqrt, which has exact values.
_OPAQUE_FUNCTIONS: Final = FUNCTIONS - {"sqrt"}


class _Parser:
    """Precedence climbing; a missing multiplication sign multiplies (2x, 3(x+1))."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._nesting = 0

    def parse(self) -> Polynomial:
        result = self._sum()
        if self._index != len(self._tokens):
            raise ExpressionError(f"unexpected {self._text!r}")
        return result

    @property
    def _token(self) -> Token | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    @property
    def _text(self) -> str:
        token = self._token
        return (
            token.text if token is not None and token.kind in ("operator", "open", "close", "break") else ""
        )

    def _take(self, *texts: str) -> str:
        text = self._text
        if text not in texts or not text:
            return ""
        self._index += 1
        return text

    def _sum(self) -> Polynomial:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise ExpressionError("nested too deeply")
        result = self._term()
        while operator := self._take("+", "-"):
            right = self._term()
            result = result + right if operator == "+" else result - right
        self._nesting -= 1
        return result

    def _term(self) -> Polynomial:
        result = self._signed()
        while self._token is not None:
            if operator := self._take("*", "/"):
                right = self._signed()
                result = result * right if operator == "*" else result / right
            elif self._token.kind in ("symbol", "open"):
                result = result * self._power()
            else:
                break
        return result

    def _signed(self) -> Polynomial:
        sign = 1
        while operator := self._take("+", "-"):
            sign = -sign if operator == "-" else sign
        result = self._power()
        return result if sign > 0 else -result

    def _power(self) -> Polynomial:
        result = self._postfix()
        if self._take("^"):
            self._nesting += 1
            if self._nesting > _MAX_NESTING:
                raise ExpressionError("nested too deeply")
            sign = bool(self._take("-"))
            exponent = self._power()
            self._nesting -= 1
            return result.power(-exponent if sign else exponent)
        return result

    def _postfix(self) -> Polynomial:
        result = self._atom()
        while operator := self._take("!", "%", "°"):
            if operator == "%":
                result = result / Polynomial.constant(100)
            elif operator == "!":
                result = _factorial(result)
        return result

    def _atom(self) -> Polynomial:
        token = self._token
        if token is None:
            raise ExpressionError("an operand is missing")
        self._index += 1
        if token.value is not None:
            return Polynomial.constant(token.value)
        if token.kind == "symbol":
            if token.text == "sqrt":
                return _square_root(self._arguments()[0])
            if token.text in _OPAQUE_FUNCTIONS:
                return self._function(token.text)
            return Polynomial.symbol(token.text)
        if token.kind == "open":
            return self._group()
        raise ExpressionError(f"unexpected {token.text!r}")

    def _group(self) -> Polynomial:
        result = self._sum()
        if not self._take(")"):
            raise ExpressionError("a bracket is not closed")
        return result

    def _function(self, name: str) -> Polynomial:
        power = self._power_of_function()
        arguments = ", ".join(str(argument) for argument in self._arguments())
        return Polynomial.symbol(f"{name}({arguments})").power(power)

    def _power_of_function(self) -> Polynomial:
        return self._postfix() if self._take("^") else Polynomial.constant(1)

    def _arguments(self) -> list[Polynomial]:
        if self._text != "(":
            return [self._power()]
        self._index += 1
        arguments = [self._sum()]
        while self._take(",", ";"):
            arguments.append(self._sum())
        if not self._take(")"):
            raise ExpressionError("a bracket is not closed")
        return arguments


def _factorial(operand: Polynomial) -> Polynomial:
    n = operand.value
    if n is None or n.denominator != 1 or not 0 <= n <= 40:
        return Polynomial.symbol(f"({operand})!")
    result = 1
    for factor in range(2, int(n) + 1):
        result *= factor
    return Polynomial.constant(result)


def _square_root(operand: Polynomial) -> Polynomial:
    value = operand.value
    if value is not None and value >= 0:
        top, bottom = isqrt(value.numerator), isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Polynomial.constant(Fraction(top, bottom))
    return Polynomial.symbol(f"sqrt({operand})")


def parse_expression(tokens: Sequence[Token]) -> Polynomial:
    """Return the polynomial that ``tokens`` write.

    Raises:
        ExpressionError: they are no expression, or its expansion is too large.
    """
    return _Parser(tokens).parse()


def leaves(tokens: Iterable[Token]) -> tuple[str, ...]:
    """Return the numbers and symbols of an expression, sorted, whatever joins them."""
    return tuple(sorted(str(t.value) if t.value is not None else t.text for t in tokens if t.kind in _LEAVES))


_LEAVES: Final = ("number", "symbol")
