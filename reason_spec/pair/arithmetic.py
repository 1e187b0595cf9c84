"""Written arithmetic, one table fact at a time, as a pupil would put it on paper.

Every equation that is written is true, and each needs one entry of the addition or
multiplication table, so that a small model can learn all of them. Columns run from the ones up:
``47+38: 7+8=15,4+3+1=8`` carries by adding 1 to the next column, ``52-38: 12-8=4,5-3-1=1`` borrows
by taking 1 from it, a column without a second digit is brought down (``145+3: 5+3=8,4,1``), and a
quotient is found by long division with remainders (``141/3: 14/3=4r2,21/3=7``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Operator: TypeAlias = Literal["+", "-", "*", "/"]


class Worked(NamedTuple):
    """A worked calculation: the text of the working and its value."""

    text: str
    value: int


def _columns(number: int) -> list[int]:
    """Return the digits of ``number``, ones first."""
    return [int(digit) for digit in reversed(str(number))]


def _add(a: int, b: int) -> list[str]:
    tops, bottoms = _columns(a), _columns(b)
    facts: list[str] = []
    carry = 0
    for place in range(max(len(tops), len(bottoms))):
        terms = [*tops[place : place + 1], *bottoms[place : place + 1], *([1] if carry else [])]
        total = sum(terms)
        carry = total // 10
        facts.append("+".join(map(str, terms)) + (f"={total}" if len(terms) > 1 else ""))
    return facts


def _subtract(a: int, b: int) -> list[str]:
    tops, bottoms = _columns(a), _columns(b)
    facts: list[str] = []
    borrowed = 0
    for place, top in enumerate(tops):
        taken = [*bottoms[place : place + 1], *([1] if borrowed else [])]
        borrowed = int(top < sum(taken))
        minuend = top + 10 * borrowed
        text = "-".join(map(str, [minuend, *taken]))
        facts.append(text + (f"={minuend - sum(taken)}" if taken else ""))
    return facts


def _multiply(a: int, b: int) -> list[str]:
    facts: list[str] = []
    carry = 0
    for digit in _columns(a):
        product = digit * b
        facts.append(f"{digit}*{b}={product}")
        if carry:
            facts.append(f"{product}+{carry}={product + carry}")
        carry = (product + carry) // 10
    return facts


def _divide(a: int, b: int) -> list[str]:
    facts: list[str] = []
    part = 0
    for digit in str(a):
        part = 10 * part + int(digit)
        if part < b and not facts:
            continue
        quotient, rest = divmod(part, b)
        facts.append(f"{part}/{b}={quotient}" + (f"r{rest}" if rest else ""))
        part = rest
    return facts


_FACTS: Mapping[Operator, Callable[[int, int], list[str]]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
}


def work_out(a: int, operator: Operator, b: int) -> Worked:
    """Work out ``a operator b`` in writing.

    Differences must not be negative, quotients must be whole and above 0, and the second number of a product
    or quotient must be one digit, or 10 in a quotient.
    """
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[operator]
    assert min(a, b, value) >= 0, (a, operator, b)
    assert operator in "+-" or 1 <= b <= 9 or (operator == "/" and b == 10), (a, operator, b)
    assert operator != "/" or (a > 0 and a % b == 0), (a, operator, b)
    expression = f"{a}{operator}{b}"
    if operator == "/" and b == 10:
        return Worked(f"{expression}={value}", value)
    facts = _FACTS[operator](a, b)
    if facts == [f"{expression}={value}"]:
        return Worked(facts[0], value)
    return Worked(f"{expression}: {','.join(facts)}", value)
