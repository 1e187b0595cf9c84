"""How much faster speculation is, by its acceptance rates and costs, in closed form.

Rates are chances from 0 to 1. Costs are ratios: of a drafted token over a target token, of a drafted step
or a verdict over a target step. A speed-up is over the target alone, without any speculation. All formulas
assume that drafts are accepted independently of each other, that steps are equally long, that answers do not
end, and that a pass takes as long whatever it holds; `lab.planning.simulator` does without these assumptions,
and is tested against the formulas where they hold.

Numbers of sections, equations and theorems are those of Lookahead Reasoning (arXiv 2506.19830) unless another
paper is named. Its k1 is ``parallel`` here, its k2 ``num_drafts + 1``.
"""

from __future__ import annotations

from math import ceil

# The token level ------------------------------------------------------------------------------


def tokens_per_pass(alpha: float, num_drafts: float) -> float:
    """Return the expected tokens of a pass that verifies ``num_drafts`` drafts, each accepted with ``alpha``.

    The accepted ones and one more: (1 - alpha^(k+1)) / (1 - alpha) (arXiv 2211.17192, equation 1).
    """
    if alpha >= 1.0:
        return num_drafts + 1.0
    return (1.0 - float(alpha ** (num_drafts + 1.0))) / (1.0 - alpha)


def token_speedup(alpha: float, num_drafts: float, cost: float) -> float:
    """Return the speed-up of token-level speculation (section 2; arXiv 2211.17192, theorem 3.8).

    ``cost`` is that of one drafted token over one of the target, and drafts are written one after another
    before the pass. A pass whose drafts are all accepted brings a bonus token, as section 3.3 counts:
    g(k2) = (1 - alpha^k2) / ((1 - alpha)(1 - c + c k2)) with k2 = ``num_drafts`` + 1.
    """
    if num_drafts <= 0:
        return 1.0
    return tokens_per_pass(alpha, num_drafts) / (1.0 + cost * num_drafts)


# The step level: the target writes its own version of each step -----------------------------------


def asynchronous_speedup(alpha: float, parallel: int, cost: float, verification: float = 0.0) -> float:
    """Return the speed-up where draft and target work at the same time (theorem 2, appendix C).

    Where the draft cannot keep ``parallel`` target steps busy, more of them bring nothing. A verdict takes
    ``verification``; those of several steps overlap, so that it counts once for each ``parallel`` steps in a
    row, or, where the draft is the limit, once for each run of accepted drafts. Theorem 2 leaves it out.
    """
    if parallel <= 1:
        return 1.0
    if parallel * cost >= 1.0 + verification:
        # (1 + E[X]) / (1 + v + c E[X]) with E[X] = alpha / (1 - alpha) drafts in a row.
        return 1.0 / (cost * alpha + (1.0 + verification) * (1.0 - alpha)) if alpha < 1.0 else 1.0 / cost
    if alpha >= 1.0:
        return parallel / (1.0 + verification)
    k, a = parallel, alpha
    drafting = cost * (a - a ** (k + 1) - k * (1.0 - a) * a**k)
    return (1.0 - float(a**k)) / ((1.0 - a) * (1.0 + verification) + drafting)


def windowed_speedup(alpha: float, depth: int, cost: float, verification: float = 0.0) -> float:
    """Return the asynchronous speed-up where the draft is never more than ``depth`` steps ahead.

    `strategies.lookahead` looks ahead in this way. In theorem 2 the draft writes one step beyond the last
    that the target works on. A draft that waits until the first of ``depth`` steps is decided begins it
    ``cost`` later: each ``depth`` + 1 steps in a row take 1 + v + c instead of 1 + v (worked out here, in the
    way of appendix C). At depth 1 the one that waited comes too late where there is a verdict to wait for:
    the target has that step by 1 + c, whatever its draft would have been.
    """
    if depth <= 0:
        return 1.0
    if depth == 1:
        both = 1.0 + max(cost, verification)
        return (1.0 + alpha) / ((1.0 - alpha) * (1.0 + verification) + alpha * both)
    if depth * cost >= 1.0 + verification:
        return asynchronous_speedup(alpha, depth + 1, cost, verification)
    k = depth + 1
    if alpha >= 1.0:
        return k / (1.0 + verification + cost)
    in_row = alpha / (1.0 - alpha)
    whole = float(alpha**k) / (1.0 - float(alpha**k))
    seconds = (1.0 + verification) * (1.0 + whole) + cost * (whole + in_row - k * whole)
    return (1.0 + in_row) / seconds


def step_ceiling(alpha: float) -> float:
    """Return the speed-up of a draft and verdicts that cost nothing, at any depth: 1 / (1 - alpha)."""
    return 1.0 / (1.0 - alpha) if alpha < 1.0 else float("inf")


def busy_branches(parallel: int, cost: float) -> int:
    """Return how many target steps are under way at once: the draft may not keep all of them busy.

    This is ParallelDim of equation 5 for the asynchronous form.
    """
    return ceil(1.0 / cost) if parallel * cost > 1.0 else parallel


# Judged alone: the target writes only what is escalated -------------------------------------------


def judged_speedup(alpha: float, cost: float, verification: float, rewriting: float = 1.0) -> float:
    """Return the speed-up where each drafted step is judged before anything else is done.

    The form of SpecReason (arXiv 2504.07891), RSD (arXiv 2501.19324) and Arbitrage (arXiv 2512.05033): a
    step takes a draft, a verdict, and, where it is escalated (1 - ``alpha``), a target step that is written
    ``rewriting`` times as fast as without a token level: 1 / (c + v + (1 - alpha) / g). It is above 1 where
    alpha > c + v (for g = 1). None of the papers gives it; it follows from their loops.
    """
    return 1.0 / (cost + verification + (1.0 - alpha) / rewriting)


def judged_ahead_speedup(alpha: float, cost: float, verification: float, rewriting: float = 1.0) -> float:
    """Return the speed-up of `judged_speedup` where the draft writes on while its steps are judged.

    Only the verdict that refuses is waited for: 1 / (c + (1 - alpha)(v + 1 / g)). Assumes a depth that
    never holds the draft up, and verdicts that overlap.
    """
    return 1.0 / (cost + (1.0 - alpha) * (verification + 1.0 / rewriting))
