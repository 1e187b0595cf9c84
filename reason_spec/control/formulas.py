"""How much faster speculation is, by its acceptance rates and costs (arXiv 2506.19830, section 3).

Rates are chances in 0..1; costs are those of one drafted token or step over one of the target.
"""

from __future__ import annotations

from math import ceil


def tokens_per_pass(alpha: float, num_drafts: float) -> float:
    """Return the expected tokens of a pass that checks ``num_drafts`` drafts, each right with ``alpha``.

    The accepted ones and one more: (1 - alpha^(k+1)) / (1 - alpha) (arXiv 2211.17192, equation 1).
    """
    if alpha >= 1.0:
        return num_drafts + 1.0
    return (1.0 - float(alpha ** (num_drafts + 1.0))) / (1.0 - alpha)


def synchronous_speedup(alpha: float, parallel: int, cost: float) -> float:
    """Return the speed-up of step-level speculation in rounds: all drafts, then all checks (theorem 1).

    ``parallel`` is the number of target steps under way at once; 1 is no speculation.
    """
    return tokens_per_pass(alpha, parallel - 1) / (1.0 - cost + cost * parallel)


def asynchronous_speedup(alpha: float, parallel: int, cost: float) -> float:
    """Return the speed-up where draft and target work at the same time (theorem 2).

    Where the draft cannot keep ``parallel`` target steps busy, more of them bring nothing.
    """
    if parallel <= 1:
        return 1.0
    if parallel * cost >= 1.0:
        return 1.0 / (cost + (1.0 - cost) * (1.0 - alpha))
    if alpha >= 1.0:
        return float(parallel)
    k, a = parallel, alpha
    drafting = cost * (a - a ** (k + 1) - k * (1.0 - a) * a**k)
    return (1.0 - float(a**k)) / ((1.0 - a) + drafting)


def busy_branches(parallel: int, cost: float) -> int:
    """Return how many target steps are under way at once: the draft may not keep all of them busy."""
    return ceil(1.0 / cost) if parallel * cost > 1.0 else parallel
