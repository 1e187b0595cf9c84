"""How the answer of a model that thinks is written: the thinking, then the answer.

`reason_spec.accelerator.thinking` finds whether a model thinks. Its answer is written in two generations:

- the thinking, by the strategy of the policy, up to its closing tag or its limit. Stops and constraints of
  the request do not apply to it;
- the answer after it, exactly: by the draft model at the token level where they share tokens, else by the
  token level or the target alone. Only a policy with a loss class beside ``exact`` lets the strategy write
  it too. White space after the closing tag is left out, and a stop in it does not count. Before a constrained
  answer the gap that models write here is inserted.

``max_tokens`` covers both. If it ends the thinking there is no answer; a limit of the thinking keeps some of
them for the answer.

A model that does not think writes its answer by the strategy of the policy. If tools are offered the answer
is exact as well, because calls must not be reworded, unless a loss class is named.
"""

from __future__ import annotations

from typing import Final

GAP: Final = "\n\n"
"""The text that models write between ``</think>`` and the answer."""


class LeadingSpace:
    """Leaves out white space at the beginning of a text that comes in pieces."""

    def __init__(self) -> None:
        self.is_over = False

    def strip(self, text: str) -> str:
        if not self.is_over:
            text = text.lstrip()
            self.is_over = bool(text)
        return text
