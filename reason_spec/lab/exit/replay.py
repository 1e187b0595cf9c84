"""Replays stored answers under a rule: what is kept of the thinking, and what is answered instead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from reason_spec.evaluation.statistics import Interval, clopper_pearson_upper
from reason_spec.lab.exit.rules import Rule, Stop
from reason_spec.lab.exit.traces import ReadTrace
from reason_spec.shipped import shipped_weights
from reason_spec.tasks.base import Task, get_task
from reason_spec.tasks.grading import Grader

TOKENIZER: Final = "WordPiece of all-MiniLM-L6-v2, 14,830 pieces (verifiers/weights/tokenizer.json)"
"""Counts the tokens of all texts, whichever model wrote them."""
_CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replayed answer. ``num_kept`` has tokens of trial answers too.

    ``right_before`` and ``right_after`` are None if the grading could not decide.
    """

    problem: str
    group: str | None
    num_tokens: int
    num_kept: int
    right_before: bool | None
    right_after: bool | None
    stop: Stop | None

    @property
    def is_lost(self) -> bool:
        """It was not shown to be wrong before, and is not shown to be right now."""
        return self.stop is not None and self.right_before is not False and self.right_after is not True

    @property
    def is_won(self) -> bool:
        return self.right_before is False and self.right_after is True


def share_kept(answers: Sequence[Replayed]) -> float:
    """Return the tokens that are kept, with those of trial answers, over all of thinking."""
    return sum(a.num_kept for a in answers) / max(1, sum(a.num_tokens for a in answers))


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a rule keeps and loses on ``n`` answers to ``num_problems`` questions.

    ``tokens_kept`` is that of `share_kept`, ``saved_low`` and ``saved_high`` the 95 % interval of the saved
    share, problems resampled. ``loss`` is the share of answers made wrong; answers made right do not reduce
    it. ``loss_upper95`` is its one-sided bound: the exact one of independent answers, or that of resampled
    problems where it is higher.
    """

    n: int
    num_problems: int
    tokens_kept: float
    saved_low: float
    saved_high: float
    accuracy_before: float
    accuracy_after: float
    lost: int
    won: int
    loss: float
    loss_upper95: float
    stopped: float

    @classmethod
    def of(cls, answers: Sequence[Replayed]) -> ReplayReport:
        assert answers, "a report needs answers"
        n, lost = len(answers), sum(answer.is_lost for answer in answers)
        saved, bound = _resampled(answers)
        return cls(
            n=n,
            num_problems=len({answer.problem for answer in answers}),
            tokens_kept=share_kept(answers),
            saved_low=saved.low,
            saved_high=saved.high,
            accuracy_before=sum(answer.right_before is True for answer in answers) / n,
            accuracy_after=sum(answer.right_after is True for answer in answers) / n,
            lost=lost,
            won=sum(answer.is_won for answer in answers),
            loss=lost / n,
            loss_upper95=max(bound, clopper_pearson_upper(lost, n, _CONFIDENCE)),
            stopped=sum(answer.stop is not None for answer in answers) / n,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _resampled(answers: Sequence[Replayed]) -> tuple[Interval, float]:
    """Return the interval of the saved share and the upper bound of the loss, problems resampled."""
    _, problem = np.unique([answer.problem for answer in answers], return_inverse=True)
    columns = [(a.num_tokens, a.num_kept, a.is_lost, 1) for a in answers]
    sums = np.zeros((int(problem.max()) + 1, 4))
    np.add.at(sums, problem, np.array(columns, float))
    random = np.random.default_rng(0)
    drawn = random.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=_RESAMPLES) @ sums
    saved = 1 - drawn[:, 1] / np.maximum(1, drawn[:, 0])
    low, high = np.quantile(saved, (0.025, 0.975))
    return Interval(float(low), float(high)), float(np.quantile(drawn[:, 2] / drawn[:, 3], _CONFIDENCE))


class Replay:
    """Grades and counts stored answers once, and replays them under any number of rules."""

    def __init__(self, reads: Sequence[ReadTrace], grader: Grader, task: str | Task = "auto") -> None:
        self._reads = reads
        self._grader = grader
        self._task = get_task(task)
        self._grades: dict[tuple[str, str], bool | None] = {}
        self._token_ends: dict[int, list[int]] = {}
        self._before: dict[int, bool | None] = {}

    def prepare(self, advance: Callable[[], None] = lambda: None) -> None:
        """Grade all responses and count the tokens of their thinking."""
        for place in range(len(self._reads)):
            self._right_before(place)
            self._ends_of_tokens(place)
            advance()

    def run(self, rule: Rule) -> list[Replayed]:
        """Return the answers under a rule, in the order of the traces."""
        return [self.replay(place, rule) for place in range(len(self._reads))]

    def is_right(self, read: ReadTrace, answer: str) -> bool | None:
        """Grade an answer to the question of a trace."""
        key = (read.trace.answer, answer)
        if key not in self._grades:
            self._grades[key] = self._grader.grade_prediction(answer, read.trace.answer, self._task).correct
        return self._grades[key]

    def replay(self, place: int, rule: Rule) -> Replayed:
        """Return one answer under a rule."""
        read = self._reads[place]
        stop = rule(read)
        return self.cut(place, stop, 0 if stop is None else read.ends[stop.step])

    def cut(self, place: int, stop: Stop | None, end: int, num_more: int = 0) -> Replayed:
        """Return one answer that a rule stopped, or did not.

        Args:
            end: characters of the thinking that are kept, where it was stopped.
            num_more: tokens that the rule itself took.
        """
        trace, ends = self._reads[place].trace, self._ends_of_tokens(place)
        kept = len(ends) if stop is None else bisect_right(ends, end)
        before = self._right_before(place)
        after = before if stop is None else self.is_right(self._reads[place], stop.answer)
        return Replayed(trace.problem, trace.group, len(ends), kept + num_more, before, after, stop)

    def _right_before(self, place: int) -> bool | None:
        if place not in self._before:
            trace = self._reads[place].trace
            self._before[place] = self._grader.grade(trace.response, trace.answer, self._task).correct
        return self._before[place]

    def _ends_of_tokens(self, place: int) -> list[int]:
        if place not in self._token_ends:
            encoded = _tokenizer().encode(self._reads[place].trace.thinking, add_special_tokens=False)
            self._token_ends[place] = [end for _, end in encoded.offsets]
        return self._token_ends[place]


def num_tokens(text: str) -> int:
    """Return how many tokens a text has, as those of thinking are counted."""
    return len(_tokenizer().encode(text, add_special_tokens=False).ids)


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(shipped_weights("semantic") / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def by_group(answers: Iterable[Replayed]) -> Mapping[str, list[Replayed]]:
    """Return the answers of each named group."""
    groups: dict[str, list[Replayed]] = {}
    for answer in answers:
        if answer.group is not None:
            groups.setdefault(answer.group, []).append(answer)
    return groups


def report_dict(answers: Sequence[Replayed], **about: Any) -> dict[str, Any]:
    """Return the report of all answers and of each group as JSON holds it."""
    groups = {name: ReplayReport.of(part).to_dict() for name, part in by_group(answers).items()}
    return {**about, "tokenizer": TOKENIZER, **ReplayReport.of(answers).to_dict(), "groups": groups}
