"""Mathematics in plain notation: LaTeX, Markdown and signs of typesetting are rewritten."""

from __future__ import annotations

import re
from typing import Final

_REWRITES: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"<<[^<>]*>>", " "),  # GSM8K's calculator notes
        (r"\{,\}", ","),
        (r"(?<=\d),(?=\d{3}(?!\d))", ""),
        (r"\\(?:times|cdot|ast)(?![a-zA-Z])|[×·⋅∗✕]", " * "),
        (r"\\div(?![a-zA-Z])|÷", " / "),
        (r"\\(?:approx|sim|simeq|implies|Rightarrow|rightarrow|to)(?![a-zA-Z])|[≈→⇒]", " = "),
        (r"[−–—]", "-"),
        (r"\\([%$&#_])", r"\1"),
        (r"\\[dt]frac\b", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"(\1/\2)"),
        (r"\\(?:left|right|displaystyle|quad|qquad|(?:begin|end)\{[a-z*]+\})(?![a-zA-Z])", " "),
        (r"\\[()\[\],;!: ]|&", " "),
        (r"\\\\", "\n"),
    )
)
_WRAPPED: Final = re.compile(
    r"\\(?:text|boxed|mathrm|textbf|textit|mbox|mathbf|operatorname|underline|emph)\s*\{([^{}]*)\}"
)
_FRACTION: Final = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
BOLD: Final = re.compile(
    r"(?s)(?<![\w)*])\*\*+(?=[^\s*])((?:(?!\*\*|\n[ \t]*\n).)+?)(?<=[^\s*])\*\*+(?![\w(*])"
)
"""Text between two marks of Markdown; the power 2**3 has one."""
_POWER: Final = re.compile(r"(?<=[\d)A-Za-z])(?<![A-Za-z]{2})[ \t]*\*\*[ \t]*(?=[\d(]|[A-Za-z](?![A-Za-z]))")
_STARS: Final = re.compile(r"\*\*+")
_CROSS: Final = re.compile(r"(?<=[\d)a-zA-Z.] )[xX](?= \$?[\d(])|(?<=\d)[xX](?=\$?\d)")
_PHRASES: Final = re.compile(r"\b(multiplied|divided) by\b")
SIGNED_ITEM: Final = re.compile(
    r"(?<=[A-Za-z\d)\]}])(?<![A-Za-z]{2})[,;.:][ \t]+(?=[-+−–][ \t]*(?:\d|[A-Za-z](?![A-Za-z])))"
)
"""The mark before a number with a sign: 1, -2 is not 1 - 2."""
ARTICLE: Final = r"\b[Aa](?=\s+(?!(?:and|are|was|has|equals|plus|minus|times)\b)[a-z]{3,})"
"""The word a, as a pattern; any other single letter is a variable."""
WORD: Final = rf"(?:[^\W\d_]{{2}}|{ARTICLE})"
"""The beginning of a word, as a pattern; x + 3 begins with a variable."""
_BULLET: Final = re.compile(rf"(?m)^[ \t]*(?:[*•]|-(?=[ \t]+(?:\**{WORD}|[$(]*\d[^\n]*=)))[ \t]+")
"""A - before a number is a sign, unless the line has an equality, as lists of calculations have."""
_SIGNED: Final = re.compile(r"[ \t]*-[^\n]*?(?:(?<![A-Za-z])(?!a )[A-Za-z](?![A-Za-z])|=[ \t]*-[ \t]*\d)")
"""The beginning of a line with a variable or a negative result: its - is no mark of a list."""
_LABEL: Final = re.compile(
    r"(?m)^[ \t]*(?:#+ *)?(?:(?:[Ss]tep|STEP) +\d+|\d[.)](?=[ \t][^\n]*[A-Za-z]))[:.]?"
)
"""The number of an item; without a word behind it, or with two digits, it may be the answer."""
_ANNOUNCED: Final = re.compile(r"(?i)(?:answer|result|total|sum|number|\bis|=)[ \t]*[:=]?\s*$")
"""The end of a line that a number in the next one answers."""


def normalize(text: str) -> str:
    """Return a text without LaTeX commands and marks of Markdown, and with plain operators."""
    for pattern, replacement in _REWRITES[:2]:
        text = pattern.sub(replacement, text)
    for _ in range(4):
        changed = _FRACTION.sub(r"((\1)/(\2))", _WRAPPED.sub(r" \1 ", text))
        if changed == text:
            break
        text = changed
    for pattern, replacement in _REWRITES[2:]:
        text = pattern.sub(replacement, text)
    text = _FRACTION.sub(r"((\1)/(\2))", text)
    text = _POWER.sub("^", BOLD.sub(r" \1 ", _BULLET.sub(_without_bullet, text)))
    text = _LABEL.sub(_without_label, _STARS.sub(" ", text))
    text = _PHRASES.sub(lambda found: "*" if found[1] == "multiplied" else "/", text)
    return _CROSS.sub("*", text)


def _without_bullet(found: re.Match[str]) -> str:
    is_sign = found[0].strip() == "-" and _SIGNED.match(found.string, found.start())
    return found[0] if is_sign else " "


def _without_label(found: re.Match[str]) -> str:
    is_answer = found[0].strip()[:1].isdigit() and _ANNOUNCED.search(found.string, 0, found.start())
    return found[0] if is_answer else " "
