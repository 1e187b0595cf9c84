"""Texts that the replays of the suffix cache write again: agent runs and stored solutions, as tokens.

A file is one of three kinds, told apart by its content:

- JSON lines, each a run with its ``messages`` in OpenAI's form and, as in tau-bench, ``task_id`` and
  ``trial``;
- JSON lines, each a problem with its ``question`` and its ``solutions`` by model: a run is a question and one
  solution, the task is the problem, the trial is the model;
- a ``.traj`` file of SWE-agent, one run with its ``history``; the task is the file's name.

Tokens are those of the tekken tokenizer that lies inside mistral-common.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from reason_spec.errors import DataError
from reason_spec.suffix.base import Source


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


def load_tekken() -> Any:
    """Return the tokenizer.

    Raises:
        ModuleNotFoundError: mistral-common is not installed.
    """
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    with resources.as_file(resources.files("mistral_common") / "data" / "tekken_240911.json") as path:
        return Tekkenizer.from_file(path)


def read_runs(files: Sequence[Path], tokenizer: Any, trials: Sequence[str] = ()) -> list[TextRun]:
    """Return the runs of all files, each trial of all tasks before the next trial.

    Args:
        trials: only these, in this order; by default all, in order of appearance.

    Raises:
        DataError: a file holds no runs, or no run of these trials; or a line is of no known kind.
    """
    messages = [run for file in files for run in _runs_of(file)]
    found = list(dict.fromkeys(trial for _, trial, _ in messages))
    if missing := set(trials) - set(found):
        raise DataError(f"no run is of trial {min(missing)!r}; there are {', '.join(found)}")
    order = list(trials) or found
    wanted = sorted((run for run in messages if run[1] in order), key=lambda run: order.index(run[1]))
    if not wanted:
        raise DataError(f"{', '.join(map(str, files))}: no run was found")
    return [
        TextRun(task, trial, [_segment_of(message, tokenizer) for message in said])
        for task, trial, said in wanted
    ]


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


def _runs_of(file: Path) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".traj":
        history = _parsed(text, f"{file}").get("history")
        if not isinstance(history, list):
            raise DataError(f"{file}: no object with the field history")
        yield file.stem, "0", history
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        fields = _parsed(line, f"{file}, line {number}")
        if isinstance(said := fields.get("messages"), list):
            yield str(fields.get("task_id", number)), str(fields.get("trial", 0)), said
        elif isinstance(solutions := fields.get("solutions"), dict):
            asked = {"role": "user", "content": str(fields["question"])}
            for model, solution in solutions.items():
                yield (
                    str(fields.get("id", number)),
                    model,
                    [asked, {"role": "assistant", "content": solution}],
                )
        else:
            raise DataError(f"{file}, line {number}: no object with the field messages or solutions")


def _parsed(text: str, place: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise DataError(f"{place}: no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise DataError(f"{place}: no JSON object")
    return fields


def _segment_of(message: dict[str, Any], tokenizer: Any) -> Segment:
    tokens = tokenizer.encode(_text_of(message), bos=False, eos=False)
    special = tokenizer.get_special_token
    match message["role"]:
        case "system":
            return Segment("prompt", [tokenizer.bos_id, *tokens])
        case "user":
            return Segment("prompt", [special("[INST]"), *tokens, special("[/INST]")])
        case "tool":
            return Segment("tool", [special("[TOOL_RESULTS]"), *tokens, special("[/TOOL_RESULTS]")])
        case "assistant":
            if calls := message.get("tool_calls"):
                tokens = [*tokens, special("[TOOL_CALLS]")]
                tokens += tokenizer.encode(
                    json.dumps([_call_of(call) for call in calls]), bos=False, eos=False
                )
            return Segment("output", [*tokens, tokenizer.eos_id])
        case role:
            raise DataError(f"a message has the role {role!r}; known are system, user, tool, assistant")


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _call_of(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function["arguments"]
    return {
        "name": function["name"],
        "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments,
    }
