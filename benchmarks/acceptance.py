"""Acceptance rate of draft tokens by drafting and verification method; no times are measured.

    python benchmarks/acceptance.py [--models real --draft FOLDER] [--problems 40]
        [--temperatures 0.3 0.6 1.0] [--json [FILE]]

The target writes solutions; at each of their tokens both models' distributions p and q are computed.
The acceptance probability of a token drafted there is computed, not sampled:

- ``rejection``: rejection sampling, the overlap of p and q, which nothing lossless exceeds;
- ``shared_noise``: both models choose with the same Gumbel noise, as the engine does;
- ``own_noise``: each chooses for itself;
- ``greedy_draft``: the draft proposes its likeliest token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from arms import printer, write_rows
from models import Task, add_models_arguments, model_folder, models_of
from table_columns import ACCEPTANCE

from reason_spec.engines.torch.trimmed_head import TrimmedHead, read_vocabulary
from reason_spec.speculation.acceptance import FloatArray, truncated_probabilities
from reason_spec.types import Sampling

_BATCH_ROWS = 64


class LoadedModel(NamedTuple):
    """A causal language model of transformers, in float32, and its tokenizer."""

    model: Any
    tokenizer: Any


class Answer(NamedTuple):
    """A sampled answer, in tokens; without the token that ends it."""

    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Row:
    """The mean chances of acceptance at a temperature."""

    temperature: float
    rejection: float
    shared_noise: float
    own_noise: float
    greedy_draft: float


print_rows = printer(*ACCEPTANCE)


def load_model(role: Literal["target", "draft"], name: str) -> LoadedModel:
    """Load a model; one with a trimmed output layer gives all other tokens a probability of 0."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder(role, name)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    vocabulary = read_vocabulary(str(folder))
    if vocabulary is not None:
        model.set_output_embeddings(TrimmedHead(model.get_output_embeddings(), vocabulary))
    return LoadedModel(model, AutoTokenizer.from_pretrained(folder, padding_side="left"))


def chances(target: FloatArray, draft: FloatArray) -> dict[str, float]:
    """Return the chance of acceptance under each way, for one position."""
    return {
        "rejection": float(np.minimum(target, draft).sum()),
        "shared_noise": _agreement_under_shared_noise(target, draft),
        "own_noise": float(target @ draft),
        "greedy_draft": float(target[int(np.argmax(draft))]),
    }


def _agreement_under_shared_noise(target: FloatArray, draft: FloatArray) -> float:
    """Return the chance that both argmaxes of log-probability plus noise are the same token.

    They are token i with chance 1 / sum_j max(p_j/p_i, q_j/q_i). The maximum is p_j/p_i where p_j/q_j >=
    p_i/q_i. So in the order of p/q each sum is one of p over the tokens from i on, and one of q over those
    before i.
    """
    possible = (target > 0) | (draft > 0)
    p, q = target[possible], draft[possible]
    with np.errstate(divide="ignore"):
        order = np.argsort(p / q)
    p, q = p[order], q[order]
    p_from_here, q_before = np.cumsum(p[::-1])[::-1], np.cumsum(q) - q
    both = (p > 0) & (q > 0)
    p, q = p[both], q[both]
    # p q / (p b + q a) is 1 / (a/p + b/q), and tiny probabilities do not overflow.
    return float((p * q / (q * p_from_here[both] + p * q_before[both])).sum())


def measure(
    target: LoadedModel,
    draft: LoadedModel,
    tasks: Sequence[Task],
    temperature: float,
    max_tokens: int,
    seed: int,
) -> dict[str, float]:
    """Return the mean chances over all tokens of solutions that the target samples."""
    torch.manual_seed(seed)
    sampling = Sampling(temperature=temperature)
    found: dict[str, list[float]] = {}
    for done, answer in enumerate(_sample_answers(target, tasks, temperature, max_tokens), start=1):
        for p, q in zip(*(_predictions(model, answer) for model in (target, draft)), strict=True):
            both = (truncated_probabilities(logits, sampling) for logits in (p, q))
            for name, chance in chances(*both).items():
                found.setdefault(name, []).append(chance)
        sys.stderr.write(f"\r\033[Ktemperature {temperature:g}: {done} of {len(tasks)} answers compared")
    sys.stderr.write("\r\033[K")
    return {name: statistics.fmean(values) for name, values in found.items()}


@torch.inference_mode()
def _sample_answers(
    target: LoadedModel, tasks: Sequence[Task], temperature: float, max_tokens: int
) -> Iterator[Answer]:
    """Yield the target's answers, from the shortest question on; torch's global random state decides."""
    model, tokenizer = target
    asked = [[{"role": "user", "content": task.question}] for task in sorted(tasks, key=_question_length)]
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    for start in range(0, len(asked), _BATCH_ROWS):
        sys.stderr.write(f"\r\033[Ktemperature {temperature:g}: answers are sampled ...")
        sys.stderr.flush()
        encoded = tokenizer.apply_chat_template(
            asked[start : start + _BATCH_ROWS],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        output = model.generate(**encoded, max_new_tokens=max_tokens, **sampling)
        length = encoded["input_ids"].shape[1]
        for row, mask in zip(output.tolist(), encoded["attention_mask"].tolist(), strict=True):
            prompt = [token for token, kept in zip(row[:length], mask, strict=True) if kept]
            new = row[length:]
            end = next((place for place, token in enumerate(new) if token in ends), len(new))
            yield Answer(prompt, new[:end])


def _question_length(task: Task) -> int:
    return len(task.question)


@torch.inference_mode()
def _predictions(loaded: LoadedModel, answer: Answer) -> FloatArray:
    """Return the logits in front of each token of an answer, [tokens, vocabulary]."""
    output = loaded.model(torch.tensor([answer.prompt + answer.tokens]))
    logits: FloatArray = output.logits[0, len(answer.prompt) - 1 : -1].double().numpy()
    return logits


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_models_arguments(parser)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 0.6, 1.0])
    parser.add_argument("--max-tokens", type=int, default=640, help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", nargs="?", type=Path, const=Path("-"), help="write the rows to this file, or print them"
    )
    options = parser.parse_args(arguments)
    models = models_of(options)
    if models.draft is None:
        parser.error("this compares a draft with the target: --models real needs --draft FOLDER")
    if options.problems < 1 or min(options.temperatures) <= 0:
        parser.error("--problems must be at least 1, and --temperatures above 0")
    pair = load_model("target", models.target), load_model("draft", models.draft)
    if pair[0].tokenizer.get_vocab() != pair[1].tokenizer.get_vocab():
        parser.error(f"draft {models.draft!r} and target {models.target!r} have different tokenizers")
    tasks = models.tasks(options.problems, options.seed)
    rows = [
        Row(temperature, **measure(*pair, tasks, temperature, options.max_tokens, options.seed))
        for temperature in options.temperatures
    ]
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
