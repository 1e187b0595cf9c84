"""Texts that replays write again: agent runs and stored answers, as tokens.

A file is one of two kinds, told apart by its first line:

- past conversations, as `reason_spec.suffix.traces` reads them: each is a run of a task and a trial;
- answers to questions, as `reason_spec.lab.exit.traces` reads them: a run is a question and one answer, the
  task is the problem, the trial is the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from reason_spec.errors import DataError
from reason_spec.jsonl import JsonItem, is_document, read_values
from reason_spec.lab.exit.traces import read_traces as read_answers
from reason_spec.suffix.base import Source
from reason_spec.suffix.traces import TraceMessage, read_traces

_PIECE: Final = re.compile(r" ?[A-Za-z]{1,6}|\d{1,3}|\s+|[^\sA-Za-z\d]")


class Segment(NamedTuple):
    """A message of a run as tokens."""

    source: Source
    tokens: list[int]


class TextRun(NamedTuple):
    """A run: its task, the name of the trial, and its messages."""

    task: str
    trial: str
    segments: list[Segment]


class Split(NamedTuple):
    """Runs of the tasks on which settings are chosen, and runs of other tasks, which are reported."""

    fit: list[TextRun]
    test: list[TextRun]


class Vocabulary:
    """Tokens of texts and messages.

    Args:
        tekken: the tokenizer of `load_tekken`; None: pieces of words stand for tokens.
    """

    def __init__(self, tekken: Any) -> None:
        self.name = "pieces" if tekken is None else "tekken"
        self._tekken = tekken
        self._pieces: dict[str, int] = {}
        self._texts: list[str] = []

    def encode(self, text: str) -> list[int]:
        if self._tekken is None:
            return [self._piece(piece) for piece in _PIECE.findall(text)]
        return list(self._tekken.encode(text, bos=False, eos=False))

    def mark(self, name: str) -> int:
        """Return a token that stands in no text."""
        if self._tekken is None:
            return self._piece(f"\0{name}")
        return int(self._tekken.get_special_token(name))

    def _piece(self, text: str) -> int:
        if text not in self._pieces:
            self._pieces[text] = len(self._texts)
            self._texts.append(text)
        return self._pieces[text]

    def segments_of(self, messages: Sequence[TraceMessage]) -> list[Segment]:
        return [self._segment_of(message) for message in messages]

    def _segment_of(self, message: TraceMessage) -> Segment:
        tokens = self.encode(message.text)
        match message.role:
            case "system" | "developer":
                return Segment("prompt", [self.mark("<s>"), *tokens])
            case "user":
                return Segment("prompt", [self.mark("[INST]"), *tokens, self.mark("[/INST]")])
            case "tool":
                return Segment("tool", [self.mark("[TOOL_RESULTS]"), *tokens, self.mark("[/TOOL_RESULTS]")])
            case "assistant":
                if message.calls:
                    calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
                    tokens = [*tokens, self.mark("[TOOL_CALLS]"), *self.encode(json.dumps(calls))]
                return Segment("output", [*tokens, self.mark("</s>")])

    def is_end(self, token: int) -> bool:
        """Whether a step ends with a token: of a paragraph, before calls, of the text."""
        if token in self._ends:
            return True
        text = self._texts[token] if self._tekken is None else self._tekken.id_to_piece(token)
        return "\n\n" in text

    @cached_property
    def _ends(self) -> frozenset[int]:
        return frozenset((self.mark("</s>"), self.mark("[TOOL_CALLS]")))


def load_tekken() -> Any:
    """Return the tokenizer that lies inside mistral-common.

    Raises:
        ModuleNotFoundError: mistral-common is not installed.
    """
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    with resources.as_file(resources.files("mistral_common") / "data" / "tekken_240911.json") as path:
        return Tekkenizer.from_file(path)


def read_runs(files: Sequence[Path], vocabulary: Vocabulary, trials: Sequence[str] = ()) -> list[TextRun]:
    """Return the runs of all files, each trial of all tasks before the next trial.

    Args:
        trials: only these, in this order; by default all, in order of appearance.

    Raises:
        DataError: a file cannot be read or holds no runs, or none of these trials.
    """
    runs = list(chain.from_iterable(map(_runs_of, files)))
    found = list(dict.fromkeys(trial for _, trial, _ in runs))
    if missing := set(trials) - set(found):
        raise DataError(f"no run is of trial {min(missing)!r}; there are {', '.join(found)}")
    order = list(trials) or found
    wanted = sorted((run for run in runs if run[1] in order), key=lambda run: order.index(run[1]))
    return [TextRun(task, trial, vocabulary.segments_of(messages)) for task, trial, messages in wanted]


def split_by_task(
    runs: Sequence[TextRun], most_fit: int | None = None, most_test: int | None = None
) -> Split:
    """Return the runs of every second task apart from those of the others, in their order.

    Args:
        most_fit, most_test: at most so many tasks on each side, the first ones; None is all.
    """
    tasks = list(dict.fromkeys(run.task for run in runs))
    fit, test = set(tasks[0::2][:most_fit]), set(tasks[1::2][:most_test])
    return Split([run for run in runs if run.task in fit], [run for run in runs if run.task in test])


def _runs_of(file: Path) -> Iterator[tuple[str, str, Sequence[TraceMessage]]]:
    first = None if is_document(file) else next(read_values(file, "one object a line"), None)
    if isinstance(first, JsonItem) and "question" in first.value:
        for trace in read_answers(file):
            asked = TraceMessage(role="user", text=trace.question)
            yield trace.id, trace.group or "0", (asked, TraceMessage(role="assistant", text=trace.response))
        return
    for one in read_traces(file).conversations:
        yield one.task or str(one.line), one.trial or "0", one.messages
