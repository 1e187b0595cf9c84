"""Scripted models whose next step depends on everything before it, as a real model's does."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from reason_spec.segment import Boundary, split_steps
from reason_spec.types import Sampling


def _digest(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


@dataclass(frozen=True)
class StoryScript:
    """Tells a story whose every step is a function of the text so far.

    Scripts of one ``seed`` tell the same story; one with ``agreement`` below 1 departs from it at
    some steps, in ``other`` words.
    """

    seed: int
    agreement: float = 1.0
    other: str = "Otherwise"
    num_steps: int = 6

    def __call__(self, text: str, sampling: Sampling) -> str:
        prompt, separator, answer = text.partition("\n")
        begun = split_steps(answer, Boundary())
        complete = [step for step in begun if step.endswith("\n\n")]
        partial = "".join(begun[len(complete) :])
        told = prompt + separator + "".join(complete)
        rest = ""
        for index in range(len(complete), self.num_steps + 1):
            step = self._step(told, index, sampling)
            rest += step
            told += step
        return rest[len(partial) :] if rest.startswith(partial) else " and so on.\n\n" + rest

    def _step(self, told: str, index: int, sampling: Sampling) -> str:
        if index == self.num_steps:
            return "The end."
        noise = () if sampling.greedy else (sampling.noise,)
        number = _digest(self.seed, told, noise) % 1000
        departs = _digest("departs", self.seed, told) % 1000 >= 1000 * self.agreement
        words = self.other if departs else "Then"
        tail = " Carefully, now." if number % 3 == 0 else ""
        return f"{words} {number} birds sang.{tail}\n\n"
