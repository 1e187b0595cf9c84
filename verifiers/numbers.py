"""``numbers``: the quantities, operations and results of two steps agree.

What each decision means:

- ``reject``: the steps contradict each other: another result, another operation on the same operands,
  another value for the same variable, arithmetic that is wrong in one of them only;
- ``accept``: results, quantities and operations agree, and so do the few words around them;
- ``unknown``: numbers alone cannot tell. ``Comparison.only_words_open`` then says whether the words are all
  that is left to judge (what ``semantic`` goes on from) or the numbers themselves leave a doubt.

A quantity may stand in one step only if the context already holds it or the step derives it in correct
arithmetic; but as soon as each step has a quantity that the other lacks, the numbers are in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from reason_spec.types import Decision, LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.claims import ARITHMETIC, Claims, Expression, Known, read_claims, read_known
from reason_spec.verifiers.wording import Wording, read_wording, same_content


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the numbers of two steps compare.

    ``score`` is the agreement in [0, 1]: twice the shared quantities and operations over all of both,
    at most 0.5 where they contradict each other.
    """

    decision: Decision
    score: float
    reason: str
    only_words_open: bool = False


def compare_numbers(drafted: str, target: str, context: str = "") -> Comparison:
    """Compare the mathematics of two steps; ``context`` is what both may restate."""
    a, b = read_claims(drafted), read_claims(target)
    score = _agreement(a, b)
    contradiction = _contradiction(a, b)
    if contradiction:
        return Comparison("reject", min(score, 0.5), contradiction)
    known = read_known(context)
    doubt = _quantities_doubt(a, b, known.quantities)
    doubt = doubt or _formulas_doubt(a, b, known) or _formulas_doubt(b, a, known) or _workings_doubt(a, b)
    if doubt:
        return Comparison("unknown", score, doubt)
    wording = read_wording(drafted, target, context)
    if _all_agrees(a, b, wording.drafted, wording.target):
        return Comparison("accept", score, "quantities, operations and words agree")
    doubt = _operations_doubt(a, b, wording.drafted, wording.target)
    if doubt:
        return Comparison("unknown", score, doubt)
    return Comparison("unknown", score, "the numbers agree, the words are open", only_words_open=True)


def _agreement(a: Claims, b: Claims) -> float:
    left, right = (frozenset[object](c.quantities) | c.operations | c.symbols for c in (a, b))
    return 2 * len(left & right) / (len(left) + len(right)) if left or right else 1.0


def _contradiction(a: Claims, b: Claims) -> str | None:
    return _results_contradict(a, b) or _arithmetic_contradicts(a, b) or _operations_contradict(a, b)


def _results_contradict(a: Claims, b: Claims) -> str | None:
    if a.result is not None and b.result is not None and a.result != b.result:
        everything = (a.quantities | a.weak_quantities, b.quantities | b.weak_quantities)
        if a.result not in everything[1] and b.result not in everything[0]:
            return f"the result is {a.result} in one step and {b.result} in the other"
    values = dict(b.assigned)
    for symbol, numbers in a.assigned:
        if symbol in values and not numbers & values[symbol]:
            return f"{symbol} is {_listed(numbers)} in one step and {_listed(values[symbol])} in the other"
    return None


def _arithmetic_contradicts(a: Claims, b: Claims) -> str | None:
    wrong = a.false_relations ^ b.false_relations
    return f"wrong in one step only: {min(wrong)}" if wrong else None


def _operations_contradict(a: Claims, b: Claims) -> str | None:
    """The same operands must come to the same value, by one operation at least in common."""
    left, right = _forms(a), _forms(b)
    for operands in sorted(left.keys() & right.keys()):
        mine, others = left[operands], right[operands]
        if not {form.canonical for form in mine} & {form.canonical for form in others}:
            return f"{_listed(f.canonical for f in mine)} against {_listed(f.canonical for f in others)}"
        if not {_written_signs(form) for form in mine} & {_written_signs(form) for form in others}:
            return f"other operations on {', '.join(operands)}"
    arithmetic = [claims.operations & ARITHMETIC for claims in (a, b)]
    if arithmetic[0] and arithmetic[1] and not arithmetic[0] & arithmetic[1]:
        return f"other operations: {_listed(arithmetic[0])} against {_listed(arithmetic[1])}"
    return None


def _written_signs(form: Expression) -> tuple[str, ...]:
    """Return the operators but ``*``, which may be left out: 2(3) + 1 is 2 * 3 + 1."""
    return tuple(operator for operator in form.operators if operator != "*")


def _forms(claims: Claims) -> dict[tuple[str, ...], set[Expression]]:
    forms: dict[tuple[str, ...], set[Expression]] = {}
    for expression in claims.expressions:
        forms.setdefault(expression.leaves, set()).add(expression)
    return forms


def _quantities_doubt(a: Claims, b: Claims, known: frozenset[Fraction]) -> str | None:
    only_a = (a.quantities | a.weak_quantities) - b.quantities - b.weak_quantities
    only_b = (b.quantities | b.weak_quantities) - a.quantities - a.weak_quantities
    if only_a and only_b:
        return f"{_listed(only_a)} in one step only, {_listed(only_b)} in the other"
    for mine, claims, other in ((a.quantities - b.quantities, a, b), (b.quantities - a.quantities, b, a)):
        underived = _underived(mine, claims, other, known)
        if underived:
            return f"{_listed(underived)} in one step only"
    if a.result != b.result and not _same_formulas(a, b):
        return f"the last quantity is {a.result} in one step and {b.result} in the other"
    if bool(a.quantities) != bool(b.quantities):
        return "only one of the steps holds numbers"
    return None


def _same_formulas(a: Claims, b: Claims) -> bool:
    """Whether both steps end in formulas and state the same ones, in whatever order."""
    formulas = [frozenset(relation.canonical for relation in claims.relations) for claims in (a, b)]
    return a.result_in_formula and b.result_in_formula and formulas[0] == formulas[1] != frozenset()


def _underived(
    extra: frozenset[Fraction], claims: Claims, other: Claims, known: frozenset[Fraction]
) -> frozenset[Fraction]:
    """Return the extra quantities that are neither known nor part of correct arithmetic."""
    correct = any(r.truth == "true" for r in claims.relations)
    in_arithmetic = frozenset(
        leaf for expression in claims.expressions for leaf in expression.leaves
    ) | frozenset(str(r.value) for r in claims.relations if r.truth == "true")
    reciprocals = frozenset(1 / value for value in other.quantities if value)
    return frozenset(
        value for value in extra - known - reciprocals if not (correct and str(value) in in_arithmetic)
    )


def _formulas_doubt(claims: Claims, other: Claims, context: Known) -> str | None:
    """Find what ``claims`` writes, but neither the other step nor the context, and what does not follow."""
    symbols = claims.symbols - other.symbols - context.symbols
    if symbols:
        return f"symbol {_listed(symbols)} in one step only"
    relations = _open_relations(claims) - _open_relations(other)
    if relations:
        relations -= context.open_relations
    if relations:
        return f"{min(relations)} in one step only"
    open_expressions = {e.canonical for e in claims.expressions if not e.derived}
    if not open_expressions:
        return None
    stated = {e.canonical for e in other.expressions} | context.expressions
    # 0 and 1 come out of too many expressions to vouch for one.
    stated |= {str(value) for value in claims.quantities & other.quantities if value not in (0, 1)}
    expressions = open_expressions - stated
    return f"{min(expressions)} in one step only" if expressions else None


def _workings_doubt(a: Claims, b: Claims) -> str | None:
    unproven = a.unproven ^ b.unproven
    if unproven:
        return f"columns that do not follow, in one step only: {min(unproven)}"
    if (
        a.main
        and b.main
        and not a.main.derived
        and not b.main.derived
        and a.main.canonical != b.main.canonical
    ):
        return f"one step sets out from {a.main.canonical}, the other from {b.main.canonical}"
    left, right = (
        {expression.leaves for expression in claims.expressions if len(expression.leaves) > 1}
        for claims in (a, b)
    )
    if left - right and right - left:
        return f"other working: {', '.join(min(left - right))} against {', '.join(min(right - left))}"
    return None


def _open_relations(claims: Claims) -> frozenset[str]:
    return frozenset(relation.canonical for relation in claims.relations if relation.truth == "open")


def _operations_doubt(a: Claims, b: Claims, drafted: Wording, target: Wording) -> str | None:
    used = [
        (claims.operations & ARITHMETIC) or wording.operations
        for claims, wording in ((a, drafted), (b, target))
    ]
    if used[0] and used[1] and not used[0] & used[1]:
        return f"other operations: {_listed(used[0])} against {_listed(used[1])}"
    if a.operations - b.operations and b.operations - a.operations:
        return f"other operations: {_listed(a.operations)} against {_listed(b.operations)}"
    return None


def _all_agrees(a: Claims, b: Claims, drafted: Wording, target: Wording) -> bool:
    if drafted.retracts != target.retracts:
        return False
    if a.quantities != b.quantities or a.weak_quantities != b.weak_quantities:
        return False
    if a.operations != b.operations or a.symbols != b.symbols or not same_content(drafted, target):
        return False
    in_order = _values(drafted) == _values(target)
    if drafted.content or target.content:
        return in_order and a.has_mathematics
    canonical = [frozenset(r.canonical for r in claims.relations) for claims in (a, b)]
    return in_order or bool(canonical[0] and canonical[0] == canonical[1])


def _values(wording: Wording) -> list[str]:
    return [
        str(token.value) if token.value is not None else token.text
        for token in wording.tokens
        if token.kind not in ("word", "break", "open", "close")
    ]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


class NumbersVerifier(Verifier):
    """Judges by numbers alone; ``unknown`` where words would have to be understood."""

    name: str = "numbers"
    loss_class: LossClass = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        if drafted.text == target.text:
            return Verdict("accept", 1.0, reason="same text")
        known = f"{context.question}\n{context.prefix_text}"
        comparison = compare_numbers(drafted.text, target.text, known)
        return Verdict(comparison.decision, comparison.score, reason=comparison.reason)
