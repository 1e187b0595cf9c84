"""``numbers``: both steps make the same calculations. Words are not read.

- ``reject``: the numbers contradict each other: another result, a number in each that the other has not got;
- ``accept``: the same calculations, at least one, and no number that is in one step only;
- ``unknown``: numbers alone cannot tell.
"""

from __future__ import annotations

from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.quantities import read_quantities


class NumbersVerifier(Verifier):
    """Compares calculations; no model."""

    name: str = "numbers"
    loss_class: LossClass = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        if drafted.text == target.text:
            return Verdict("accept", 1.0, reason="same text")
        known = f"{context.question}\n\n{context.prefix_text}"
        objection = find_objection(drafted.text, target.text, known)
        if objection is not None:
            return Verdict("reject" if objection.contradicts else "unknown", 0.0, reason=objection.reason)
        a, b = read_quantities(drafted.text), read_quantities(target.text)
        operations = [{(c.operands, c.operators) for c in step.calculations} for step in (a, b)]
        if operations[0] and operations[0] == operations[1] and a.numbers == b.numbers:
            return Verdict("accept", 1.0, reason="the same calculations")
        return Verdict("unknown", 0.5, reason="numbers alone do not tell")
