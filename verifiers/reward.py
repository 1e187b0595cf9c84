"""``reward``: a process reward model estimates whether a solution is right up to a drafted step.

As in RSD (arXiv 2501.19324), a step is accepted if its reward reaches a threshold, by default 0.7.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from reason_spec.segment import Boundary, split_steps
from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.batching import Batcher, use_one_core

DEFAULT_THRESHOLD: Final = 0.7


class SoFar(NamedTuple):
    """A question, and the answer up to the end of the judged step."""

    question: str
    answer: str


PROBE: Final = SoFar("How many apples are 3 + 4?", "3 + 4 = 7.\n\n")
"""Rated at the start, so that an unusable model is detected before the first step."""


@dataclass(frozen=True, slots=True)
class StepToken:
    """The token after each step at which a process reward model is read, and the boundary of steps."""

    text: str
    boundary: Boundary = field(default_factory=Boundary)

    def mark(self, answer: str) -> str:
        """Return an answer in which the token replaces the white space after each step."""
        return "".join(step.strip() + self.text for step in split_steps(answer, self.boundary))


Reward: TypeAlias = Callable[[Sequence[SoFar]], Sequence[float]]
"""Maps a batch of texts to rewards between 0 and 1, in order; called in one thread."""


class ByReward(Verifier):
    """Accepts a step whose reward reaches ``threshold``, rejects others."""

    name: str = "reward"
    loss_class: LossClass = "routed"
    judges_draft_only: bool = True
    compares: bool = False

    def __init__(self, threshold: float | None, deadline_seconds: float) -> None:
        super().__init__(deadline_seconds)
        self.threshold: float = self.checked_threshold(DEFAULT_THRESHOLD if threshold is None else threshold)

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        reward = await self._rate(SoFar(context.question, context.prefix_text + drafted.text))
        check_reward(reward)
        return Verdict(
            "accept" if reward >= self.threshold else "reject",
            reward,
            cost_tokens=len(drafted.tokens),
            reason=f"reward {reward:.3f}, threshold {self.threshold:g}",
        )

    @abstractmethod
    async def _rate(self, so_far: SoFar) -> float:
        """Return the reward of the last step of an answer. May raise."""


def check_reward(reward: float) -> None:
    """Raise ValueError if a number is not between 0 and 1."""
    if not 0 <= reward <= 1:
        raise ValueError(f"a reward of {reward!r}; it has to lie between 0 and 1")


class RewardVerifier(ByReward):
    """Asks a reward model in a thread of this process.

    Args:
        load: returns the reward model; called once, in the thread that runs it.
    """

    def __init__(
        self, load: Callable[[], Reward], threshold: float | None = None, deadline_seconds: float = 5.0
    ) -> None:
        super().__init__(threshold, deadline_seconds)
        # One object for all copies with other thresholds.
        self._model = _RewardThread(load)

    async def start(self) -> None:
        await self._model.start()

    async def close(self) -> None:
        await self._model.close()

    async def _rate(self, so_far: SoFar) -> float:
        return await self._model.batcher.ask(so_far)


class _RewardThread:
    """A reward model and the thread that runs it."""

    def __init__(self, load: Callable[[], Reward]) -> None:
        self._load = load
        self._reward: Reward | None = None
        self.batcher: Batcher[SoFar, float] = Batcher(self._rewards, "reward", initializer=use_one_core)

    async def start(self) -> None:
        if self._reward is None:
            await self.batcher.run(self._load_once)

    async def close(self) -> None:
        await self.batcher.close()
        self._reward = None

    def _load_once(self) -> None:
        if self._reward is None:
            self._reward = self._load()

    def _rewards(self, texts: Sequence[SoFar]) -> Sequence[float]:
        assert self._reward is not None, "a reward was asked for before start"
        rewards = list(map(float, self._reward(texts)))
        if len(rewards) != len(texts):
            raise ValueError(f"the reward model gave {len(rewards)} rewards for {len(texts)} texts")
        return rewards
