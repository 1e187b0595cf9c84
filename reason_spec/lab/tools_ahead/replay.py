"""Replays a recorded conversation with calls run ahead, on a clock of its own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from reason_spec.lab.tools_ahead.moments import Recorded, Scores
from reason_spec.tools_ahead.calls import Call, Called, Event, Said
from reason_spec.tools_ahead.predictor import IsReadOnly

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Clock:
    """Tokens a second, and the seconds of a tool, of a user's text and of a result's age."""

    count_tokens: CountTokens
    tokens_per_second: float = 50.0
    tool_seconds: float = 1.0
    user_seconds: float = 10.0
    max_age: float = 120.0

    def seconds_until(self, event: Event, stage: int) -> float:
        """Return the seconds from the beginning of a text or a call until its stage is reached.

        Stage 0 is the beginning, 1 the end of a call's name, one more for each argument, -1 the end.
        """
        if stage == 0:
            return 0.0
        text = event.text if isinstance(event, Said) else ""
        if isinstance(event, Called):
            text = call_text(event.call, None if stage < 0 else stage - 1)
        return self.count_tokens(text) / self.tokens_per_second


def call_text(call: Call, num_arguments: int | None = None) -> str:
    """Return a call as a model writes it, or its beginning up to a number of arguments."""
    if num_arguments is None:
        return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    parts = [f'"{key}": {value}, ' for key, value in list(call.values.items())[:num_arguments]]
    return f'{{"name": "{call.name}", "arguments": {{{"".join(parts)}'


class Ahead(NamedTuple):
    """A call that was run ahead: its chance, its stage, and when it began. ``is_used``: its result was."""

    tool: str
    chance: float
    stage: int
    is_used: bool


class Use(NamedTuple):
    """A read-only call of the model, with the seconds that its early start saves; None if it had none."""

    tool: str
    stage: int | None
    saved: float | None


@dataclass(slots=True)
class Replayed:
    """What happened: every call run ahead, and every read-only call of the model."""

    ahead: list[Ahead] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    seconds: float = 0.0
    """Of the whole conversation, without anything run ahead."""

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(self.ahead + other.ahead, self.uses + other.uses, self.seconds + other.seconds)

    @property
    def num_right(self) -> int:
        return sum(use.stage is not None for use in self.uses)

    @property
    def precision(self) -> float | None:
        return self.num_right / len(self.ahead) if self.ahead else None

    @property
    def share(self) -> float | None:
        return self.num_right / len(self.uses) if self.uses else None

    @property
    def saved(self) -> float:
        return sum(use.saved or 0.0 for use in self.uses)


class _Held(NamedTuple):
    place: int
    started: float


def replay(
    one: Recorded, scores: Sequence[Scores], threshold: float, clock: Clock, is_read_only: IsReadOnly
) -> Replayed:
    """Replay one conversation: each call whose chance reaches the threshold runs ahead.

    A result is used once, by the same call, while it is no older than ``clock.max_age``. A call that may
    change something drops all results.
    """
    at: dict[int, list[Scores]] = defaultdict(list)
    for scored in scores:
        at[scored.moment.event].append(scored)
    done = Replayed()
    held: dict[str, _Held] = {}
    now = 0.0
    for number, event in enumerate(one.events):
        for moment, chances in at[number]:
            then = now + clock.seconds_until(event, moment.stage)
            for key, chance in zip(moment.keys, chances, strict=True):
                if chance >= threshold and not (key in held and then - held[key].started <= clock.max_age):
                    held[key] = _Held(len(done.ahead), then)
                    done.ahead.append(Ahead(key.partition("(")[0], chance, moment.stage, False))
        if isinstance(event, Said):
            spoken = {"user": clock.user_seconds, "system": 0.0}
            now += spoken.get(event.speaker, clock.seconds_until(event, -1))
        elif isinstance(event, Called):
            now += clock.seconds_until(event, -1)
            if not is_read_only(event.call):
                held.clear()
                continue
            result = held.pop(event.call.key, None)
            use = Use(event.call.name, None, None)
            if result is not None and now - result.started <= clock.max_age:
                used = done.ahead[result.place]._replace(is_used=True)
                done.ahead[result.place] = used
                use = Use(use.tool, used.stage, min(clock.tool_seconds, now - result.started))
            done.uses.append(use)
        else:
            now += clock.tool_seconds
    done.seconds = now
    return done


def replay_all(
    conversations: Iterable[tuple[Recorded, Sequence[Scores]]],
    threshold: float,
    clock: Clock,
    is_read_only: IsReadOnly,
) -> Replayed:
    total = Replayed()
    for one, scores in conversations:
        total = total + replay(one, scores, threshold, clock, is_read_only)
    return total


def counting_once(count_tokens: CountTokens) -> CountTokens:
    """Keep the numbers of tokens of texts that are counted again and again."""
    return lru_cache(maxsize=1 << 16)(count_tokens)
