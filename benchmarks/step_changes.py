"""Steps with another wording and a changed one beside each: what a comparing verifier is measured on.

Three sources: steps that the generator of problems writes, in two of its phrasings and changed in one
place; steps of a file, changed in the same way and rewritten in another notation; and hand-written ones.

    python benchmarks/step_changes.py [--problems 600] > pairs.jsonl

prints pairs of the generator's training problems for `reason-spec verifier train`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from reason_spec.errors import DataError
from reason_spec.lab.verifier_training.changes import CHANGES
from reason_spec.pair import wording as words
from reason_spec.pair.generator import Example, Split, problems
from reason_spec.pair.story import OPERATORS, PlannedStep
from reason_spec.pair.wording import Kind

HELD_OUT: Final = Path(__file__).parent / "data"
STEP_FIELDS: Final = ("steps", "text", "response", "solution")


@dataclass(frozen=True, slots=True)
class Case:
    """A step, other words for it, and what looks like it and means something else.

    ``kind`` names what was changed; None where there is no other wording, or no changed step.
    """

    kind: str
    step: str
    reworded: str | None
    changed: str | None
    context: str = ""


def read_cases(path: Path) -> list[Case]:
    """Read hand-written cases."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Case(**json.loads(line)) for line in lines if line.strip()]


def read_steps(path: Path) -> list[list[str]]:
    """Return the steps of each solution in a jsonl file; a text is cut at its blank lines.

    Raises:
        DataError: a line is no object, or has none of the fields.
    """
    solutions: list[list[str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = json.loads(line) if line.strip() else {"steps": []}
        name = next((name for name in STEP_FIELDS if name in fields), None)
        if not isinstance(fields, dict) or name is None:
            raise DataError(f"{path}, line {number}: none of the fields {', '.join(STEP_FIELDS)}")
        found = fields[name]
        if name == "steps":
            solutions.append([str(step) for step in found])
        else:
            texts = found if isinstance(found, list) else [found]
            solutions += [re.split(r"\n\s*\n", str(text)) for text in texts]
    return [[step.strip() for step in steps if step.strip()] for steps in solutions]


# --- steps of a file --------------------------------------------------------------------------------------

_NOTATIONS: Final = (
    (r"\\dfrac\b", r"\\frac"), (r"\\cdot\b", r"\\times"), (r"\\left\b|\\right\b", ""), (r"\\leq?\b", "≤"),
    (r"\\geq?\b", "≥"), (r"\bSo,? ", "Therefore, "), (r"\bThus,? ", "Hence, "), (r"\bSince\b", "Because"),
    (r"\bWe (?:have|get|obtain|find)\b", "This gives us"), (r"\bwe (?:have|get|obtain|find)\b", "there is"),
    (r"\$([^$]+)\$", r"\\(\1\\)"), (r"\bTherefore\b", "Thus"), (r"\bFirst,? ", "To begin, "),
    (r"\bNow,? ", "Next, "), (r"\bequals\b", "is equal to"), (r"\bNote that\b", "Notice that"),
)  # fmt: skip
_MAX_CHARS: Final = 600


def other_notation(text: str) -> str | None:
    """Write the step in another notation and with other words of discourse."""
    rewritten = text
    for pattern, replacement in _NOTATIONS:
        rewritten = re.sub(pattern, replacement, rewritten)
    return rewritten if rewritten != text else None


def cases_of_steps(solutions: Sequence[Sequence[str]], per_kind: int, seed: int) -> Iterator[Case]:
    """Change steps of given solutions: up to ``per_kind`` steps for each kind of change."""
    rng = Random(f"steps/{seed}")
    steps = sorted({step for steps in solutions for step in steps if len(step) <= _MAX_CHARS})
    for kind, change in CHANGES.items():
        changed = ((step, change(step, rng)) for step in rng.sample(steps, len(steps)))
        cases = (
            Case(kind, step, other_notation(step), other)
            for step, other in changed
            if other not in (None, step)
        )
        yield from islice(cases, per_kind)
    for _ in range(per_kind if len(steps) > 1 else 0):
        step, other = rng.sample(steps, 2)
        yield Case("another step", step, other_notation(step), other)


# --- steps of generated problems --------------------------------------------------------------------------

_CONTRARY: Final[dict[Kind, Kind]] = {
    "more": "fewer", "fewer": "more", "times": "fraction", "give": "get", "get": "give", "fraction": "times",
    "compare": "together", "together": "compare", "price": "more",
}  # fmt: skip


def generated_cases(num_problems: int, seed: int, split: Split = "test") -> Iterator[Case]:
    """Yield steps of generated problems in two phrasings; of each problem one for each kind of change."""
    for index, problem in enumerate(islice(problems(split, seed), num_problems)):
        rng = Random(f"changes/{seed}/{index}")
        for kind in (
            "number",
            "operation",
            "order",
            "entity",
            "direction",
            "unit",
            "negation",
            "another step",
        ):
            places = list(range(len(problem.plan)))
            rng.shuffle(places)
            found = (_generated_case(problem, place, kind, rng) for place in places)
            yield from islice((case for case in found if case is not None), 1)


def _generated_case(problem: Example, place: int, kind: str, rng: Random) -> Case | None:
    planned = problem.plan[place]
    step = planned.text()
    if kind == "another step":
        others = [other for other in problem.steps if other != problem.steps[place]]
        changed = rng.choice(others) if others else None
    else:
        changed = _change_planned(planned, kind, rng) or (
            CHANGES[kind](step, rng) if kind in CHANGES else None
        )
    if changed is None or changed == step:
        return None
    phrasings = [p for p in words.STEPS[planned.kind] if p != planned.phrasing]
    reworded = replace(planned, phrasing=rng.choice(phrasings)).text()
    context = "\n\n".join((problem.question, *problem.steps[:place]))
    return Case(kind, step, reworded, changed, context)


def _change_planned(planned: PlannedStep, kind: str, rng: Random) -> str | None:
    """Change the plan, so that the changed step is a whole one whose arithmetic is right."""
    names = dict(planned.names)
    if kind == "entity" and names.get("new") and names.get("old") and names["new"] != names["old"]:
        return replace(planned, names=names | {"new": names["old"], "old": names["new"]}).text()
    if kind == "entity" and names.get("other") and names.get("old"):
        return replace(planned, names=names | {"other": names["old"], "old": names["other"]}).text()
    if kind == "unit" and "unit" in names:
        unit = rng.choice([noun for noun in words.NOUNS if noun != names["unit"]])
        return replace(planned, names=names | {"unit": unit}).text()
    if kind == "number" and OPERATORS[planned.kind] in "+*" and rng.random() < 0.5:
        return replace(planned, a=planned.a + rng.randint(1, 9)).text()
    other = _CONTRARY.get(planned.kind)
    if kind != "operation" or other is None:
        return None
    if (OPERATORS[other] == "-" and planned.a <= planned.b) or (
        OPERATORS[other] == "/" and (planned.b == 0 or planned.a % planned.b)
    ):
        return None
    return replace(planned, kind=other, phrasing=rng.choice(words.STEPS[other])).text()


def training_pairs(num_problems: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield labelled pairs of steps that the generator writes: two phrasings of one, and changed ones."""
    for case in generated_cases(num_problems, seed, "train"):
        question, *before = case.context.split("\n\n")
        shared = {
            "question": question,
            "before": before[-1] if before else "",
            "kind": f"generated {case.kind}",
        }
        if case.reworded is not None:
            yield {**shared, "a": case.reworded, "b": case.step, "same": True}
        if case.changed is not None:
            yield {**shared, "a": case.changed, "b": case.reworded or case.step, "same": False}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print pairs of generated steps to train a verifier on.")
    parser.add_argument("--problems", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for pair in training_pairs(options.problems, options.seed):
        sys.stdout.write(json.dumps(pair) + "\n")


if __name__ == "__main__":
    main()
