"""Rewrites LaTeX and Unicode mathematics as plain text, the first stage of reading a step.

The rewriting keeps the meaning: ``\\frac{a}{b}`` becomes ``((a)/(b))``, ``×`` becomes ``*``, ``x²``
becomes ``x^(2)``. What plain text has no sign for stands in control characters, which ``scanner`` reads:
\\x02 and \\x03 around a mathematical region, \\x04 before a command that is a symbol (``\\theta``). ``¤``
is any currency sign.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_MAX_DEPTH: Final = 30

_CHARACTERS: Final = str.maketrans(
    {
        "×": "*", "✕": "*", "⋅": "*", "·": "*", "∙": "*", "•": "*", "∗": "*",
        "÷": "/", "∕": "/", "−": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-",
        "–": " - ", "—": " ; ", "＋": "+", "＝": "=", "％": "%", "≅": "≈", "≃": "≈", "∼": "≈",
        "⇒": ";", "→": ";", "⟹": ";", "∴": ";", "’": "'", "‘": "'", "“": '"', "”": '"',
        "π": "\x04pi ", "√": " sqrt ", "∞": "\x04infty ", "∠": " angle ", "∆": "\x04Delta ",
        "\u200b": "", "\ufeff": "", "′": "'",
    }
)  # fmt: skip
_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS: Final = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_COMMANDS: Final[dict[str, str]] = {
    "times": "*", "cdot": "*", "ast": "*", "bullet": "*", "div": "/", "pm": " ± ", "mp": " ± ",
    "le": "≤", "leq": "≤", "leqslant": "≤", "lt": "<", "ge": "≥", "geq": "≥", "geqslant": "≥", "gt": ">",
    "ne": "≠", "neq": "≠", "approx": "≈", "sim": "≈", "simeq": "≈", "cong": "≈", "equiv": "≡",
    "implies": ";", "Rightarrow": ";", "Longrightarrow": ";", "rightarrow": ";", "to": ";",
    "longrightarrow": ";", "iff": ";", "Leftrightarrow": ";", "therefore": ";", "quad": " ", "qquad": " ",
    "left": "", "right": "", "big": "", "Big": "", "bigg": "", "Bigg": "", "bigl": "", "bigr": "",
    "displaystyle": "", "limits": "", "nonumber": "", "ldots": " … ", "dots": " … ", "cdots": " … ",
    "circ": "°", "degree": "°", "lbrace": "[", "rbrace": "]", "lfloor": " floor (", "rfloor": ")",
    "lceil": " ceil (", "rceil": ")", "lvert": "|", "rvert": "|", "mid": "|", "newline": ";",
    "pounds": "£", "neg": " not ", "hline": ";",
}  # fmt: skip
_FRACTIONS: Final = frozenset({"frac", "dfrac", "tfrac", "cfrac"})
_TEXT_COMMANDS: Final = frozenset(
    "text textbf textit textrm textsf texttt mathrm mbox hbox emph underline operatorname".split()
)
_TRANSPARENT: Final = frozenset(
    "boxed fbox mathbf mathit mathbb mathcal boldsymbol overline hat vec bar tilde".split()
)


def normalize(text: str) -> str:
    """Rewrite LaTeX and Unicode mathematics as plain text; mathematical regions stand in \\x02...\\x03."""
    if not _NOTATION.search(text):
        return text
    if not text.isascii():
        text = "".join(_expand_fraction(c) for c in text)
        text = re.sub(r"[⁰¹²³⁴-⁹⁺⁻ⁿ]+", lambda m: f"^({m[0].translate(_SUPERSCRIPTS)})", text)
        text = re.sub(r"[₀-₉]+", lambda m: "_" + m[0].translate(_SUBSCRIPTS), text)
    text = re.sub(r"(?<=\d)(?:[\u2009\u202f\u00a0]|\{,\}|\\[, !;:]|\\ |~|')(?=\d{3}(?!\d))", "", text)
    if "\\overline" in text:
        text = re.sub(r"(\d{0,20})\.(\d{0,20})\\overline\{(\d{1,20})\}", _repeating_decimal, text)
    if not text.isascii():
        text = text.translate(_CHARACTERS)
    if "**" in text:
        text = re.sub(r"(?<=[\w)])[ \t]*\*\*[ \t]*(?=[\d(]|-\d|[a-z]\b)", _power_or_bold, text)
        text = text.replace("**", " ")
    if "$" in text:
        text = text.replace("\\$", "¤")
        text = re.sub(r"\$\$(.+?)\$\$", "\x02\\1\x03", text, flags=re.DOTALL)
        text = re.sub(r"\$(?!\s)([^$\n]{1,300}?)(?<!\s)\$(?!\d)", "\x02\\1\x03", text).replace("$", "¤")
    return _Latex(text).convert() if "\\" in text or "{" in text else text


_NOTATION: Final = re.compile(r"[^\x00-\x7f]|[\\{$~]|\*\*|'(?=\d)")
"""What one of the rewritings looks for; text without any of it is plain already."""


def _expand_fraction(character: str) -> str:
    if unicodedata.decomposition(character).startswith("<fraction>"):
        return " " + unicodedata.normalize("NFKC", character)
    return character


def _repeating_decimal(match: re.Match[str]) -> str:
    whole, start, period = match[1] or "0", match[2], match[3]
    numerator = int(whole + start + period) - int(whole + start)
    return f" {numerator}⁄{10 ** len(start) * (10 ** len(period) - 1)} "


def _power_or_bold(match: re.Match[str]) -> str:
    """``2**3`` is a power, ``**Step 2** 3 apples`` closes bold text: spaces on one side only."""
    inner = match[0]
    left, right = inner[:1].isspace(), inner[-1:].isspace()
    return "^" if left == right else inner


_SPECIAL: Final = re.compile(r"[\\{}&]|_(?=\{)")
_COMMAND_NAME: Final = re.compile(r"[A-Za-z]+\*?")


class _Latex:
    """One pass over the text; arguments are converted recursively, ``_MAX_DEPTH`` deep, deeper ones left."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self._text = text
        self._position = 0
        self._depth = depth

    def convert(self) -> str:
        out: list[str] = []
        text = self._text
        while special := _SPECIAL.search(text, self._position):
            out.append(text[self._position : special.start()])
            self._position = special.end()
            match special[0]:
                case "\\":
                    out.append(self._command())
                case "_":
                    out.append("_" + re.sub(r"\W+", "", self._argument()))
                case "{":
                    out.append("(")
                case "}":
                    out.append(")")
                case _:
                    out.append(" ")
        out.append(text[self._position :])
        written = "".join(out)
        return re.sub(r"\^ ?\(? ?° ?\)?", "°", written) if "°" in written else written

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _command(self) -> str:
        match = _COMMAND_NAME.match(self._text, self._position)
        if match is None:
            character = self._peek()
            self._position += 1
            return {"(": "\x02", "[": "\x02", ")": "\x03", "]": "\x03", "{": "[", "}": "]", "\\": ";"}.get(
                character, character if character in "%#_&" else " "
            )
        before = self._text[self._position - 2 : self._position - 1]
        self._position = match.end()
        written = self._expand(match[0].rstrip("*"))
        # 2\frac{1}{2} is a mixed number; -\frac{1}{2} must keep its sign at its digits.
        return written.lstrip(" ") if before == "-" else written

    def _expand(self, name: str) -> str:
        if name in _FRACTIONS:
            top, bottom = self._argument(), self._argument()
            sign = "-" if top.strip().startswith("-") else ""
            digits, divisor = top.strip().removeprefix("-").strip(), bottom.strip()
            if digits.isdecimal() and divisor.isdecimal():
                return f" {sign}{digits}⁄{divisor} "
            return f"(({top})/({bottom}))"
        if name == "sqrt":
            index = self._optional_argument()
            return f" root({index}, {self._argument()})" if index else f" sqrt({self._argument()})"
        if name in ("binom", "dbinom", "tbinom"):
            return f" binom({self._argument()}, {self._argument()})"
        if name in _TEXT_COMMANDS:
            return f"\x03 {self._argument()} \x02"
        if name in _TRANSPARENT:
            return f" {self._argument()} "
        if name in ("begin", "end", "phantom", "hphantom", "vphantom", "label", "tag"):
            self._argument()
            return " ; "
        if name in _COMMANDS:
            return _COMMANDS[name]
        return f" \x04{name} "

    def _optional_argument(self) -> str:
        if self._peek() != "[":
            return ""
        end = self._text.find("]", self._position)
        if end < 0:
            return ""
        inner = self._text[self._position + 1 : end]
        self._position = end + 1
        return inner

    def _argument(self) -> str:
        """Return the converted argument that follows: a braced group, a command or one character."""
        while self._peek() == " ":
            self._position += 1
        if self._peek() == "\\":
            self._position += 1
            return self._command()
        if self._peek() != "{":
            self._position += 1
            return self._text[self._position - 1 : self._position]
        level, start = 0, self._position + 1
        while self._position < len(self._text):
            character = self._text[self._position]
            level += (character == "{") - (character == "}")
            self._position += 1
            if level == 0:
                break
        inner = self._text[start : self._position - (level == 0)]
        if self._depth >= _MAX_DEPTH:
            # Not dropped: two texts that differ down there must not become equal.
            return inner.replace("\\", " ")
        return _Latex(inner, self._depth + 1).convert()
