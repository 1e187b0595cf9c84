"""Acceptance rate of draft tokens by drafting and verification method; no times are measured.

    python benchmarks/acceptance.py [--problems 40] [--temperatures 0.3 0.6 1.0] [--json]

The target writes solutions; at each of their tokens both models' distributions p and q are computed.
The acceptance probability of a token drafted there is computed, not sampled:

- ``rejection``: rejection sampling, the overlap of p and q, which nothing lossless exceeds;
- ``shared noise``: both models choose with the same Gumbel noise, as the engine does;
- ``own noise``: each chooses for itself;
- ``greedy draft``: the draft proposes its likeliest token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch

from reason_spec.pair import embedded_path
from reason_spec.pair.decoding import LoadedModel, complete, load_pair_model
from reason_spec.pair.generator import problems
from reason_spec.pair.tokenizer import chat_prompt
from reason_spec.speculation.acceptance import FloatArray, truncated_probabilities
from reason_spec.types import Sampling

_POSSIBLE = 1e-12


def chances(target: FloatArray, draft: FloatArray) -> dict[str, float]:
    """Return the chance of acceptance under each way, for one position."""
    return {
        "rejection": float(np.minimum(target, draft).sum()),
        "shared noise": _agreement_under_shared_noise(target, draft),
        "own noise": float(target @ draft),
        "greedy draft": float(target[int(np.argmax(draft))]),
    }


def _agreement_under_shared_noise(target: FloatArray, draft: FloatArray) -> float:
    """Both argmaxes of log-probability plus noise are token i with chance 1 / sum_j max(p_j/p_i, q_j/q_i)."""
    both = np.flatnonzero((target > _POSSIBLE) & (draft > _POSSIBLE))
    ratios = np.maximum(target[None, :] / target[both, None], draft[None, :] / draft[both, None])
    return float((1.0 / ratios.sum(1)).sum())


def measure(
    target: LoadedModel, draft: LoadedModel, num_problems: int, temperature: float, seed: int
) -> dict[str, float]:
    """Return the mean chances over all tokens of solutions that the target samples."""
    torch.manual_seed(seed)
    prompts = [chat_prompt(problem.question) for problem in islice(problems("test", seed), num_problems)]
    texts = complete(target, prompts, temperature=temperature)
    sampling = Sampling(temperature=temperature)
    found: dict[str, list[float]] = {}
    for prompt, text in zip(prompts, texts, strict=True):
        for p, q in zip(*(_predictions(model, prompt, text) for model in (target, draft)), strict=True):
            both = (truncated_probabilities(logits, sampling) for logits in (p, q))
            for name, chance in chances(*both).items():
                found.setdefault(name, []).append(chance)
    return {name: statistics.fmean(values) for name, values in found.items()}


@torch.inference_mode()
def _predictions(loaded: LoadedModel, prompt: str, text: str) -> FloatArray:
    """Return the logits in front of each token of ``text``, [tokens, vocabulary]."""
    start = len(loaded.tokenizer(prompt)["input_ids"])
    encoded = loaded.tokenizer(prompt + text, return_tensors="pt")
    logits: FloatArray = loaded.model(**encoded).logits[0, start - 1 : -1].double().numpy()
    return logits


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 0.6, 1.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    pair = load_pair_model(embedded_path("target")), load_pair_model(embedded_path("draft"))
    rows = []
    for temperature in options.temperatures:
        row = {"temperature": temperature, **measure(*pair, options.problems, temperature, options.seed)}
        rows.append(row)
        if not options.json:
            sys.stdout.write("  ".join(f"{name} {value:.3f}" for name, value in row.items()) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
