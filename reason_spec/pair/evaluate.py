"""Measure the pair on fresh problems: how often each model is right, and what a token costs.

python -m reason_spec.pair.evaluate --n 200
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from reason_spec.errors import DataError, ReasonSpecError
from reason_spec.pair import CARD_PATH, embedded_path
from reason_spec.pair.decoding import complete_greedily, parse_answer, solve_greedily
from reason_spec.pair.generator import STEP_SEPARATOR, Example, problems
from reason_spec.pair.model import load_model
from reason_spec.pair.tokenizer import chat_prompt, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

_EXPRESSION = re.compile(r"(\d+)([-+*/])(\d+)")
_MAX_STEP_TOKENS = 80


@dataclass(frozen=True, slots=True)
class ByOperations:
    """Accuracy on the problems with one number of operations."""

    n: int
    target_accuracy: float
    draft_accuracy: float


@dataclass(frozen=True, slots=True)
class PairReport:
    """Figures of a pair; every accuracy is a share in 0..1 under greedy decoding in float32.

    ``draft_step_accuracy`` is the share of single steps that the draft gets right after steps that
    the target wrote and that are right. ``draft_wording`` is the share of those right steps that
    are also the target's own next step to the letter. ``c`` is the time of a draft token over
    that of a target token, one sequence, one thread.
    """

    n: int
    target_accuracy: float
    draft_accuracy: float
    draft_step_accuracy: float
    draft_wording: float
    num_steps: int
    target_ms_per_token: float
    draft_ms_per_token: float
    c: float
    by_ops: Mapping[int, ByOperations]


class _Model(NamedTuple):
    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast


class _StepCase(NamedTuple):
    """A right prefix, the target's next step, and the step of the worked solution."""

    prompt: str
    target_step: str
    reference: str


def _load(folder: Path) -> _Model:
    return _Model(load_model(folder), load_tokenizer(folder))


def is_right_step(step: str, reference: str) -> bool:
    """Tell whether ``step`` makes the calculation of ``reference`` and gets its result.

    The operations of a problem form a chain, so its next calculation is known; the wording may
    be any. A step of several calculations is judged by the first, which names what it works out.
    """
    wanted, found = _EXPRESSION.search(reference), _EXPRESSION.search(step)
    if wanted is None:
        return step == reference
    if found is None or found.groups() != wanted.groups():
        return False
    return _last_number(step) == _last_number(reference)


def _last_number(text: str) -> int:
    return int(re.findall(r"\d+", text)[-1])


def _step_cases(chosen: Sequence[Example], solutions: Sequence[str]) -> list[_StepCase]:
    """Cut the target's solutions into right prefixes, up to its first wrong step."""
    cases: list[_StepCase] = []
    for problem, solution in zip(chosen, solutions, strict=True):
        prompt = chat_prompt(problem.question)
        for step, reference in zip(solution.split(STEP_SEPARATOR), problem.steps, strict=False):
            if not is_right_step(step, reference):
                break
            cases.append(_StepCase(prompt, step, reference))
            prompt += step + STEP_SEPARATOR
    return cases


def _draft_steps(draft: _Model, cases: Sequence[_StepCase]) -> list[str]:
    """Return the draft's one next step for each case."""
    vocabulary = draft.tokenizer.get_vocab().values()
    ends = [token for token in vocabulary if STEP_SEPARATOR in draft.tokenizer.decode([token])]
    assert draft.tokenizer.eos_token_id is not None
    draft.model.generation_config.eos_token_id = [int(draft.tokenizer.eos_token_id), *ends]
    texts = complete_greedily(
        draft.model, draft.tokenizer, [case.prompt for case in cases], max_new_tokens=_MAX_STEP_TOKENS
    )
    return [text.split(STEP_SEPARATOR)[0] for text in texts]


@torch.inference_mode()
def milliseconds_per_token(loaded: _Model, prompt: str, tokens: int = 64) -> float:
    """Return the median time of a greedy decoding pass of one sequence with cached keys and values."""
    ids = loaded.tokenizer(prompt, return_tensors="pt")["input_ids"]
    output = loaded.model(input_ids=ids, use_cache=True)
    times: list[float] = []
    for _ in range(tokens):
        token = output.logits[:, -1:].argmax(-1)
        started = time.perf_counter()
        output = loaded.model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def evaluate(target_folder: Path, draft_folder: Path, n: int, seed: int) -> PairReport:
    """Measure a pair on ``n`` problems of the test split."""
    target, draft = _load(target_folder), _load(draft_folder)
    chosen = list(islice(problems("test", seed), n))
    questions = [problem.question for problem in chosen]
    target_texts = solve_greedily(target.model, target.tokenizer, questions)
    draft_texts = solve_greedily(draft.model, draft.tokenizer, questions)
    prompt = chat_prompt(questions[0])
    target_ms = milliseconds_per_token(target, prompt)
    draft_ms = milliseconds_per_token(draft, prompt)
    cases = _step_cases(chosen, target_texts)
    steps = _draft_steps(draft, cases)
    right = [
        case.target_step == step
        for case, step in zip(cases, steps, strict=True)
        if is_right_step(step, case.reference)
    ]
    target_right = [parse_answer(text) == p.answer for text, p in zip(target_texts, chosen, strict=True)]
    draft_right = [parse_answer(text) == p.answer for text, p in zip(draft_texts, chosen, strict=True)]
    return PairReport(
        n=n,
        target_accuracy=_share(target_right),
        draft_accuracy=_share(draft_right),
        draft_step_accuracy=len(right) / max(1, len(cases)),
        draft_wording=_share(right),
        num_steps=len(cases),
        target_ms_per_token=target_ms,
        draft_ms_per_token=draft_ms,
        c=draft_ms / target_ms,
        by_ops=_by_operations([p.operations for p in chosen], target_right, draft_right),
    )


def _share(right: Sequence[bool]) -> float:
    return sum(right) / max(1, len(right))


def _by_operations(
    operations: Sequence[int], target_right: Sequence[bool], draft_right: Sequence[bool]
) -> dict[int, ByOperations]:
    table: dict[int, ByOperations] = {}
    for count in sorted(set(operations)):
        rows = [i for i, value in enumerate(operations) if value == count]
        table[count] = ByOperations(
            len(rows), _share([target_right[i] for i in rows]), _share([draft_right[i] for i in rows])
        )
    return table


def _print_report(report: PairReport, write: Callable[[str], None] = print) -> None:
    write(f"{report.n} fresh problems, greedy, float32")
    write(f"  {'operations':<12}{'n':>5}{'target':>10}{'draft':>10}")
    for count, row in report.by_ops.items():
        write(f"  {count:<12}{row.n:>5}{row.target_accuracy:>10.1%}{row.draft_accuracy:>10.1%}")
    write(f"  {'all':<12}{report.n:>5}{report.target_accuracy:>10.1%}{report.draft_accuracy:>10.1%}")
    write(
        f"draft steps after a right prefix: {report.draft_step_accuracy:.1%} right of {report.num_steps}, "
        f"{report.draft_wording:.1%} of these in the target's words"
    )
    write(
        f"time a token, one sequence, one thread: target {report.target_ms_per_token:.2f} ms, "
        f"draft {report.draft_ms_per_token:.2f} ms, c = {report.c:.3f}"
    )


def card_figures(report: PairReport) -> str:
    """Return the figures of a report as a Markdown table for the model card."""
    rows = [
        f"| {count} | {row.n} | {row.target_accuracy:.0%} | {row.draft_accuracy:.0%} |"
        for count, row in report.by_ops.items()
    ]
    steps = f"{report.draft_step_accuracy:.1%} of {report.num_steps}"
    target_ms, draft_ms = f"{report.target_ms_per_token:.1f} ms", f"{report.draft_ms_per_token:.1f} ms"
    lines = [
        "| operations | problems | target | draft |",
        "|---|---|---|---|",
        *rows,
        f"| all | {report.n} | {report.target_accuracy:.1%} | {report.draft_accuracy:.1%} |",
        "",
        f"- draft, steps right: {steps}; of these in the target's words: {report.draft_wording:.1%}",
        f"- one token, one sequence, one thread: target {target_ms}, draft {draft_ms}, c = {report.c:.3f}",
    ]
    return "\n".join(lines)


def update_card(card: Path, report: PairReport) -> None:
    """Write the figures of ``report`` between the two marks of a model card."""
    text = card.read_text(encoding="utf-8")
    begin, end = text.index("\n", text.index("<!-- figures:")) + 1, text.index("<!-- end of figures -->")
    card.write_text(f"{text[:begin]}\n{card_figures(report)}\n\n{text[end:]}", encoding="utf-8")


def _model_folder(folder: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder} holds no model of the pair: {name} is missing. Name a folder that has it."
            )
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the embedded pair, or another one, on fresh problems."""
    parser = argparse.ArgumentParser(prog="python -m reason_spec.pair.evaluate", description=main.__doc__)
    parser.add_argument("--n", type=int, default=200, help="number of problems (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=Path, help="folder of the target (default: the embedded one)")
    parser.add_argument("--draft", type=Path, help="folder of the draft (default: the embedded one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--update-card", action="store_true", help="write the figures into MODEL_CARD.md")
    arguments = parser.parse_args(argv)
    if arguments.n < 1:
        parser.error("--n must be at least 1")
    torch.set_num_threads(1)
    try:
        target = _model_folder(arguments.target or embedded_path("target"))
        draft = _model_folder(arguments.draft or embedded_path("draft"))
    except ReasonSpecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    report = evaluate(target, draft, arguments.n, arguments.seed)
    if arguments.update_card:
        update_card(CARD_PATH, report)
    if arguments.json:
        print(json.dumps(asdict(report)))
    else:
        _print_report(report)


if __name__ == "__main__":
    main()
