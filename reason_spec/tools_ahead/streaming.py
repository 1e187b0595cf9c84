"""Reads a call while the model still writes it."""

from __future__ import annotations

import json

from reason_spec.tools_ahead.calls import normal_json

_DECODER = json.JSONDecoder()


def complete_arguments(text: str) -> dict[str, str]:
    """Return the arguments of a JSON object that are complete in its beginning, in normal JSON.

    A number counts as complete once a comma or a brace follows it.
    """
    found: dict[str, str] = {}
    place = text.find("{") + 1
    while place:
        try:
            key, place = _DECODER.raw_decode(text, _skip(text, place))
            place = text.index(":", place) + 1
            value, place = _DECODER.raw_decode(text, _skip(text, place))
            written = normal_json(value)
        except (ValueError, RecursionError):
            break
        rest = text[place:].lstrip()
        if not isinstance(key, str) or not rest.startswith((",", "}")):
            break
        found[key] = written
        place = text.find(",", place) + 1 if rest.startswith(",") else 0
    return found


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
