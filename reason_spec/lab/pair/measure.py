"""The figures of a pair: accuracy, single steps, wording, mistakes, scores and judgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias, get_args

import torch

from reason_spec.lab.pair.grading import Fault, find_fault, is_right_step, parse_answer
from reason_spec.pair import wording as words
from reason_spec.pair.decoding import LoadedModel, next_steps, solve_greedily
from reason_spec.pair.generator import STEP_SEPARATOR, Example, Split, problems
from reason_spec.pair.tokenizer import chat_prompt, next_question

Notify: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ByOperations:
    """Accuracy on the problems with one number of operations."""

    n: int
    target_accuracy: float
    draft_accuracy: float


@dataclass(frozen=True, slots=True)
class ByKind:
    """Single steps of the draft for one kind of operation; ``same_words`` counts right ones."""

    n: int
    right: int
    same_words: int


@dataclass(frozen=True, slots=True)
class Shifted:
    """Accuracy on problems with phrasings and kinds that training never showed."""

    n: int
    target_accuracy: float
    draft_accuracy: float
    draft_step_accuracy: float


@dataclass(frozen=True, slots=True)
class PairReport:
    """Figures of a pair; every accuracy is a share in 0..1 under greedy decoding in float32.

    ``draft_step_accuracy`` is the share of single steps that the draft gets right after right steps of the
    target; ``draft_wording`` is the share of those that equal the target's next step. ``faults`` counts the
    mistakes of wrong steps. The areas under the curve say how well the judge's scores, its judgements and the
    reward head separate right steps of the draft from wrong ones. ``c`` is the time of a draft token over
    that of a target token.
    """

    n: int
    target_accuracy: float
    draft_accuracy: float
    draft_step_accuracy: float
    draft_wording: float
    num_steps: int
    by_ops: Mapping[int, ByOperations]
    by_kind: Mapping[str, ByKind]
    faults: Mapping[Fault, int]
    shifted: Shifted
    score_auc: float | None
    judge_auc: float | None
    reward_auc: float | None
    target_ms_per_token: float
    draft_ms_per_token: float
    c: float


class SolvedProblems(NamedTuple):
    """Problems with the greedy solution of one model to each."""

    problems: Sequence[Example]
    texts: Sequence[str]

    @property
    def right(self) -> list[bool]:
        return [parse_answer(text) == p.answer for text, p in zip(self.texts, self.problems, strict=True)]


class StepCase(NamedTuple):
    """A right prefix, the target's next step, and the step of the worked solution."""

    prefix: str
    kind: str
    target_step: str
    reference: str


class DraftedSteps(NamedTuple):
    """The draft's own next step for each case."""

    cases: Sequence[StepCase]
    steps: Sequence[str]

    @property
    def right(self) -> list[bool]:
        return [is_right_step(s, c.reference) for c, s in zip(self.cases, self.steps, strict=True)]

    @property
    def in_target_words(self) -> list[bool]:
        """For the right steps alone."""
        rows = zip(self.cases, self.steps, self.right, strict=True)
        return [step == case.target_step for case, step, right in rows if right]

    def by_kind(self) -> dict[str, ByKind]:
        """Group the steps by the kind of their operation."""
        table: dict[str, ByKind] = {}
        for kind in (*get_args(words.Kind), *get_args(words.NewKind)):
            rows = [(c, s) for c, s in zip(self.cases, self.steps, strict=True) if c.kind == kind]
            own = DraftedSteps([case for case, _ in rows], [step for _, step in rows])
            if rows:
                table[kind] = ByKind(len(rows), sum(own.right), sum(own.in_target_words))
        return table

    def faults(self) -> dict[Fault, int]:
        """Count the mistakes of the wrong steps."""
        rows = zip(self.cases, self.steps, strict=True)
        found = Counter(find_fault(step, case.reference) for case, step in rows)
        return {fault: found[fault] for fault in get_args(Fault)}


def solve_split(loaded: LoadedModel, split: Split, n: int, seed: int, notify: Notify) -> SolvedProblems:
    """Have a model solve ``n`` problems of a split."""
    chosen = list(islice(problems(split, seed), n))
    questions = [problem.question for problem in chosen]
    return SolvedProblems(
        chosen, solve_greedily(loaded, questions, lambda done: notify(f"{split}: {done} of {n} solved"))
    )


def draft_steps(draft: LoadedModel, solved: SolvedProblems, notify: Notify) -> DraftedSteps:
    """Have the draft write one step after each right prefix of the target's solutions."""
    cases = step_cases(solved)
    prefixes = [case.prefix for case in cases]
    steps = next_steps(draft, prefixes, lambda done: notify(f"{done} of {len(cases)} steps drafted"))
    return DraftedSteps(cases, steps)


def step_cases(solved: SolvedProblems) -> list[StepCase]:
    """Cut solutions into right prefixes and the step that follows each, up to the first wrong step."""
    cases: list[StepCase] = []
    for problem, text in zip(*solved, strict=True):
        prefix = chat_prompt(problem.question)
        planned = zip(text.split(STEP_SEPARATOR), problem.steps, problem.kinds, strict=False)
        for step, reference, kind in planned:
            if not is_right_step(step, reference):
                break
            cases.append(StepCase(prefix, kind, step, reference))
            prefix += step + STEP_SEPARATOR
    return cases


def share(right: Sequence[bool]) -> float:
    return sum(right) / max(1, len(right))


def by_operations(target: SolvedProblems, draft: SolvedProblems) -> dict[int, ByOperations]:
    """Group the accuracy of both models by the number of operations."""
    table: dict[int, ByOperations] = {}
    operations = [problem.operations for problem in target.problems]
    for count in sorted(set(operations)):
        rows = [i for i, value in enumerate(operations) if value == count]
        accuracies = [share([solved.right[i] for i in rows]) for solved in (target, draft)]
        table[count] = ByOperations(len(rows), *accuracies)
    return table


@torch.inference_mode()
def _answer_logits(
    judge: LoadedModel, prompts: Sequence[str], answers: Sequence[str], rows: int = 32
) -> torch.Tensor:
    """Return the logits of each of the ``answers``, single tokens, after each prompt: [prompts, answers]."""
    tokens = judge.tokenizer.convert_tokens_to_ids(list(answers))
    found = [torch.zeros(0, len(answers))]
    for start in range(0, len(prompts), rows):
        encoded = judge.tokenizer(
            list(prompts[start : start + rows]), padding=True, padding_side="left", return_tensors="pt"
        )
        logits = judge.model(**encoded.to(judge.model.device), logits_to_keep=1).logits
        found.append(logits[:, -1, tokens])
    return torch.cat(found)


def expected_scores(judge: LoadedModel, prefixes: Sequence[str]) -> list[float]:
    """Return the judge's expected score, 0 to 9, of the last step of each prefix."""
    digits = [str(digit) for digit in range(10)]
    asked = [prefix + next_question(words.SCORE_QUESTION) for prefix in prefixes]
    chances = _answer_logits(judge, asked, digits).softmax(-1)
    return [float(expected) for expected in chances @ torch.arange(10.0)]


def aligned_chances(judge: LoadedModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the chance that the judge calls each two steps aligned."""
    asked = [chat_prompt(words.JUDGE_QUESTION.format(first=first, second=second)) for first, second in pairs]
    chances = _answer_logits(judge, asked, (words.ALIGNED, words.UNALIGNED)).softmax(-1)
    return chances[:, 0].tolist()


def area_under_curve(right: Sequence[bool], values: Sequence[float]) -> float | None:
    """Return the area under the ROC curve; None where all cases are alike."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(right, values)) if len(set(right)) > 1 else None
