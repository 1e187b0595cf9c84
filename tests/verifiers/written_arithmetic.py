"""Arithmetic worked out in writing, in several notations, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hypothesis import strategies as st

Notation: TypeAlias = Literal["equation", "terms", "afterwards", "spelled out"]


@dataclass(frozen=True)
class Calculation:
    """``a operator b``; its value is whole and not negative."""

    a: int
    operator: str
    b: int

    @property
    def value(self) -> int:
        return OPERATIONS[self.operator](self.a, self.b)

    @property
    def expression(self) -> str:
        return f"{self.a}{self.operator}{self.b}"


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


def digits(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]


def columns(calculation: Calculation, notation: Notation) -> list[str]:
    a, b = calculation.a, calculation.b
    return {"+": _add, "-": _subtract, "*": _multiply, "/": _divide}[calculation.operator](a, b, notation)


def _add(a: int, b: int, notation: Notation) -> list[str]:
    lines, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        terms = digits(a)[place : place + 1] + digits(b)[place : place + 1]
        total = sum(terms) + carry
        if len(terms) == 2 and carry and notation == "afterwards":
            lines += [f"{terms[0]}+{terms[1]}={sum(terms)}", f"{sum(terms)}+{carry}={total}"]
        else:
            terms += [carry] if carry else []
            lines.append("+".join(map(str, terms)) + (f"={total}" if len(terms) > 1 else ""))
        carry = total // 10
        if notation == "spelled out" and carry:
            lines += [f"write {total % 10}", f"carry the {carry}"]
        elif carry:
            lines[-1] += f" carry {carry}"
    return lines


def _subtract(a: int, b: int, notation: Notation) -> list[str]:
    lines, borrowed = [], 0
    for place, top in enumerate(digits(a)):
        bottom = digits(b)[place] if place < len(str(b)) else None
        if bottom is not None and borrowed and top and notation == "afterwards":
            lines.append(f"{top}-1={top - 1}")
            top, borrowed = top - 1, 0
        taken = [*([bottom] if bottom is not None else []), *([1] if borrowed else [])]
        column = "-".join(map(str, [top, *taken]))
        borrowed = int(top < sum(taken))
        if borrowed:
            lines.append(f"{column} borrow" + (" 1" if notation == "spelled out" else ""))
            column, top = "-".join(map(str, [top + 10, *taken])), top + 10
        lines.append(column + (f"={top - sum(taken)}" if taken else ""))
    return lines


def _multiply(a: int, b: int, notation: Notation) -> list[str]:
    lines, carry = [], 0
    for digit in digits(a):
        total = digit * b + carry
        if carry and notation == "terms":
            lines.append(f"{digit}*{b}+{carry}={total}")
        else:
            lines.append(f"{digit}*{b}={digit * b}")
            lines += [f"{digit * b}+{carry}={total}"] if carry else []
        carry = total // 10
        if carry:
            lines[-1] += f" carry {carry}"
    return lines


def _divide(a: int, b: int, notation: Notation) -> list[str]:
    lines: list[str] = []
    part = 0
    for digit in str(a):
        part = 10 * part + int(digit)
        if part < b and not lines:
            continue
        quotient, rest = divmod(part, b)
        if notation == "terms":
            lines.append(f"{part}={b}*{quotient}" + (f"+{rest}" if rest else ""))
        elif notation == "afterwards" or part < b:
            lines.append(f"{b}*{quotient}={b * quotient}" + (f" rest {rest}" if rest else ""))
        else:
            lines.append(f"{part}/{b}={quotient}" + (f" remainder {rest}" if rest else ""))
        part = rest
    return lines


def write(calculation: Calculation, notation: Notation, *, opening: str = ": ", separator: str = ",") -> str:
    """Return ``47+8: 7+8=15 carry 1,4+1=5`` or, in the notation ``equation``, ``47+8=55``."""
    lines = columns(calculation, notation) if notation != "equation" else []
    one_equation = lines == [f"{calculation.expression}={calculation.value}"]
    if notation == "equation" or one_equation or not any("=" in line for line in lines):
        return f"{calculation.expression}={calculation.value}"
    return f"{calculation.expression}{opening}{separator.join(lines)}"


def calculations(operators: str = "+-*/", limit: int = 999) -> st.SearchStrategy[Calculation]:
    return st.sampled_from(operators).flatmap(lambda operator: _OF[operator](limit))


_OF: dict[str, Callable[[int], st.SearchStrategy[Calculation]]] = {
    "+": lambda limit: st.builds(
        lambda a, b: Calculation(a, "+", b), st.integers(10, limit), st.integers(2, limit)
    ),
    "-": lambda limit: st.builds(
        lambda a, b: Calculation(a + b, "-", b), st.integers(2, limit), st.integers(2, limit)
    ),
    "*": lambda limit: st.builds(
        lambda a, b: Calculation(a, "*", b), st.integers(10, limit), st.integers(2, 9)
    ),
    "/": lambda limit: st.builds(
        lambda q, b: Calculation(q * b, "/", b), st.integers(4, limit), st.integers(2, 9)
    ),
}
NOTATIONS: st.SearchStrategy[Notation] = st.sampled_from(["equation", "terms", "afterwards", "spelled out"])
WORKED = st.sampled_from(["terms", "afterwards", "spelled out"])
