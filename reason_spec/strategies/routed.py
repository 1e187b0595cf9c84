"""Routers in the place of a judge: what was drafted says which model writes a step."""

from __future__ import annotations

import time
from typing import Protocol

from reason_spec.routers.base import StepRoute
from reason_spec.strategies.specreason import Judge
from reason_spec.types import Decision, Step, Verdict
from reason_spec.verifiers.base import CUT, VerificationContext


class StepRouter(Protocol):
    """Chooses between the drafted step and a step of the target, without asking a model."""

    def route(self, context: VerificationContext, drafted: Step) -> StepRoute: ...


def judge_by(router: StepRouter) -> Judge:
    """Return the judge of a `SpecReasonLoop` that follows a router.

    Its verdicts record the routes. The target writes a drafted step that was cut, and one at which the router
    fails.
    """

    async def judge(context: VerificationContext, drafted: Step) -> Verdict:
        started = time.perf_counter()
        if drafted.finish in CUT:
            return Verdict("unknown", reason=f"the drafted step was cut ({drafted.finish})")
        try:
            route = router.route(context, drafted)
        except Exception as error:
            return Verdict("unknown", reason=f"{type(error).__name__}: {error}")
        seconds = time.perf_counter() - started
        decision: Decision = "accept" if route.writer == "draft" else "reject"
        return Verdict(decision, 1.0 - route.score, seconds, reason=route.reason)

    return judge
