"""``conformal``: the steps that are most surprising to the target, by their rank among earlier ones.

ATTS (Asynchronous Test-Time Scaling, arXiv 2509.15148) scores a chunk of a draft by its perplexity under the
target. The conformal p-value of a score among earlier ones needs no scale and no threshold of perplexity, and
no other chain: each decides alone, as soon as it is scored. In the paper and here

    p = (1 + number of earlier scores >= s) / (1 + number of earlier scores)

Differences from the authors' program: it compares with a saved array of scores, here the earlier ones are
those of this run; its chunks have 500 tokens, here a chunk is a step.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean
from typing import Final

from reason_spec.engines.base import Engine
from reason_spec.speculation.draft_calibration import entry_of
from reason_spec.types import Decision, LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

DEFAULT_BUDGET: Final = 0.4
"""Share of the steps that the target writes. The authors' program hands it the upper 40 % of its scores."""
_FEWEST: Final = 20
"""Earlier scores before a rank says anything; until then verdicts are ``unknown``."""
_MOST: Final = 1000
"""Earlier scores that are kept of an owner."""


class ConformalVerifier(Verifier):
    """Rejects the steps with the highest perplexity, at most a share of ``threshold`` of all.

    The score of a verdict is the p-value. If the steps' perplexities are exchangeable, p is below
    ``threshold`` with at most that probability: the threshold bounds the share of steps that the target
    writes. It says nothing of how many accepted steps are wrong.

    Verdicts depend on the steps judged before, and so on the order in which parallel answers come. Each owner
    of texts has earlier scores of its own.
    """

    name: str = "conformal"
    loss_class: LossClass = "routed"
    judges_draft_only: bool = True
    runs_on_target: bool = True
    compares: bool = False
    learns: bool = True

    def __init__(self, target: Engine, threshold: float | None = None, deadline_seconds: float = 5.0) -> None:
        super().__init__(deadline_seconds)
        self.threshold: float = self.checked_threshold(DEFAULT_BUDGET if threshold is None else threshold)
        self._target = target
        self._earlier: dict[str, deque[float]] = {}

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert context.target_prefix is not None, "conformal needs the tokens before the step"
        scored = await self._target.score(context.target_prefix, drafted.tokens)
        surprise = -fmean(scored.logprobs)
        earlier = entry_of(self._earlier, context.owner, lambda: deque(maxlen=_MOST))
        num_earlier = len(earlier)
        p_value = (1 + sum(score >= surprise for score in earlier)) / (1 + num_earlier)
        earlier.append(surprise)
        cost, work = len(drafted.tokens), scored.usage
        if num_earlier < _FEWEST:
            reason = f"{num_earlier} earlier steps; ranks begin at {_FEWEST}"
            return Verdict("unknown", p_value, cost_tokens=cost, reason=reason, work=work)
        reason = f"surprise {surprise:.3f} a token: p = {p_value:.3f} among {num_earlier} earlier steps"
        decision: Decision = "accept" if p_value >= self.threshold else "reject"
        return Verdict(decision, p_value, cost_tokens=cost, reason=reason, work=work)
