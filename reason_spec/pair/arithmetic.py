"""Written arithmetic, one table fact at a time, as taught at school.

Every equation needs one entry of the addition or multiplication table, so that a small model can learn all of
them. Columns run from the ones up and name what they carry: ``47+38: 7+8=15 carry 1,4+3+1=8``. A column that
is too small says so before it borrows: ``52-38: 2-8 borrow,12-8=4,5-3-1=1``. A column without a second digit
is brought down (``145+3: 5+3=8,4,1``), products go digit by digit (``47*3: 7*3=21 carry 2,4*3=12,12+2=14``),
and quotients are found as ``b * q = a``, part by part, with the remainder (``141/3: 14=3*4+2,21=3*7``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, TypeAlias

Operator: TypeAlias = Literal["+", "-", "*", "/"]


class Calculation(NamedTuple):
    """``a operator b``, which ``work_out`` can do in writing."""

    a: int
    operator: Operator
    b: int

    @property
    def value(self) -> int:
        if self.operator == "+":
            return self.a + self.b
        if self.operator == "-":
            return self.a - self.b
        return self.a * self.b if self.operator == "*" else self.a // self.b

    @property
    def can_be_worked_out(self) -> bool:
        """Whether it stays among whole numbers and one-digit factors (a quotient may have 10)."""
        if min(self.a, self.b) < 0:
            return False
        if self.operator == "-":
            return self.a >= self.b
        if self.operator == "*":
            return 1 <= self.b <= 9
        if self.operator == "/":
            return 1 <= self.b <= 10 and self.a > 0 and self.a % self.b == 0
        return True


class Worked(NamedTuple):
    """A calculation in writing: the text of the working and the value it comes to."""

    text: str
    value: int


def _digits(number: int) -> list[int]:
    """Return the digits of ``number``, ones first."""
    return [int(digit) for digit in reversed(str(number))]


def _add(a: int, b: int) -> list[str]:
    tops, bottoms = _digits(a), _digits(b)
    places = max(len(tops), len(bottoms))
    columns: list[str] = []
    carry = 0
    for place in range(places):
        terms = [*tops[place : place + 1], *bottoms[place : place + 1], *([1] if carry else [])]
        total = sum(terms)
        carry = total // 10
        text = "+".join(map(str, terms)) + (f"={total}" if len(terms) > 1 else "")
        columns.append(text + (" carry 1" if carry and place < places - 1 else ""))
    return columns


def _subtract(a: int, b: int) -> list[str]:
    tops, bottoms = _digits(a), _digits(b)
    columns: list[str] = []
    borrowed = False
    for place, top in enumerate(tops):
        taken = [*bottoms[place : place + 1], *([1] if borrowed else [])]
        borrowed = top < sum(taken)
        minuend = top + 10 * borrowed
        column = f"{_row(top, taken)} borrow,{_row(minuend, taken)}" if borrowed else _row(top, taken)
        columns.append(column + (f"={minuend - sum(taken)}" if taken else ""))
    return columns


def _row(top: int, taken: Sequence[int]) -> str:
    return "-".join(map(str, [top, *taken]))


def _multiply(a: int, b: int) -> list[str]:
    digits = _digits(a)
    columns: list[str] = []
    carry = 0
    for place, digit in enumerate(digits):
        product = digit * b
        column = f"{digit}*{b}={product}" + (f",{product}+{carry}={product + carry}" if carry else "")
        carry = (product + carry) // 10
        columns.append(column + (f" carry {carry}" if carry and place < len(digits) - 1 else ""))
    return columns


def _divide(a: int, b: int) -> list[str]:
    parts: list[str] = []
    part = 0
    for digit in str(a):
        part = 10 * part + int(digit)
        if part < b and not parts:
            continue
        quotient, rest = divmod(part, b)
        parts.append(f"{part}={b}*{quotient}" + (f"+{rest}" if rest else ""))
        part = rest
    return parts


_COLUMNS: Mapping[Operator, Callable[[int, int], list[str]]] = {
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
    calculation = Calculation(a, operator, b)
    assert calculation.can_be_worked_out, calculation
    if operator == "/" and b == 10:
        return Worked(f"{a}/{b}={calculation.value}", calculation.value)
    return _put_together(calculation, _COLUMNS[operator](a, b), calculation.value)


def slip(calculation: Calculation, rng: Random) -> Worked | None:
    """Work out a sum or difference with one column off by one, and the value that follows from it.

    None where no column can slip without changing the number of digits.
    """
    if calculation.operator not in "+-":
        return None
    columns = _COLUMNS[calculation.operator](calculation.a, calculation.b)
    places = [place for place, column in enumerate(columns) if "=" in column]
    rng.shuffle(places)
    for place in places:
        body, _, tail = columns[place].partition(" carry")
        head, total = body.rsplit("=", 1)
        for change in rng.sample((-1, 1), 2):
            if 0 <= int(total[-1]) + change <= 9:
                tail = f" carry{tail}" if tail else ""
                columns[place] = f"{head}={int(total) + change}{tail}"
                return _put_together(calculation, columns, calculation.value + change * 10**place)
    return None


def _put_together(calculation: Calculation, columns: Sequence[str], value: int) -> Worked:
    expression = "{}{}{}".format(*calculation)
    if list(columns) == [f"{expression}={value}"]:
        return Worked(columns[0], value)
    return Worked(f"{expression}: {','.join(columns)}", value)
