"""Finds the ends of steps and the user's stop strings, token by token.

A step ends with the token whose bytes complete its boundary. Consequences:

- leading blank lines belong to the step they precede, so no step is empty;
- bytes of that token after the boundary belong to the step that it ends;
- nothing inside a fenced block, a tool call or a JSON value is a boundary;
- text that ends without a boundary is a step;
- a step that is cut before its boundary leaves open the blocks that it is in: see `OpenBlocks`.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from typing import Final, NamedTuple

BLANK_LINE = "\n\n"
AUTO = "auto"
LINE_AFTER_BYTES: Final = 120
"""Under `AUTO` a step of at least this many bytes ends with its line."""
SENTENCE_AFTER_BYTES: Final = 240
"""Under `AUTO` a step of at least this many bytes ends with its sentence."""
_WIDE_STOPS = tuple(stop.encode() for stop in "。！？")
_STOP_BYTES = b".!?" + bytes(stop[-1] for stop in _WIDE_STOPS)
_SENTENCE_END = re.compile(rb"[A-Za-z]{3}[)*_\"']{0,2}[.!?]$")
_FORMULA_MARK = re.compile(rb"\$\$|(?<!\\)\\[\[\]]")
"""Not the height after a row of a formula: ``\\\\[6pt]``."""
_FENCE = re.compile(rb"[ \t]*(?:(?:[-*+>]|\d+[.)])[ \t]+)*(?:(`{3,})[^`]*|(~{3,}).*)$")
"""The first line of a fenced block, which may be an item of a list."""
_INFO = re.compile(rb"[A-Za-z0-9_+#.-]*[ \t\r]*$")
"""What may follow the marks of a fence."""
_WHITESPACE = b" \t\r\n"
_JSON_OPENERS = b"{["
_JSON_CLOSERS = b"}]"
_JSON_START = re.compile(
    rb"(?:\[\s*)*(?:\{\s*(?:$|\}|\"(?:[^\"\\]|\\.)*\"\s*(?::|$))|\[\s*(?:$|\]|\{|\[|\"(?:[^\"\\]|\\.)*\"\s*(?:[,\]]|$)))"
)
"""How a line begins with which a JSON value does: no interval, set or quotation has this form."""
_JSON_GOES_ON = re.compile(rb"(?:[\[{,:\"\]}\d]|true|false|null)$")
"""How a line ends after which an open JSON value may go on."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """What separates two steps.

    With the default delimiter, `AUTO`, a blank line ends a step. After `LINE_AFTER_BYTES` a line break also
    ends it, after `SENTENCE_AFTER_BYTES` the end of a sentence: some models write a whole answer without a
    blank line (``docs/concepts/steps.md``). A `BLANK_LINE` may hold spaces and tabs. Any other delimiter is
    matched literally. ``protected`` holds pairs of tags; text between the tags has no boundary.
    """

    delimiter: str = AUTO
    protected: tuple[tuple[str, str], ...] = (("<tool_call>", "</tool_call>"),)
    protect_fences: bool = True
    protect_json: bool = True

    def __post_init__(self) -> None:
        if not self.delimiter:
            raise ValueError("the boundary's delimiter is empty; use 'auto', or '\\n\\n' for a blank line")


@dataclass(frozen=True, slots=True)
class OpenBlocks:
    """The blocks that are open where a step begins, if the step before it was cut by its length."""

    line: bytes = b""
    """The last line so far."""
    closing_tag: bytes | None = None
    fence: bytes = b""
    """The marks that opened a fenced block."""
    json_depth: int = 0
    in_formula: bool = False
    json_may_go_on: bool = True
    """Whether a blank line may be within the open JSON value."""


NOTHING_OPEN = OpenBlocks()


class BoundaryScanner:
    """Reads the bytes of one step and reports its end. Each step needs a new scanner."""

    def __init__(self, boundary: Boundary, begins_in: OpenBlocks = NOTHING_OPEN) -> None:
        self._boundary = boundary
        self._delimiter = boundary.delimiter.encode()
        self._auto = boundary.delimiter == AUTO
        self._blank_line = self._auto or boundary.delimiter == BLANK_LINE
        self._num_bytes = 0
        self._in_formula = begins_in.in_formula
        self._tags = [(opener.encode(), closer.encode()) for opener, closer in boundary.protected]
        self._line = bytearray(begins_in.line)
        self._recent = bytearray()
        self._has_content = False
        self._closing_tag = begins_in.closing_tag
        self._fence = begins_in.fence
        self._json = _JsonDepth(begins_in.json_depth, begins_in.json_may_go_on)
        self.complete = False

    def copy(self) -> BoundaryScanner:
        """Return a copy that can try a continuation of the step."""
        other = copy(self)
        other._line, other._recent, other._json = self._line[:], self._recent[:], copy(self._json)
        return other

    def feed(self, token_bytes: bytes) -> bool:
        """Take the bytes of one token; return True once the step is complete."""
        for byte in token_bytes:
            self._take(byte)
        return self.complete

    @property
    def open_blocks(self) -> OpenBlocks:
        """The blocks that are open at the end of the text so far."""
        return OpenBlocks(
            bytes(self._line),
            self._closing_tag,
            self._fence,
            self._json.depth,
            self._in_formula,
            self._json.may_go_on,
        )

    @property
    def _protected(self) -> bool:
        return bool(self._fence) or self._closing_tag is not None or self._json.open

    def _take(self, byte: int) -> None:
        self._num_bytes += 1
        if byte == 0x0A:
            line = bytes(self._line.strip(_WHITESPACE))
            self._end_line()
            ends = self._blank_line and (not line or (self._auto and self._ends_with_line(line)))
            if ends and self._has_content and not self._protected:
                self.complete = True
        else:
            self._line.append(byte)
            if byte not in _WHITESPACE:
                self._has_content = True
            if self._auto and byte in _STOP_BYTES and self._num_bytes >= SENTENCE_AFTER_BYTES:
                self.complete = self.complete or self._ends_sentence()
        if not self._blank_line:
            self._match_literal(byte)

    def _ends_with_line(self, line: bytes) -> bool:
        """Return whether a step ends with a line: not in a formula, nor if the line ends with a colon."""
        if not self._protected:
            for mark in _FORMULA_MARK.findall(line):
                self._in_formula = not self._in_formula if mark == b"$$" else mark == b"\\["
        return self._num_bytes >= LINE_AFTER_BYTES and not self._in_formula and not line.endswith(b":")

    def _ends_sentence(self) -> bool:
        """Return whether a sentence ends with the last byte.

        The next byte is not known yet: a full stop after a digit may be a decimal point, one after a short
        word is mostly an abbreviation.
        """
        line = bytes(self._line)
        if self._protected or self._in_formula or any(opener in line for opener, _ in self._tags):
            return False
        if line.lstrip()[:1] in (b"{", b"[", b"`", b"|", b"$", b"\\"):
            return False
        return line.endswith(_WIDE_STOPS) or _SENTENCE_END.search(line[-8:]) is not None

    def _match_literal(self, byte: int) -> None:
        self._recent.append(byte)
        del self._recent[: -len(self._delimiter)]
        if self._recent == self._delimiter and self._has_content and not self._is_inside():
            self.complete = True

    def _is_inside(self) -> bool:
        """Return whether a block is open, also one that began in the line so far."""
        line = bytes(self._line)
        if self._fence or self._closing_tag_after(line) is not None:
            return True
        value = copy(self._json)
        if self._boundary.protect_json and self._closing_tag is None:
            value.end_line(line.strip(_WHITESPACE))
        return value.open

    def _end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        stripped = line.strip(_WHITESPACE)
        if self._fence:
            # A longer fence may hold shorter ones.
            if stripped.startswith(self._fence) and not stripped.strip(self._fence[:1]):
                self._fence = b""
            return
        if self._boundary.protect_fences and (fence := _opened_fence(line)):
            self._fence = fence
            return
        self._closing_tag, was_inside = self._closing_tag_after(line), self._closing_tag is not None
        if self._boundary.protect_json and self._closing_tag is None and not was_inside:
            self._json.end_line(stripped)

    def _closing_tag_after(self, line: bytes) -> bytes | None:
        """Return the tag that closes the block which is open after a line."""
        closing_tag, start = self._closing_tag, 0
        while True:
            if closing_tag is not None:
                found = line.find(closing_tag, start)
                if found < 0:
                    return closing_tag
                start, closing_tag = found + len(closing_tag), None
            else:
                hits = [(line.find(opener, start), opener, closer) for opener, closer in self._tags]
                hits = [hit for hit in hits if hit[0] >= 0]
                if not hits:
                    return None
                position, opener, closer = min(hits)
                start = position + len(opener)
                # A tag in code is spoken of.
                is_code = line[position - 1 : position] == b"`" == line[start : start + 1]
                closing_tag = None if is_code else closer


def _opened_fence(line: bytes) -> bytes:
    """Return the marks with which a line opens a fenced block; some models write it behind words."""
    if found := _FENCE.match(line):
        return found[1] or found[2]
    before, marks, info = line.rpartition(b"```")
    return marks if marks and b"`" not in before and _INFO.match(info) else b""


class _JsonDepth:
    """Counts the open brackets of a JSON value that began at the start of a line.

    An interval such as ``[0, 1)`` also begins with a bracket and never closes, so the beginning must have the
    form of JSON. A value that cannot go on at a blank line is none.
    """

    def __init__(self, depth: int = 0, may_go_on: bool = True) -> None:
        self.depth = depth
        self.may_go_on = may_go_on
        self._in_string = False

    @property
    def open(self) -> bool:
        return self.depth > 0

    def end_line(self, line: bytes) -> None:
        if self.open and not line and not self.may_go_on:
            self.depth = 0
        if not line or (not self.open and not _JSON_START.match(line)):
            return
        self.may_go_on = _JSON_GOES_ON.search(line) is not None
        escaped = False
        for byte in line:
            if self._in_string:
                if byte == 0x22 and not escaped:
                    self._in_string = False
                escaped = byte == 0x5C and not escaped
            elif byte == 0x22:
                self._in_string = True
            elif byte in _JSON_OPENERS:
                self.depth += 1
            elif byte in _JSON_CLOSERS and self.depth:
                self.depth -= 1
        # JSON strings do not span lines: an unpaired quote is prose, not an open string.
        self._in_string = False


class StopHit(NamedTuple):
    """Where a stop string begins, counted from the start of the text given to the scanner."""

    start: int
    stop: str


class StopScanner:
    """Finds the first of several stop strings in growing text, also across chunks.

    ``context`` is the end of the text before, so that a stop that begins there is found. Positions count
    from the start of ``context``; a stop that lies in it as a whole is no hit.
    """

    def __init__(self, stops: tuple[str, ...], context: str = "") -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        # The end of the text, in which a stop may have begun, and where that end begins.
        self._text, self._start = context, 0
        self._context_length = len(context)
        self._forget()

    def feed(self, text: str) -> StopHit | None:
        """Take more text; return the earliest hit, or None."""
        if not self._stops or not text:
            return None
        self._text += text
        new = self._context_length - self._start
        found = ((self._text.find(stop, max(0, new - len(stop) + 1)), stop) for stop in self._stops)
        hits = [StopHit(self._start + place, stop) for place, stop in found if place >= 0]
        if hits:
            return min(hits)
        self._forget()
        return None

    def _forget(self) -> None:
        """Keep only the end of the text, in which a stop may begin: long texts must not cost more."""
        if (surplus := len(self._text) - self._longest + 1) > 0:
            self._text, self._start = self._text[surplus:], self._start + surplus

    def held_back(self) -> int:
        """Return how many characters at the end may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


def split_steps(text: str, boundary: Boundary | None = None) -> list[str]:
    """Split a finished text into steps; joined, they give the text again."""
    boundary = boundary or Boundary()
    steps: list[str] = []
    start = 0
    scanner = BoundaryScanner(boundary)
    for end, character in enumerate(text, start=1):
        if scanner.feed(character.encode("utf-8", "surrogatepass")):
            steps.append(text[start:end])
            start, scanner = end, BoundaryScanner(boundary)
    if text[start:].strip():
        steps.append(text[start:])
    elif steps:
        steps[-1] += text[start:]
    elif text:
        steps.append(text)
    return steps
