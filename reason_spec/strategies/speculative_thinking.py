"""Speculative Thinking (arXiv 2504.12329): the draft writes, and a cue in its words calls the target.

In the paper the draft writes up to a blank line and then 20 tokens. A cue in these hands them to the target,
which writes 20 tokens, and 125 more where its own hold a verification cue. After 15 reflections a fixed
sentence is inserted, and the target writes 125 tokens after it. (Words and numbers are those of the authors'
program.) Here the unit is a step:

- a cue among the first tokens of a drafted step hands the target the step, or ``takeover_tokens`` of it;
- a cue is a whole word, and no number grows with each inserted sentence;
- the draft does not wait for the target but writes up to ``depth`` steps ahead.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import ClassVar, Literal, TypeAlias

from reason_spec.engines.base import Tokenizer
from reason_spec.events import Recorder
from reason_spec.routers.base import StepRoute
from reason_spec.segment import StopScanner
from reason_spec.settings import CueSettings
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.base import RoutedStrategy, SolveRequest
from reason_spec.strategies.routed import judge_by
from reason_spec.strategies.specreason import SpecReasonLoop
from reason_spec.strategies.step_loop import LoopOptions
from reason_spec.types import Step
from reason_spec.verifiers.base import VerificationContext

CueKind: TypeAlias = Literal["reflection", "verification", "conclusion"]


class SpeculativeThinking(RoutedStrategy):
    """The draft writes; the target writes the steps in which the draft turns back, checks or concludes.

    Only the words decide: no model judges a step. Each step has one draft with any ``width``, since a
    second draft without the cue would only hide it.
    """

    name: ClassVar[str] = "speculative_thinking"

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        cues = Cues(self.settings.cues, self.target.tokenizer)
        num_turns, first_by_target, left = 0, self.settings.first_by_target, request
        while True:
            async with aclosing(self._loop(cues, left, recorder, first_by_target).steps()) as steps:
                async for step in steps:
                    yield step
                    left = left.after((step,), self.target, self.draft)
                    num_turns += cues.turns_back(step)
                    is_due = 0 < self.settings.cues.remind_after <= num_turns and step.finish == "boundary"
                    if is_due and (reminder := self._reminder(left)) is not None:
                        break
                else:
                    return
            yield reminder
            left = left.after((reminder,), self.target, self.draft)
            num_turns, first_by_target = 0, left.num_written_before + 1

    def _loop(
        self, cues: Cues, request: SolveRequest, recorder: Recorder, first_by_target: int
    ) -> SpecReasonLoop:
        settings = self.settings.model_copy(update={"width": 1})
        return SpecReasonLoop(
            AnswerWork(self.target, self.draft, settings, request, recorder),
            judge_by(cues),
            LoopOptions(takeover_tokens=settings.cues.takeover_tokens),
            first_by_target=first_by_target,
        )

    def _reminder(self, left: SolveRequest) -> Step | None:
        """Return the sentence to insert; None without room for a token after it, or if it holds a stop."""
        text, tokenizer = self.settings.cues.reminder, self.target.tokenizer
        tokens = tokenizer.encode(text)
        stopped = StopScanner(left.stops, left.stop_context(left.text_before)).feed(text) is not None
        if stopped or len(tokens) >= left.max_tokens:
            return None
        # It is begun and not ended: the target's next tokens belong to the same line.
        return Step(text, tokens, "inserted", "length", tokenizer.tokenizer_id)


class Cues:
    """A router that finds cues, as whole words in any case, in the first tokens of a step."""

    def __init__(self, settings: CueSettings, tokenizer: Tokenizer) -> None:
        self._window = settings.window
        self._tokenizer = tokenizer
        self._patterns: dict[CueKind, re.Pattern[str] | None] = {
            "reflection": _whole_words(settings.reflection),
            "verification": _whole_words(settings.verification),
            "conclusion": _whole_words(settings.conclusion),
        }

    def found(self, step: Step) -> dict[CueKind, str]:
        """Return the first cue of each kind that ends within the window."""
        tokens = step.tokens if step.tokenizer_id == self._tokenizer.tokenizer_id else ()
        seen = len(self._tokenizer.decode((tokens or self._tokenizer.encode(step.text))[: self._window]))
        found: dict[CueKind, str] = {}
        for kind, pattern in self._patterns.items():
            # Looked for in all of the step: the window may end within a word that only begins like a cue.
            match = pattern.search(step.text) if pattern is not None else None
            if match is not None and match.end() <= seen:
                found[kind] = match.group()
        return found

    def route(self, context: VerificationContext, drafted: Step) -> StepRoute:
        found = self.found(drafted)
        if not found:
            return StepRoute("draft", 0.0, "no cue")
        return StepRoute("target", 1.0, ", ".join(f"{kind}: {cue!r}" for kind, cue in found.items()))

    def turns_back(self, step: Step) -> bool:
        """Return whether a step was taken over from the draft and still turns back or checks."""
        taken_over = step.origin == "target" and step.verdict and step.verdict.decision == "reject"
        return bool(taken_over) and not {"reflection", "verification"}.isdisjoint(self.found(step))


def _whole_words(cues: Iterable[str]) -> re.Pattern[str] | None:
    words = [r"\s+".join(map(re.escape, cue.split())) for cue in cues]
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE) if words else None
