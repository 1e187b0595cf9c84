"""Conversations, and the Jinja templates that models format them with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from reason_spec.errors import EngineError

if TYPE_CHECKING:
    from jinja2 import Template, nodes
    from jinja2.parser import Parser


class Message(TypedDict):
    """One turn of a chat in OpenAI's form, with the arguments of calls as objects."""

    role: str
    content: str
    name: NotRequired[str]
    reasoning_content: NotRequired[str]
    thinking: NotRequired[str]
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of a chat template.

    Attributes:
        tools: tools in OpenAI's form.
        arguments: further variables of the template, such as ``enable_thinking``.
        continue_final: leave the last message open, so that the generation continues it.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False


PLAIN_CHAT = ChatOptions()


def render_template(template: str, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    """Render a chat template as transformers does (``utils/chat_template_utils.py``)."""
    from jinja2 import TemplateError

    try:
        return _compile_chat(template).render(
            messages=list(messages), **{"add_generation_prompt": True, **arguments}
        )
    except TemplateError as error:
        raise EngineError(f"the model's chat template refused the conversation: {error}") from None
    except Exception as error:
        # Templates are programs of their own, and what they are given is a client's.
        kind = type(error).__name__
        raise EngineError(f"the model's chat template failed on the conversation: {kind}: {error}") from None


@lru_cache(maxsize=16)
def _compile_chat(template: str) -> Template:
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    class Generation(Extension):
        """``{% generation %}``: marks the model's turns, for trainings. Its content is shown as it is."""

        tags = {"generation"}  # noqa: RUF012 - as in the base class

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(template)
