"""Live rules of early exit: they follow the final steps of one thinking and say where it may end.

A rule sees the question, the steps so far and its own trial answers, nothing that follows. It fails towards
continuing: without a policy's chance or a known trial the thinking continues.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from reason_spec.exit.policy import Choice, ExitMonitor
from reason_spec.exit.probes import Position, Prober
from reason_spec.exit.reading import read_value
from reason_spec.exit.trials import DEER_TRIGGER, DYNASOR_DOUBT, Trial, agree

DYNASOR_TEMPERATURE: Final = 0.6
DYNASOR_TOP_P: Final = 0.95


class ReadStep(NamedTuple):
    """A final step of the thinking, and the positions at its two ends."""

    text: str
    num_tokens: int
    before: Position
    after: Position


class Exit(NamedTuple):
    """The thinking may end.

    ``answer`` is what the rule expects, ``chance`` the policy's chance of it or the trial's confidence.
    ``keeps_step``: the step that was read belongs to the thinking; else it ends before it.
    """

    answer: str
    chance: float
    keeps_step: bool = True


class ExitRule(ABC):
    """Decides where one thinking may end."""

    @abstractmethod
    async def read(self, step: ReadStep) -> Exit | None:
        """Take the next step; return where the thinking may end, None where it continues."""

    async def settle(self) -> None:  # noqa: B027 - most ask for none
        """Wait until no trial runs; raise the error of one that failed."""

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free what the rule holds; nothing runs for it any more."""


class PolicyRule(ExitRule):
    """The thinking ends after the step at which the policy's best chance reaches the threshold."""

    def __init__(self, monitor: ExitMonitor) -> None:
        self._monitor = monitor

    async def read(self, step: ReadStep) -> Exit | None:
        best = await self._monitor.follow(step.text)
        return None if best is None or best.chance < self._monitor.threshold else Exit(*best)


class ProbingRule(ExitRule):
    """A rule that asks for trial answers."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    async def settle(self) -> None:
        await self._prober.settle()

    async def close(self) -> None:
        await self._prober.close()


class DeerRule(ProbingRule):
    """DEER (arXiv 2504.15895, section 3): a trial where the model is about to reconsider.

    A step that begins with "Wait" or "Alternatively" is held until the trial before it is known. If its
    confidence is above the threshold the thinking ends before that step. The confidence is the geometric mean
    over the answer's tokens. Unlike in the paper only the beginnings of steps are looked at.
    """

    def __init__(self, prober: Prober, confidence: float, most_probes: int) -> None:
        super().__init__(prober)
        self._confidence = confidence
        self._most_probes = most_probes
        self._has_read = False

    async def read(self, step: ReadStep) -> Exit | None:
        is_first, self._has_read = not self._has_read, True
        if is_first or self._prober.num_begun >= self._most_probes or not DEER_TRIGGER.match(step.text):
            return None
        trial = await self._prober.begin(step.before)
        if trial.answer is None or trial.confidence <= self._confidence:
            return None
        return Exit(trial.answer, trial.confidence, keeps_step=False)


class DynasorRule(ProbingRule):
    """Dynasor (arXiv 2412.20993): trials at intervals of tokens, written while the thinking continues.

    The thinking ends when the last ``agreeing`` trials have one answer and none has a word of doubt. Unlike
    in the paper a trial begins at the end of the step in which the interval ends, and the thinking ends with
    a step.
    """

    def __init__(self, prober: Prober, every: int, agreeing: int) -> None:
        super().__init__(prober)
        self._every = every
        self._num_tokens = 0
        self._agreeing = agreeing
        self._waiting: deque[asyncio.Task[Trial]] = deque()
        self._known: deque[Trial] = deque(maxlen=agreeing)

    async def read(self, step: ReadStep) -> Exit | None:
        before, self._num_tokens = self._num_tokens, self._num_tokens + step.num_tokens
        if self._num_tokens // self._every > before // self._every:
            self._waiting.append(self._prober.begin(step.after))
        while self._waiting and self._waiting[0].done():
            if (trial := self._waiting.popleft().result()).answer is not None:
                self._known.append(trial)
        last = self._known[-1] if len(self._known) == self._agreeing and agree(self._known) else None
        if last is None or last.answer is None or any(DYNASOR_DOUBT.search(one.text) for one in self._known):
            return None
        return Exit(last.answer, last.confidence)


class ProbedPolicyRule(ProbingRule):
    """The policy's chance beside trials at the steps that mark a conclusion.

    The thinking ends where the chance reaches the policy's threshold and the last trial does not contradict;
    or where it reaches ``least_chance`` and the last ``agreeing`` trials confidently have that answer. Trials
    are written while the thinking continues, one at a time; an unknown one is ignored. After the last of
    ``most_probes`` none contradicts any more: what the thinking says later is not asked about.
    """

    def __init__(
        self,
        monitor: ExitMonitor,
        prober: Prober,
        *,
        least_chance: float,
        confidence: float,
        agreeing: int,
        most_probes: int,
    ) -> None:
        super().__init__(prober)
        self._monitor = monitor
        self._least_chance = least_chance
        self._confidence = confidence
        self._most_probes = most_probes
        self._known: deque[Trial] = deque(maxlen=agreeing)
        self._waiting: asyncio.Task[Trial] | None = None

    async def read(self, step: ReadStep) -> Exit | None:
        best = await self._monitor.follow(step.text)
        if self._waiting is not None and self._waiting.done():
            if (trial := self._waiting.result()).answer is not None:
                self._known.append(trial)
            self._waiting = None
        if best is not None and self._may_end(best, self._known):
            return Exit(*best)
        if best is not None and self._is_worth_asking(best):
            self._waiting = self._prober.begin(step.after)
        return None

    def _is_worth_asking(self, best: Choice) -> bool:
        is_free = self._waiting is None and not self._is_spent
        return is_free and self._monitor.concludes and best.chance >= self._least_chance / 2

    @property
    def _is_spent(self) -> bool:
        return self._prober.num_begun >= self._most_probes

    def _may_end(self, best: Choice, known: Sequence[Trial]) -> bool:
        value = read_value(best.answer)
        if best.chance >= self._monitor.threshold:
            has_asked_all = self._is_spent and self._waiting is None
            return has_asked_all or not known or known[-1].value == value
        is_whole = len(known) == self._known.maxlen and agree(known) and known[-1].value == value
        is_sure = all(trial.confidence >= self._confidence for trial in known)
        return best.chance >= self._least_chance and is_whole and is_sure
