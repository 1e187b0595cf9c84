"""Features of a drafted step that are known before the target has written anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import exp
from typing import Final

from reason_spec.routers.progress import Progress, read_progress

_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_SUM: Final = re.compile(r"[\d)]\s*\+\s*[\d(]")
_DIFFERENCE: Final = re.compile(r"[\d)]\s*[-−–]\s*[\d(]")
_PRODUCT: Final = re.compile(r"[\d)]\s*(?:\*|×|·|\\times|\\cdot)\s*[\d(]")
_QUOTIENT: Final = re.compile(r"[\d)]\s*(?:/|÷|\\div)\s*[\d(]|\\frac")
_CORRECTION: Final = re.compile(
    r"\b(?:wait|hmm|alternatively|actually|mistake|wrong|re-?check)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """The features of a drafted step.

    Log-probabilities are the draft's, at temperature 1, 0 where ``num_tokens`` is 0: none are known. Those
    of digits are over tokens with a digit, 0 if there is none. ``progress`` relates the step to the question.
    ``first_entropy`` is the draft's before the first token, in nats; None where its engine does not report
    it. ``key`` identifies the step and its context across runs. Trained routers read neither.
    """

    step_index: int
    num_prefix_tokens: int
    num_tokens: int
    num_digits: int
    mean_logprob: float
    least_logprob: float
    second_least_logprob: float
    mean_digit_logprob: float
    least_digit_logprob: float
    second_least_digit_logprob: float
    ends_text: bool = False
    num_numbers: int = 0
    num_equations: int = 0
    longest_number: int = 0
    adds: bool = False
    subtracts: bool = False
    multiplies: bool = False
    divides: bool = False
    corrects: bool = False
    progress: Progress = field(default_factory=Progress)
    first_entropy: float | None = None
    key: str = ""

    @classmethod
    def of_step(
        cls,
        text: str,
        logprobs: Sequence[float],
        has_digit: Sequence[bool],
        *,
        question: str,
        text_before: str,
        step_index: int,
        num_prefix_tokens: int,
        ends_text: bool = False,
        first_entropy: float | None = None,
    ) -> StepFeatures:
        """Summarise a step's text and the draft's log-probabilities, one for each of its tokens.

        ``text_before`` holds the steps of the answer before it.
        """
        of_digits = sorted(logprob for logprob, digit in zip(logprobs, has_digit, strict=True) if digit)
        ordered = sorted(logprobs)
        numbers = _NUMBER.findall(text)
        return cls(
            step_index=step_index,
            num_prefix_tokens=num_prefix_tokens,
            num_tokens=len(ordered),
            num_digits=len(of_digits),
            mean_logprob=_mean(ordered),
            least_logprob=_nth(ordered, 0),
            second_least_logprob=_nth(ordered, 1),
            mean_digit_logprob=_mean(of_digits),
            least_digit_logprob=_nth(of_digits, 0),
            second_least_digit_logprob=_nth(of_digits, 1),
            ends_text=ends_text,
            num_numbers=len(numbers),
            num_equations=text.count("="),
            longest_number=max((sum(map(str.isdigit, number)) for number in numbers), default=0),
            adds=_SUM.search(text) is not None,
            subtracts=_DIFFERENCE.search(text) is not None,
            multiplies=_PRODUCT.search(text) is not None,
            divides=_QUOTIENT.search(text) is not None,
            corrects=_CORRECTION.search(text) is not None,
            progress=read_progress(question, text_before, text),
            first_entropy=first_entropy,
            key=f"{question}\n{text_before}\n{text}",
        )

    def vector(self) -> tuple[float, ...]:
        """Return the features that models are trained on, in the order of ``FEATURE_NAMES``.

        Probabilities are included beside their logarithms, to resolve values near 1 as well as near 0.
        """
        return (
            *(float(getattr(self, name)) for name in _PLAIN),
            *(likely(getattr(self, name)) for name in _LOGPROBS),
            *(float(getattr(self.progress, name)) for name in _PROGRESS),
        )


_LOGPROBS: Final = (
    "mean_logprob",
    "least_logprob",
    "second_least_logprob",
    "mean_digit_logprob",
    "least_digit_logprob",
    "second_least_digit_logprob",
)
_PLAIN: Final = tuple(
    f.name for f in fields(StepFeatures) if f.name not in ("progress", "first_entropy", "key")
)
_PROGRESS: Final = tuple(f.name for f in fields(Progress))
FEATURE_NAMES: Final = (*_PLAIN, *(f"exp({name})" for name in _LOGPROBS), *_PROGRESS)


def likely(logprob: float) -> float:
    """Return the probability of a log-probability."""
    return exp(min(0.0, logprob))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _nth(ascending: Sequence[float], index: int) -> float:
    return ascending[index] if index < len(ascending) else 0.0
