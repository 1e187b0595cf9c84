"""Values of a conversation with the place that each comes from.

A place is named by the kind of its event and a path without list positions: ``result get_user
reservations[]``,
``argument search date``, ``user A9:6`` (a word of six capitals and digits in a user's text).
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from reason_spec.tools_ahead.calls import Called, Event, Returned, Said, normal_json

MAX_VALUES: Final = 400
"""Values that are taken of one event; the rest of a long result is not searched."""
_MAX_LENGTH: Final = 200
_WORD: Final = re.compile(r"[A-Za-z0-9/~]+(?:[_\-./:@][A-Za-z0-9]+)*")
_BEFORE: Final = re.compile(r"([a-z]+)[\s\"'*(:`]*$")
_PARTS: Final = re.compile(r"[_\-./:@]")
_ALIAS: Final = re.compile(r"\b([A-Z][a-z'.]+(?: [A-Z][a-z'.]+){0,3})\*{0,2} \(([A-Z0-9]{2,8})\)")
_MONTHS: Final = {
    name[:3].lower(): number
    for number, name in enumerate(
        "January February March April May June July August September October November December".split(), 1
    )
}
_MONTH: Final = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE: Final = re.compile(
    rf"\b(?:{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?|(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?{_MONTH})\b"
    r"(?:,? (\d{4}))?",
    re.IGNORECASE,
)
_ISO_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_LINKS: Final = frozenset("from to in on at for of is id with by and or via".split())


class Value(NamedTuple):
    """A value and its place. ``indices`` are its positions in the lists around it."""

    key: str
    origin: str
    indices: tuple[int, ...] = ()


class Alias(NamedTuple):
    """A name in lower case and its code."""

    name: str
    code: str


class Aliases:
    """Names of codes, learnt from texts that write both, as in ``Seattle (SEA)``."""

    def __init__(self) -> None:
        self._codes: dict[str, Counter[str]] = {}

    def learn(self, text: str) -> list[Alias]:
        """Learn the names in a text, and return them."""
        found = [Alias(name.lower(), code) for name, code in _ALIAS.findall(text)]
        for name, code in found:
            self._codes.setdefault(name, Counter())[code] += 1
        return found

    def forget(self, learned: Iterable[Alias]) -> None:
        """Take back what `learn` returned."""
        for name, code in learned:
            codes = self._codes[name]
            codes[code] -= 1
            if not codes[code]:
                del codes[code]
            if not codes:
                del self._codes[name]

    def copy(self) -> Aliases:
        """Return the same names, to be learned on their own."""
        copied = Aliases()
        copied._codes = {name: codes.copy() for name, codes in self._codes.items()}
        return copied

    def find(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield the codes of the names in a text, each with the place of the name."""
        lower = text.lower()
        for name, codes in self._codes.items():
            at = lower.find(name)
            if at >= 0:
                yield from ((code, at) for code, _ in codes.most_common(2))


def values_of(event: Event, aliases: Sequence[Aliases], year: int | None) -> list[Value]:
    """Return the values of an event, each origin and value once.

    Args:
        year: completes dates without one; None: they are left out.
    """
    found: Iterator[Value]
    match event:
        case Called(call):
            found = (
                leaf
                for key, value in call.values.items()
                for leaf in _leaves(json.loads(value), f"argument {call.name} ", key, ())
            )
        case Returned(call, text):
            value = _json_or_none(text)
            if value is None or isinstance(value, (str, int, float)):
                found = _text_values(text, f"result {call.name}", aliases, year)
            else:
                found = _leaves(value, f"result {call.name} ", "", ())
        case Said(speaker, text):
            found = _text_values(text, speaker, aliases, year)
    values: dict[Value, None] = {}
    for value in _with_neighbour_days(found):
        values.setdefault(value)
        if len(values) >= MAX_VALUES:
            break
    return list(values)


def year_of(text: str) -> int | None:
    """Return the year of the first ISO date of a text."""
    found = _ISO_DATE.search(text)
    return int(found[1]) if found else None


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _leaves(value: Any, prefix: str, path: str, indices: tuple[int, ...]) -> Iterator[Value]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            # Keys with digits are ids, not names of fields.
            if any(map(str.isdigit, key)):
                yield Value(normal_json(key), f"{prefix}{path}.~", indices)
                yield from _leaves(part, prefix, f"{path}.*", indices)
            else:
                yield from _leaves(part, prefix, f"{path}.{key}" if path else key, indices)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _leaves(part, prefix, f"{path}[]", (*indices, place))
    elif value is not None and not (isinstance(value, str) and not 0 < len(value) <= _MAX_LENGTH):
        yield Value(normal_json(value), prefix + path, indices)


def _text_values(text: str, source: str, aliases: Sequence[Aliases], year: int | None) -> Iterator[Value]:
    for match in _WORD.finditer(text):
        word = match[0]
        kind = kind_of(word)
        if kind is not None:
            yield from _placed(_word_json(word), f"{source} {kind}", text, match.start())
    for code, place in itertools.chain(*(names.find(text) for names in aliases)):
        yield from _placed(normal_json(code), f"{source} alias", text, place)
    for match in _DATE.finditer(text):
        month, day = match[1] or match[4], match[2] or match[3]
        full_year = int(match[5]) if match[5] else year
        if full_year and (iso := _iso(full_year, _MONTHS[month[:3].lower()], int(day))):
            yield from _placed(normal_json(iso), f"{source} 9-9-9", text, match.start())


def _placed(key: str, origin: str, text: str, place: int) -> Iterator[Value]:
    yield Value(key, origin)
    before = _BEFORE.search(text[max(0, place - 20) : place])
    if before and before[1] in _LINKS:
        yield Value(key, f"{origin} after {before[1]}")


def _word_json(word: str) -> str:
    return word if word.isdecimal() and (word == "0" or word[0] != "0") else normal_json(word)


def kind_of(word: str) -> str | None:
    """Return the form of a word that may be a value: ``a_a_9`` of mia_li_3668; None for plain words."""
    parts = _PARTS.split(word)
    if len(parts) == 1 and (word.isalpha() and not (word.isupper() and len(word) > 1)):
        return None
    kinds = [_letters(part) for part in parts]
    if len(parts) == 1 and "A" in kinds[0]:
        return f"{kinds[0]}:{len(word)}"
    marks = "".join(_PARTS.findall(word))
    if len(parts) > 4:
        return f"long {marks[0]}"
    return "".join(kind + mark for kind, mark in zip(kinds, [*marks, ""], strict=True))


def _letters(part: str) -> str:
    return "".join(
        mark
        for mark, has in (("A", str.isupper), ("a", str.islower), ("9", str.isdigit))
        if any(map(has, part))
    )


def _iso(year: int, month: int, day: int) -> str | None:
    try:
        return dt.date(year, month, day).isoformat()
    except ValueError:
        return None


def _with_neighbour_days(values: Iterable[Value]) -> Iterator[Value]:
    for value in values:
        yield value
        found = _ISO_DATE.fullmatch(value.key.strip('"'))
        if found and (iso := _iso(*map(int, found.groups()))):
            day = dt.date.fromisoformat(iso)
            for shift in (-1, 1):
                # The first and the last day of the calendar have one neighbour; they often mean "no date".
                with suppress(OverflowError):
                    near = (day + dt.timedelta(days=shift)).isoformat()
                    yield Value(normal_json(near), f"{value.origin} {shift:+d} day", value.indices)
