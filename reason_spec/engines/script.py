"""Scripts: the texts of a `ScriptedEngine`, and the files that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from reason_spec.errors import EngineError
from reason_spec.segment import BLANK_LINE, Boundary, BoundaryScanner, split_steps
from reason_spec.types import Sampling

UNKNOWN_ANSWER = "I do not know."
OPEN_THINKING = "<think>\n"
_END_OF_THINKING = "</think>"


class Script(Protocol):
    """Returns the rest of the text, to its end, after ``text``."""

    def __call__(self, text: str, sampling: Sampling) -> str: ...


@dataclass(frozen=True, slots=True)
class WrittenAnswers:
    """A script that maps parts of questions to answers.

    Of several parts in the text the one that ends last counts, so that each turn has an answer of its own.
    Where the text so far is not a beginning of the answer (a step was reworded), the script continues with
    the step that is next by count.

    Args:
        answers: the samples of each question, used in turn.
        otherwise: the answer to other questions; None for an error.
        boundary: separates the steps of an answer.
        thinking: answers begin with thinking, up to ``</think>``; it is left out if the prompt does not open
            it.

    Raises:
        EngineError: no part matches, and ``otherwise`` is None.
    """

    answers: Mapping[str, tuple[str, ...]]
    otherwise: str | None = UNKNOWN_ANSWER
    boundary: Boundary = field(default_factory=lambda: Boundary(BLANK_LINE))
    thinking: bool = False

    def __call__(self, text: str, sampling: Sampling) -> str:
        matches = [match for match in self.answers if match in text]
        if not matches:
            if self.otherwise is None:
                raise EngineError(f"the script has no answer to {text.strip()[:80]!r}")
            return self.otherwise if text.endswith("\n") else ""
        match = max(matches, key=lambda one: (text.index(one) + len(one), len(one)))
        samples = self.answers[match]
        answer = samples[sampling.noise.sample % len(samples)]
        written = text[text.index(match) + len(match) :].partition("\n")[2]
        if self.thinking:
            if written.startswith(OPEN_THINKING):
                written = written.removeprefix(OPEN_THINKING)
            else:
                answer = answer.rpartition(_END_OF_THINKING)[2].lstrip()
            if _END_OF_THINKING in written and not answer.startswith(written):
                # Another end than the script's.
                answer = answer.rpartition(_END_OF_THINKING)[2].lstrip()
                written = written.rpartition(_END_OF_THINKING)[2].lstrip()
        if answer.startswith(written):
            return answer[len(written) :]
        steps = split_steps(written, self.boundary)
        complete = [step for step in steps if BoundaryScanner(self.boundary).feed(step.encode())]
        partial = "".join(steps[len(complete) :])
        return "".join(split_steps(answer, self.boundary)[len(complete) :]).removeprefix(partial)


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """The content of a script file."""

    script: WrittenAnswers
    seconds_per_pass: float = 0.0
    thinking: bool = False


def load_script(path: Path) -> ScriptFile:
    """Read a script from YAML or JSON.

    The file maps questions to answers, or has the key ``answers`` (such a mapping, or a list of
    ``{match: part of the question, answer: text or list of texts}``) and, if wanted,
    ``seconds_per_pass``, ``thinking: true`` (answers begin with thinking, up to ``</think>``) and
    ``otherwise``: the answer to all other questions, null for an error.

    Raises:
        EngineError: the file is missing or has another form.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise EngineError(f"script {str(path)!r} cannot be read: {error}") from None
    if not isinstance(content, dict) or not content:
        raise EngineError(f"script {str(path)!r} must hold a mapping from questions to answers")
    options: dict[str, Any] = (
        content if isinstance(content.get("answers"), dict | list) else {"answers": content}
    )
    entries = options["answers"]
    if isinstance(entries, dict):
        entries = [{"match": match, "answer": answer} for match, answer in entries.items()]
    answers: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        match entry:
            case {"match": str(match), "answer": str(answer)}:
                answers[match] = (answer,)
            case {"match": str(match), "answer": [*samples]} if samples:
                answers[match] = tuple(str(sample) for sample in samples)
            case _:
                raise EngineError(
                    f"script {str(path)!r}: an entry needs a match and an answer, not {entry!r}"
                )
    seconds = options.get("seconds_per_pass", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise EngineError(f"script {str(path)!r}: seconds_per_pass is {seconds!r}, not a number of seconds")
    otherwise = options.get("otherwise", UNKNOWN_ANSWER)
    thinking = options.get("thinking", False)
    if not isinstance(thinking, bool):
        raise EngineError(f"script {str(path)!r}: thinking is {thinking!r}, not true or false")
    script = WrittenAnswers(answers, None if otherwise is None else str(otherwise), thinking=thinking)
    return ScriptFile(script, float(seconds), thinking)
