"""Models that think before they answer: whether they do, and where the thinking ends.

A model thinks if its prompt ends within an open ``<think>``, or if its chat template has a switch for it
(``enable_thinking``) that is not off; the tag is then appended to the prompt. It does not think if the prompt
ends with ``</think>``, if the template has no such switch, or if the tokenizer hides the tags. A message that
is continued is thinking only if a tag is open in it.

The answer of such a model is written in two generations:

- the thinking, by the strategy of the policy, up to ``</think>``. Stops and constraints of the request do not
  apply to it;
- the answer after it, exactly: by the draft model at the token level where they share tokens, else by the
  token level or the target alone. Only a policy with a loss class beside ``exact`` lets the strategy write
  it too. White space after ``</think>`` is left out, and a stop in it does not count. Before a constrained
  answer the gap that models write here is inserted.

``max_tokens`` covers both. If it ends the thinking there is no answer.

A model that does not think writes its answer by the strategy of the policy. If tools are offered the answer
is exact as well, because calls must not be reworded, unless a loss class is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from reason_spec.engines.base import Tokenizer

OPENER: Final = "<think>"
CLOSER: Final = "</think>"
GAP: Final = "\n\n"
"""The text that models write between ``</think>`` and the answer."""
SWITCH: Final = "enable_thinking"
_TAIL_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model that thinks. ``opening`` is appended to its prompt; empty where the prompt has it."""

    opening: str = ""


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
    if CLOSER not in tokenizer.decode(tokenizer.encode_prompt(CLOSER)):
        return None
    if continued is not None:
        return Thinking() if OPENER in continued and CLOSER not in continued else None
    end = tokenizer.decode_prompt(prompt[-_TAIL_TOKENS:]).rstrip()
    if end.endswith(OPENER):
        return Thinking()
    template = tokenizer.chat_template or ""
    switched = SWITCH in template and CLOSER in template and arguments.get(SWITCH, True) is not False
    return Thinking(f"{OPENER}\n") if switched and not end.endswith(CLOSER) else None


class LeadingSpace:
    """Leaves out white space at the beginning of a text that comes in pieces."""

    def __init__(self) -> None:
        self.is_over = False

    def strip(self, text: str) -> str:
        if not self.is_over:
            text = text.lstrip()
            self.is_over = bool(text)
        return text
