"""Answers with thinking to small made-up problems, in two styles that stand for two models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any


def write_answers(path: Path, num_problems: int, who: str = "Ana", **more: Any) -> Path:
    """Write one answer in each style to each problem; every twelfth ends wrong after a right first try.

    Problems of another person are other problems.
    """
    rows: list[dict[str, Any]] = []
    for number in range(num_problems):
        rows += [{**_answer(number, style, who), **more} for style in ("brief", "wordy")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_solved(path: Path, num_problems: int) -> Path:
    """Write worked solutions in GSM8K's form."""
    rows = []
    for number in range(num_problems):
        boxes, apples, eaten = _numbers(1000 + number)
        total = boxes * apples
        solution = (
            f"There are {boxes} * {apples} = <<{boxes}*{apples}={total}>>{total} apples.\n"
            f"Then {total} - {eaten} = <<{total}-{eaten}={total - eaten}>>{total - eaten} apples are left.\n"
            f"#### {total - eaten}"
        )
        rows.append({"question": _question("Ana", boxes, apples, eaten), "answer": solution})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _numbers(seed: int) -> tuple[int, int, int]:
    draw = random.Random(seed)
    return draw.randint(3, 9), draw.randint(11, 19), draw.randint(2, 10)


def _question(who: str, boxes: int, apples: int, eaten: int) -> str:
    return f"{who} has {boxes} boxes of {apples} apples. She eats {eaten} apples. How many apples are left?"


def _answer(number: int, style: str, who: str) -> dict[str, Any]:
    boxes, apples, eaten = _numbers(number)
    total, draw = boxes * apples, random.Random(f"{number} {style}")
    left = total - eaten
    steps = [
        f"Let me see what the question says. There are {boxes} boxes.",
        f"First, {boxes} * {apples} = {total}. So that makes {total} apples at the start.",
        f"Then she eats {eaten}, and {total} - {eaten} = {left}. So {left} apples are left.",
    ]
    if style == "wordy":
        steps.insert(1, f"Each of the boxes holds {apples} apples, and later {eaten} are eaten.")
        steps.insert(3, f"Hmm, let me check this again. {apples} times {boxes} is {total}. Right.")
    checks = [
        f"Wait, let me check that. {boxes} * {apples} = {total}, minus {eaten} is {left}. Correct.",
        f"Alternatively, add them up again: {total} - {eaten} = {left}. The same number.",
        f"Therefore, the answer should be {left}, as before.",
    ]
    steps += [draw.choice(checks) for _ in range(draw.randint(2, 6))]
    final = left + 1 if number % 12 == 11 else left
    if final != left:
        steps.append(f"Hold on, that was a mistake: {total} - {eaten} = {final}. So the answer is {final}.")
    text = "\n\n".join(steps)
    return {
        "id": f"p{number}",
        "question": _question(who, boxes, apples, eaten),
        "answer": str(left),
        "response": f"<think>\n{text}\n</think>\n\nThe answer is \\boxed{{{final}}}.",
        "model": style,
    }
