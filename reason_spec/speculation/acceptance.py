"""How a token is chosen from logits, and how drafted tokens are checked without loss.

The token at a position is a function of the logits there, the sampling settings and the noise, and
the noise is a function of (seed, problem, sample, position, vocabulary id) alone: a sampled token is
``argmax(logits / T + g)`` over the tokens that truncation leaves, where g are Gumbel variables drawn
from a counter-based generator (the Gumbel-max trick: the argmax is distributed as the softmax of
``logits / T``). Nothing depends on what else is in the batch, nor on when the token is chosen.

Checking a drafted token is therefore a comparison: choose the token that belongs at its position and
see whether it is the drafted one. By induction over positions the accepted tokens are those that
plain decoding with the same key writes, at temperature 0 and above it: the output is not only equally
distributed, as with rejection sampling (arXiv 2211.17192), it is the same. The price: a draft is
accepted less often than the two distributions overlap. A drafter that shares the noise comes near to
it: with total variation distance d it agrees with a chance of at least (1 - d) / (1 + d) (the Gumbel
coupling, arXiv 2408.07978), against 1 - d.

`sample_by_rejection` is the other way. The engine does not take it: its result is the model's
distribution only if whether a draft is checked does not depend on which token it is. Here it does,
because a draft ends where its own tokens become unlikely, and is checked if it came in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.types import NoiseKey, Sampling

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_WORD = (1 << 64) - 1
_SMALLEST_UNIFORM = 2.0**-54


def gumbel_noise(key: NoiseKey, position: int, vocab_size: int) -> FloatArray:
    """Return the standard Gumbel variables of a position, one for each vocabulary id.

    Philox turns (key, counter) into random words without a state. The last word of its counter runs
    over the vocabulary, so that id v has the same noise under any vocabulary size: models whose
    embeddings are padded to different sizes agree.
    """
    philox = np.random.Philox(
        key=np.array([key.seed & _WORD, 0], dtype=np.uint64),
        counter=np.array([0, position & _WORD, key.sample & _WORD, key.problem & _WORD], dtype=np.uint64),
    )
    uniform = np.random.Generator(philox).random(vocab_size)
    np.maximum(uniform, _SMALLEST_UNIFORM, out=uniform)
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


class Accepted(NamedTuple):
    """What became certain: ``tokens``, all but the last of them the drafts at ``nodes``."""

    tokens: list[int]
    nodes: list[int]


class Candidates(NamedTuple):
    """The tokens that may be drawn: ``ids`` ascending, and their ``logits`` over the temperature."""

    ids: IntArray
    logits: FloatArray


def truncate(logits: npt.NDArray[np.floating], sampling: Sampling) -> Candidates:
    """Return the candidates that top-k and top-p leave.

    Top-k keeps every token as likely as the k-th. Top-p keeps the smallest set of the likeliest
    tokens whose probability, after temperature and top-k, reaches ``top_p``; among equals lower ids
    come first.
    """
    assert not sampling.greedy
    scaled = logits.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        threshold = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        kept = np.flatnonzero(scaled >= threshold)
    else:
        kept = np.arange(len(scaled))
    if sampling.top_p < 1.0:
        values = scaled[kept]
        order = np.argsort(-values, kind="stable")
        probabilities = np.exp(values[order] - values[order[0]])
        cumulative = np.cumsum(probabilities / probabilities.sum())
        # The token that crosses the threshold belongs to the set.
        num_kept = int(np.searchsorted(cumulative, sampling.top_p)) + 1
        kept = np.sort(kept[order[:num_kept]])
    return Candidates(kept, scaled[kept])


def truncated_probabilities(logits: npt.NDArray[np.floating], sampling: Sampling) -> FloatArray:
    """Return the distribution that ``choose_token`` draws from, [vocabulary]."""
    probabilities = np.zeros(len(logits))
    if sampling.greedy:
        probabilities[int(np.argmax(logits))] = 1.0
        return probabilities
    candidates = truncate(logits, sampling)
    weights = np.exp(candidates.logits - candidates.logits.max())
    probabilities[candidates.ids] = weights / weights.sum()
    return probabilities


def choose_token(logits: npt.NDArray[np.floating], sampling: Sampling, position: int) -> int:
    """Return the token at ``position``, counted from the start of the model's text, prompt included.

    ``logits`` [vocabulary] are the model's prediction for that position. Ties go to the lowest id.
    """
    if sampling.greedy:
        return int(np.argmax(logits))
    candidates = truncate(logits, sampling)
    noise = gumbel_noise(sampling.noise, position, len(logits))
    return int(candidates.ids[np.argmax(candidates.logits + noise[candidates.ids])])


class Proposal(NamedTuple):
    """A drafted token and the distribution it was drawn from, [vocabulary]."""

    token: int
    probabilities: FloatArray


def sample_by_rejection(
    probabilities: FloatArray, proposals: Sequence[Proposal], rng: np.random.Generator
) -> int:
    """Return a token distributed as ``probabilities``, one of the proposed tokens where possible.

    Speculative sampling (arXiv 2211.17192, algorithm 1; for several proposals arXiv 2305.09781,
    algorithm 2): a proposal stands with probability p(x) / q(x), else p becomes the rest of p that q
    does not cover and the next one is tried. As ``choose`` of `accept` it checks chains and trees.

    Args:
        probabilities: what the model predicts, [vocabulary], summing to 1.
        proposals: drawn independently of each other; that they are proposed must not depend on which
            tokens they are.
        rng: must not be the source of the proposals.
    """
    wanted = probabilities
    for token, proposed in proposals:
        if rng.random() * proposed[token] < wanted[token]:
            return token
        wanted = np.maximum(wanted - proposed, 0.0)
        # A rejection where p and q are equal up to rounding leaves nothing over.
        wanted = wanted / wanted.sum() if wanted.any() else probabilities
    return int(rng.choice(len(wanted), p=wanted))


def accept(drafts: TokenTree, choose: Callable[[int, int], int]) -> Accepted:
    """Return the tokens that become certain: a path of accepted drafts and one token more.

    Args:
        drafts: the drafted tokens; a chain is a tree with one path.
        choose: ``choose(node, depth)`` returns the right token behind a node that was accepted, the
            first call being for `ROOT` at depth 0, and each next one a level deeper.
    """
    tokens: list[int] = []
    nodes: list[int] = []
    node: int | None = ROOT
    while node is not None:
        tokens.append(choose(node, len(nodes)))
        node = drafts.child(node, tokens[-1])
        if node is not None:
            nodes.append(node)
    return Accepted(tokens, nodes)
