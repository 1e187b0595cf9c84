"""Models that think before they answer: whether they do, how their tags are written, and what limits them.

A model thinks if its prompt ends within an open ``<think>``, or if its chat template has a switch for it
(``enable_thinking``) that is not off; the tag is then appended to the prompt. It does not think if the prompt
ends with ``</think>``, if the template has no such switch, or if the tokenizer hides the tags. A message that
is continued is thinking only if a tag is open in it. Where the template has channels (gpt-oss), the thinking
is ``analysis`` and the answer ``final``.

What a limit inserts is what the template writes between the thinking and the answer of an earlier turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.chat_template import Message, render_template
from reason_spec.engines.tokenizer import CHANNEL_TOKENS
from reason_spec.errors import EngineError, SettingsError
from reason_spec.settings import NO_EXIT, EngineSettings, ExitSettings, ThinkingSettings
from reason_spec.strategies.early_exit import BOX_PROMPT, PHRASE_PROMPT, ExitWatch
from reason_spec.strategies.thinking import CLOSER, CLOSING, ThinkingLimit

OPENER: Final = "<think>"
SWITCH: Final = "enable_thinking"
EFFORT: Final = "reasoning_effort"
NO_EFFORT: Final = "none"
UNLIMITED: Final = -1
"""The token budget that limits nothing, as vLLM has it."""
_TAIL_TOKENS: Final = 32
_ANSWER_TOKENS: Final = 32
"""Kept for an answer after its prompt."""
_THOUGHT, _ANSWER = "THE-THOUGHT", "THE-ANSWER"
"""Mark the places of both in a rendered template."""
_START, _CHANNEL, _MESSAGE, _END = CHANNEL_TOKENS
_FINAL: Final = f"{_CHANNEL}final{_MESSAGE}"
_TO_ANSWER: Final = f"{_START}assistant{_FINAL}"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model thinks: the texts around it, as in `ThinkingLimit`."""

    opening: str = ""
    closer: str = CLOSER
    closing: str = CLOSING
    heading: str = ""

    def without_final_channel(self) -> Thinking:
        """Return it without the header of channel ``final``: with tools the model chooses a channel."""
        closing, heading = self.closing.removesuffix(_FINAL), self.heading.removesuffix(_FINAL)
        return replace(self, closing=closing, heading=heading)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingOptions:
    """What a request asks of the thinking; None takes the value of the settings.

    Args:
        token_budget: tokens of the thinking at most; -1: no limit.
        max_steps: steps of the thinking at most.
        effort: passed to a chat template that has ``reasoning_effort``, else a token budget by the settings;
            ``none``: no thinking.
        exit: when it may end early; see `early_exit_limit` for answers without thinking.
    """

    token_budget: int | None = None
    max_steps: int | None = None
    effort: str | None = None
    exit: ExitSettings | None = None

    def chat_arguments(self, given: Mapping[str, Any], settings: ThinkingSettings) -> dict[str, Any]:
        """Return arguments of the chat template, with those of the effort."""
        effort = self.effort or settings.effort
        if effort is None:
            return dict(given)
        switch = {SWITCH: False} if effort == NO_EFFORT else {}
        return {**switch, **given, EFFORT: effort}

    def ask_for_limits(self, settings: ThinkingSettings) -> bool:
        """Return whether a request or the settings may limit a thinking."""
        own = (self.token_budget, self.max_steps, self.effort)
        usual = (settings.token_budget, settings.max_steps, settings.effort)
        return any(value is not None for value in (*own, *usual))

    def limit(
        self,
        thinking: Thinking,
        settings: ThinkingSettings,
        template: str | None,
        *,
        stands_alone: bool = False,
        prompts_answer: bool = True,
        ends_early: ExitSettings = NO_EXIT,
    ) -> ThinkingLimit | None:
        """Return the limit of a thinking; None where nothing limits it.

        Args:
            template: the source of the model's chat template.
            stands_alone: as in `ThinkingLimit`.
            prompts_answer: whether the settings' prompt for the answer is inserted.
            ends_early: when the thinking may end early.

        Raises:
            SettingsError: no budget is set for the effort.
        """
        budget = self._budget(settings, template)
        max_tokens = None if budget == UNLIMITED else budget
        max_steps = settings.max_steps if self.max_steps is None else self.max_steps
        if max_tokens is None and max_steps is None and not ends_early.is_on:
            return None
        return ThinkingLimit(
            max_tokens=max_tokens,
            max_steps=max_steps,
            monitor=partial(ExitWatch, ends_early) if ends_early.is_on else None,
            opening=thinking.opening,
            closer=thinking.closer,
            closing=thinking.closing + (settings.answer_prompt if prompts_answer else ""),
            heading=thinking.heading,
            answer_tokens=settings.answer_tokens,
            stands_alone=stands_alone,
        )

    def _budget(self, settings: ThinkingSettings, template: str | None) -> int | None:
        """Return the token budget: the request's, its effort's, the settings', or their effort's."""
        for budget, effort in ((self.token_budget, self.effort), (settings.token_budget, settings.effort)):
            if budget is not None:
                return budget
            if effort == NO_EFFORT:
                return 0
            if effort is None or EFFORT in (template or ""):
                continue
            if effort not in settings.effort_tokens:
                known = ", ".join([NO_EFFORT, *settings.effort_tokens])
                raise SettingsError(
                    f"the model's chat template knows no reasoning effort, and thinking.effort_tokens has no "
                    f"budget for {effort!r}: give one of {known}, or add it there"
                )
            found = settings.effort_tokens[effort]
            return UNLIMITED if found is None else found
        return None


def early_exit_limit(settings: ExitSettings, target: EngineSettings) -> ThinkingLimit:
    """Return the limit of an answer without marked thinking, which as a whole may end early.

    Where it does, a prompt for the answer is inserted: that of the settings, else the words with which the
    demonstration pair ends, else a box.
    """
    is_pair = target.kind == "torch" and target.model == "embedded"
    prompt = settings.answer_prompt or (PHRASE_PROMPT if is_pair else BOX_PROMPT)
    return ThinkingLimit(
        monitor=partial(ExitWatch, settings, answer_prompt=prompt),
        closer="",
        closing=f"\n\n{prompt}",
        answer_tokens=_ANSWER_TOKENS,
    )


def thinking_after(
    prompt: tuple[int, ...],
    tokenizer: Tokenizer,
    arguments: Mapping[str, Any],
    continued: str | None = None,
) -> Thinking | None:
    """Return how a model thinks after a prompt; None where it does not.

    Args:
        arguments: arguments of the chat template.
        continued: the text of the message that is continued; None where a new one begins.
    """
    template = tokenizer.chat_template or ""
    if _CHANNEL in template and _shows(tokenizer, _END):
        if continued is not None:
            return None
        closing = _closing(template, _END) or f"{_END}{_TO_ANSWER}"
        return Thinking(f"{_CHANNEL}analysis{_MESSAGE}", _END, closing, _TO_ANSWER)
    if not _shows(tokenizer, CLOSER):
        return None
    closing = _closing(template, CLOSER) or CLOSING
    if continued is not None:
        is_open = OPENER in continued and CLOSER not in continued
        return Thinking(closing=closing) if is_open else None
    end = tokenizer.decode_prompt(prompt[-_TAIL_TOKENS:]).rstrip()
    if end.endswith(OPENER):
        return Thinking(closing=closing)
    switched = SWITCH in template and CLOSER in template and arguments.get(SWITCH, True) is not False
    return Thinking(f"{OPENER}\n", closing=closing) if switched and not end.endswith(CLOSER) else None


def _shows(tokenizer: Tokenizer, tag: str) -> bool:
    """Return whether a tag is part of the text that the tokenizer decodes."""
    return tag in tokenizer.decode(tokenizer.encode_prompt(tag))


@lru_cache(maxsize=16)
def _closing(template: str, closer: str) -> str | None:
    """Return what a chat template writes between a thinking and its answer; None if it omits the thinking."""
    answer = {"role": "assistant", "content": _ANSWER}
    thought = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _THOUGHT)
    turns: list[Any] = [Message(role="user", content="?"), {**answer, **thought}]
    try:
        text = render_template(template, turns, {"add_generation_prompt": False})
    except EngineError:
        return None
    closing = text.partition(_THOUGHT)[2].partition(_ANSWER)[0]
    return closing if closer in closing and _ANSWER in text else None
