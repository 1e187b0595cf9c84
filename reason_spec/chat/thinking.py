"""Models that think before they answer: whether they do, and where the thinking ends.

A model thinks where its prompt ends within an open ``<think>``, or where its chat template has a switch for
it (``enable_thinking``) that is not off; the tag is then put behind the prompt, so that it is certain. It
does not where the prompt ends with ``</think>``, where the template has no such switch, and where the
tokenizer hides the tags. A message that is gone on with is thinking only if a tag is open in it.

The answer of such a model is written in two asks:

- the thinking, by the strategy that the policy names, up to ``</think>``. The user's stops and a constraint
  are for the answer, and do not touch it;
- the answer behind it, exactly: by the draft model and the token level where they share tokens, else by the
  token level or the target alone. Only a policy that names a loss class beside ``exact`` has it written by
  the strategy too. White space behind ``</think>`` is left out, and a stop that ends in it does not count;
  where the answer is bound a blank line is put there for the model.

``max_tokens`` covers both. Where it ends the thinking there is no answer.

What a model without thinking writes is the answer, and the strategy acts on all of it, except where tools are
offered: calls must not be reworded, so it is exact too unless a loss class is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from reason_spec.engines.base import Tokenizer

OPENER: Final = "<think>"
CLOSER: Final = "</think>"
BEHIND: Final = "\n\n"
"""What models write between ``</think>`` and the answer."""
SWITCH: Final = "enable_thinking"
_TAIL_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model that thinks now. ``opening`` is put behind its prompt; empty where the prompt has it."""

    opening: str = ""


def thinking_after(
    prompt: tuple[int, ...],
    tokenizer: Tokenizer,
    arguments: Mapping[str, Any],
    continued: str | None = None,
) -> Thinking | None:
    """Return how a model thinks behind a prompt; None where it does not.

    Args:
        arguments: what the chat template was told.
        continued: the text of the message that is gone on with; None where a new one begins.
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
