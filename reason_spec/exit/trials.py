"""Trial answers: what a model says when it is asked for its answer in the middle of its thinking."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan
from typing import Final, NamedTuple

from reason_spec.engines.base import Tokenizer
from reason_spec.exit.reading import Value, read_value

DEER_PROMPT: Final = "\n**Final Answer**\n\\boxed"
"""DEER's request for a trial answer (arXiv 2504.15895, the authors' program)."""
DYNASOR_PROMPT: Final = (
    "... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{"
)
"""Dynasor's (arXiv 2412.20993, the authors' program)."""
DYNASOR_AGREEING: Final = (8, 5, 3, 2)
"""Agreeing probes of Dynasor's levels, mild to high."""
DYNASOR_TOKENS: Final = 64
DEER_TRIGGER: Final = re.compile(r"\W*(?:wait|alternatively)\b", re.IGNORECASE)
DYNASOR_DOUBT: Final = re.compile(r"\b(?:wait|hold|but|okay|no|hmm)\b", re.IGNORECASE)

_OPENED_BOX: Final = re.compile(r"\\f?boxed\s*(\{?)\s*$")
_PHRASE_END: Final = re.compile(r"[.!]?\s*\n|[.!](?=\s|$)|$")


class AnswerSpan(NamedTuple):
    """Where an answer lies in a text; ``is_closed`` if the text after it shows that it is whole."""

    start: int
    end: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form in which a prompt asks for an answer.

    After a prompt that ends with ``\\boxed`` or ``\\boxed{`` the answer reaches to the brace that closes the
    box, after another prompt to the end of its sentence or line.
    """

    prompt: str
    has_box: bool
    open_braces: int

    @classmethod
    def of(cls, prompt: str) -> AnswerForm:
        box = _OPENED_BOX.search(prompt)
        return cls(prompt, box is not None, 0 if box is None else len(box[1]))

    def find(self, text: str, *, is_over: bool) -> AnswerSpan | None:
        """Find the answer in the text after the prompt; None before it begins.

        Args:
            is_over: whether the text ends here, so that a sentence need not be followed by anything.
        """
        return self._in_box(text) if self.has_box else _in_sentence(text, is_over=is_over)

    def _in_box(self, text: str) -> AnswerSpan | None:
        depth, start = self.open_braces, 0 if self.open_braces else None
        escaped = False
        for place, character in enumerate(text):
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == "{":
                depth += 1
                start = place + 1 if start is None else start
            elif character == "}" and depth:
                depth -= 1
                if depth == 0 and start is not None:
                    return AnswerSpan(start, place, is_closed=True)
        return None if start is None else AnswerSpan(start, len(text), is_closed=False)


def _in_sentence(text: str, *, is_over: bool) -> AnswerSpan | None:
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return None
    match = _PHRASE_END.search(text, start)
    assert match is not None, "the pattern matches the end of a text"
    return AnswerSpan(start, match.start(), is_closed=is_over or match.end() < len(text) or "\n" in match[0])


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial answer.

    ``answer`` is None where the model gave none: it is *unknown*. ``confidence`` is the geometric mean of the
    probabilities of the answer's tokens, 0 where it is not known. ``text`` is all that was written.
    """

    answer: str | None = None
    confidence: float = 0.0
    text: str = ""

    @property
    def value(self) -> Value | None:
        return None if self.answer is None else read_value(self.answer)


UNKNOWN: Final = Trial()


def read_trial(
    form: AnswerForm, tokens: Sequence[int], logprobs: Sequence[float], tokenizer: Tokenizer, *, is_over: bool
) -> Trial:
    """Return the trial answer that tokens after the prompt of ``form`` hold.

    Args:
        is_over: the model ended the text here, so that a sentence needs no more to be whole.
    """
    pieces = [tokenizer.token_bytes(token) for token in tokens]
    written = b"".join(pieces)
    text = written.decode(errors="replace")
    span = form.find(text, is_over=is_over)
    if span is None or not span.is_closed or not (answer := text[span.start : span.end].strip()):
        return Trial(text=text)
    first, last = (len(text[:place].encode()) for place in (span.start, span.end))
    end, rated = 0, []
    for piece, logprob in zip(pieces, logprobs, strict=True):
        start, end = end, end + len(piece)
        if start < last and end > first:
            rated.append(logprob)
    is_rated = bool(rated) and not any(map(isnan, rated))
    return Trial(answer, exp(sum(rated) / len(rated)) if is_rated else 0.0, text)


def agree(trials: Sequence[Trial]) -> bool:
    """Return whether trials all have one and the same value."""
    return bool(trials) and trials[0].value is not None and len({trial.value for trial in trials}) == 1
