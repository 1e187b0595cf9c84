"""Limits of the thinking: where one ends it, the closing tag is inserted and the answer is written.

A limit is a number of tokens or of steps, or a monitor that reads the steps. The thinking ends at the last
step boundary within its limits: a step that does not fit is left out. Only a first step that does not fit is
cut, at the limit and between two characters. No text is streamed before its step is final, since the step may
be left out.

Thinking tokens are those between the tags, a strategy's own insertions included. Tags are not counted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from reason_spec.engines.base import Engine, Tokenizer
from reason_spec.events import Recorder, ThinkingEnd, ThinkingOutcome
from reason_spec.segment import StopScanner
from reason_spec.strategies.step_tokens import ends_within_character, step_for
from reason_spec.types import Step

if TYPE_CHECKING:
    from reason_spec.strategies.base import SolveRequest

CLOSER: Final = "</think>"
CLOSING: Final = f"\n{CLOSER}\n\n"


MonitorDecision: TypeAlias = Literal["go_on", "end_before", "end_after"]
"""Whether the thinking continues, or ends before or after the step that was read."""


class ThinkingMonitor(Protocol):
    """Reads one thinking step by step, and says where it ends."""

    async def read(self, step: Step, before: SolveRequest, after: SolveRequest) -> MonitorDecision:
        """Return whether the thinking ends at a step.

        It is asked once for each step, in order and before the step is final; ``before`` and ``after`` are
        the requests for the text from its two ends. The models write on while it decides.
        """

    @property
    def closing(self) -> str | None:
        """The text to insert where it ended the thinking; empty: the text ends there. None: the limit's."""

    async def close(self) -> None:
        """Free what it holds; called once, when the thinking is over or abandoned."""


MakeMonitor: TypeAlias = Callable[["SolveRequest", Engine, Engine | None, Recorder], ThinkingMonitor]
"""Makes the monitor of an answer from the request for its first step, target, draft and recorder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """Where the thinking of an answer ends at the latest, and how.

    Args:
        max_tokens, max_steps: limits of the thinking; None: none. 0 leaves no thinking.
        monitor: makes the monitor of an answer; None: none.
        opening: text that begins the thinking; empty where the prompt has it.
        closer: text with which the model ends its thinking; empty where only the end of the text does.
        closing: text that is inserted where a limit ends the thinking: ``closer``, and what leads to the
            answer.
        heading: text to insert after the model's own ``closer``, where the model has to be led to the answer.
        answer_tokens: tokens kept for the answer, but at most half of what it shares with the thinking.
        stands_alone: whether the text ends with the thinking, since the caller writes the answer.
    """

    max_tokens: int | None = None
    max_steps: int | None = None
    monitor: MakeMonitor | None = None
    opening: str = ""
    closer: str = CLOSER
    closing: str = CLOSING
    heading: str = ""
    answer_tokens: int = 256
    stands_alone: bool = False


class LimitedThinking:
    """Writes one thinking, and ends it at its limits.

    ``left`` is the request for the text after the steps so far, ``monitor`` that of the limit, None without
    one. ``outcome`` is None before the end. Without room for the closing tag and a token after it, the text
    ends within the thinking. A text without a tag that only a monitor may end is left as the model writes it,
    unless the monitor ends it.
    """

    def __init__(
        self,
        limit: ThinkingLimit,
        request: SolveRequest,
        target: Engine,
        draft: Engine | None,
        recorder: Recorder,
    ) -> None:
        self._limit = limit
        self._target, self._draft = target, draft
        self._tokenizer = target.tokenizer
        self.left = replace(request, thinking=None)
        self.is_answered = False
        """Whether the same text holds an answer after the thinking."""
        self.outcome: ThinkingOutcome | None = None
        self._text = ""
        self._num_tokens = self._num_steps = 0
        self._opening = self._inserted(limit.opening) if limit.opening else None
        if self._opening is not None:
            self.left = self._after(self._opening)
        self.monitor: ThinkingMonitor | None = None
        if limit.monitor is not None:
            self.monitor = limit.monitor(self.left, target, draft, recorder)
        room = self.left.max_tokens
        room_without_tags = room - len(self._tokenizer.encode(limit.closing))
        self._can_close = room_without_tags > 0
        self._most_before_answer = 0
        """Tokens of thinking after which its closing and an answer still have room."""
        self._is_bounded = bool(limit.closer) or limit.max_tokens is not None or limit.max_steps is not None
        if self._can_close:
            reserve = max(1, min(limit.answer_tokens, room_without_tags // 2))
            self._most_before_answer = room_without_tags - reserve
            room = self._most_before_answer if self._is_bounded else room
        self._max_tokens = room if limit.max_tokens is None else min(room, limit.max_tokens)

    async def steps(self, write: Callable[[SolveRequest], AsyncGenerator[Step]]) -> AsyncGenerator[Step]:
        """Yield the steps of the thinking and its closing.

        Args:
            write: writes the steps of a request; it is closed where the thinking ends.
        """
        if self._opening is not None:
            yield self._opening
        ended_by: ThinkingEnd = "steps" if self._limit.max_steps == 0 else "tokens"
        pending: list[Step] = []
        if self._max_tokens > 0 and self._limit.max_steps != 0:
            async with aclosing(write(self._request())) as written:
                async for step in written:
                    pending.append(step_for(step, self._target))
                    if self._num_tokens + self._num_thinking(pending) > self._max_tokens:
                        break
                    if step.ends_text:
                        ended_by = "model"
                        break
                    # Of the tokens: where the tag goes on in the next step, the text has lost its beginning.
                    if self._end_within_closer([token for one in pending for token in one.tokens]):
                        continue
                    while pending and self._reached() is None:
                        decision = await self._decision(pending[0])
                        if decision == "end_before":
                            break
                        yield self._take(pending.pop(0))
                        if decision == "end_after":
                            break
                    reached = self._reached() if decision == "go_on" else "monitor"
                    if reached is not None:
                        ended_by = reached
                        break
        for step in self._last_steps(pending, ended_by):
            yield step
        self.outcome = ThinkingOutcome(self._num_tokens, self._num_steps, ended_by)

    async def close(self) -> None:
        """Free what the monitor holds; called once, when the thinking is over or abandoned."""
        if self.monitor is not None:
            await self.monitor.close()

    def _request(self) -> SolveRequest:
        """Return the request for the thinking, with room for the model's own closing tag.

        Without a tag it has room for one token, by which a step that does not fit is known.
        """
        num_more = max(1, len(self._tokenizer.encode(self._limit.closer)))
        max_tokens = min(self.left.max_tokens, self._max_tokens + num_more)
        request = replace(self.left, max_tokens=max_tokens, may_be_cut=True)
        if not self._limit.closer:
            # The thinking is the text itself: what restricts the text applies to it.
            return request
        return replace(request, stops=(self._limit.closer,), stop_ids=frozenset(), constraint=None)

    async def _decision(self, step: Step) -> MonitorDecision:
        """Return what the monitor says of the next step; it is not asked where an answer has no room."""
        num_tokens = self._num_tokens + self._num_thinking((step,))
        if self.monitor is None or num_tokens > self._most_before_answer:
            return "go_on"
        return await self.monitor.read(step, self.left, self._after(step))

    def _reached(self) -> ThinkingEnd | None:
        """Return the limit that is reached with the steps so far."""
        if self._num_tokens >= self._max_tokens:
            return "tokens"
        if self._limit.max_steps is not None and self._num_steps >= self._limit.max_steps:
            return "steps"
        return None

    def _last_steps(self, pending: Sequence[Step], ended_by: ThinkingEnd) -> list[Step]:
        """Return what ends the thinking, from the steps after the last boundary within the limits."""
        if ended_by != "model":
            kept = [] if self._num_tokens else self._cut(pending)
            if ended_by == "tokens" and not self._is_bounded:
                return [self._take(step, is_cut=True) for step in kept]
            closing = self.monitor.closing if ended_by == "monitor" and self.monitor is not None else None
            taken = [self._take(step, is_cut=True) for step in kept]
            return [*taken, *self._closing_steps(closing)]
        *before, last = pending
        # They hold the beginning of the tag.
        taken = [self._take(step, is_cut=True) for step in before]
        if not self._limit.closer:
            return [*taken, self._take(last)]
        if last.finish == "stop":
            if last.num_stop_overlap:
                # The tag begins in their tokens, and is not counted.
                self._num_tokens -= sum(len(step.tokens) - self._num_of_text(step) for step in before)
            return [*taken, *self._own_closing(last)]
        # The model ended its text and never began the answer.
        taken += [self._take(step, is_cut=True) for step in self._cut((last,))]
        return [*taken, *self._closing_steps()]

    def _own_closing(self, last: Step) -> list[Step]:
        """Return the step that the model ended with its closing tag, and the tag if the text continues."""
        closer, heading = self._limit.closer, self._limit.heading
        last = with_stop(last, closer, self._tokenizer)
        if self._limit.stands_alone:
            return [self._take(last)]
        text = closer[: last.num_stop_overlap] + self._tokenizer.decode(last.tokens)
        steps = [replace(last, text=text, finish="boundary", num_stop_overlap=0)]
        self._num_tokens += self._num_thinking((last,))
        self.left = self._after(steps[0])
        opening = self._inserted(heading)
        if len(opening.tokens) >= self.left.max_tokens:
            return steps
        if heading:
            steps.append(opening)
            self.left = self._after(opening)
        self.is_answered = True
        return steps

    def _closing_steps(self, closing: str | None = None) -> list[Step]:
        """Return the inserted closing tag, if it has room; a text that ends with it has it as a stop."""
        if closing == "":
            return [Step("", (), "inserted", "eos", self._tokenizer.tokenizer_id)]
        if not self._can_close:
            return []
        closing = self._limit.closing if closing is None else closing
        ends_line = self._text.endswith("\n")
        closing = closing.lstrip("\n") if ends_line else closing
        step = self._inserted(closing)
        if self._limit.stands_alone:
            step = replace(step, text="", finish="stop")
        self.left = self._after(step)
        self.is_answered = not self._limit.stands_alone
        return [step]

    def _cut(self, steps: Sequence[Step]) -> list[Step]:
        """Return the beginning of steps within the limit; it ends neither in a character nor in the tag."""
        kept: list[Step] = []
        room = self._max_tokens - self._num_tokens
        for step in steps:
            tokens = step.tokens[: min(room, self._num_thinking((step,)))]
            while tokens and not self._is_clean(tokens):
                tokens = tokens[:-1]
            if tokens:
                logprobs = None if step.logprobs is None else step.logprobs[: len(tokens)]
                text = self._tokenizer.decode(tokens)
                kept.append(replace(step, text=text, tokens=tokens, logprobs=logprobs, finish="length"))
            if len(tokens) < len(step.tokens):
                break
            room -= len(tokens)
        return kept

    def _is_clean(self, tokens: Sequence[int]) -> bool:
        """Return whether the text ends with a whole character, and not within the closing tag."""
        is_whole = not ends_within_character(tokens, self._tokenizer)
        return is_whole and not self._end_within_closer(tokens)

    def _end_within_closer(self, tokens: Sequence[int]) -> bool:
        scanner = StopScanner((self._limit.closer,))
        scanner.feed(self._tokenizer.decode(tokens))
        return scanner.held_back() > 0

    def _num_of_text(self, step: Step) -> int:
        return num_text_tokens(replace(step, finish="stop"), self._tokenizer)

    def _num_thinking(self, steps: Sequence[Step]) -> int:
        return sum(num_text_tokens(step, self._tokenizer) for step in steps)

    def _take(self, step: Step, *, is_cut: bool = False) -> Step:
        """Count a step as thinking, and return it.

        Args:
            is_cut: it was cut here, at the limit, so that it is no whole step.
        """
        self.left = self._after(step)
        self._text += step.text
        self._num_tokens += self._num_thinking((step,))
        # One that the models cut, at its most tokens, is a step.
        is_long = step.finish == "length" and step.origin != "inserted" and not is_cut
        self._num_steps += step.finish == "boundary" or is_long
        return step

    def _after(self, step: Step) -> SolveRequest:
        return self.left.after((step,), self._target, self._draft)

    def _inserted(self, text: str) -> Step:
        tokenizer = self._tokenizer
        return Step(text, tokenizer.encode(text), "inserted", "boundary", tokenizer.tokenizer_id)


def with_stop(step: Step, stop: str, tokenizer: Tokenizer) -> Step:
    """Return a step that ended with a stop string with the tokens of that string.

    An accepted step of a model with other tokens has none.
    """
    if stop in stop[: step.num_stop_overlap] + tokenizer.decode(step.tokens):
        return step
    tokens = step.tokens[: num_text_tokens(step, tokenizer)]
    return replace(step, tokens=(*tokens, *tokenizer.encode(stop)), logprobs=None)


def num_text_tokens(step: Step, tokenizer: Tokenizer) -> int:
    """Return how many tokens a step has without those of a stop string, or the end of the text."""
    if step.finish == "eos":
        return len(step.tokens) - bool(step.tokens and step.tokens[-1] in tokenizer.eos_ids)
    if step.finish != "stop":
        return len(step.tokens)
    num_bytes, count = len(step.text.encode()), 0
    for token in step.tokens:
        if num_bytes <= 0:
            break
        num_bytes -= len(tokenizer.token_bytes(token))
        count += 1
    return count
