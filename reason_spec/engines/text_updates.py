"""Updates of the texts that the suffix cache of an engine's worker drafts tokens from.

A text has a number. Requests name it in ``EngineRequest.text``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.base import Source


@dataclass(frozen=True, slots=True)
class Opening:
    """The prompt of a text, and the part of the suffix cache that the text reads and extends.

    Texts of one ``tenant`` and ``scope`` share a cache. Tenants keep the texts of customers apart, scopes
    those of strategies that are compared.
    """

    tenant: str
    scope: str
    segments: tuple[tuple[Source, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class BeginText:
    """A new text, or for a number in use the prompt of the text's next turn.

    The part of that prompt that the text holds already is not learned again.
    """

    text: int
    opening: Opening


@dataclass(frozen=True, slots=True)
class ExtendText:
    """Tokens of a text that became final."""

    text: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseText:
    """The end of a text. Its number is free again; the cache keeps what it learned."""

    text: int


@dataclass(frozen=True, slots=True)
class ForgetTexts:
    """Empty a scope, whose texts are closed by now."""

    scope: str


@dataclass(frozen=True, slots=True)
class EraseTexts:
    """Drop what was learned from a tenant, whose texts were erased on disk."""

    tenant: str


TextUpdate: TypeAlias = BeginText | ExtendText | CloseText | ForgetTexts | EraseTexts


def apply_update(texts: EarlierTexts, update: TextUpdate) -> None:
    match update:
        case BeginText(text, opening):
            texts.begin(text, opening.scope, opening.tenant, opening.segments)
        case ExtendText(text, tokens):
            texts.extend(text, tokens)
        case CloseText(text):
            texts.close(text)
        case ForgetTexts(scope):
            texts.forget(scope)
        case EraseTexts(tenant):
            texts.erase(tenant)
