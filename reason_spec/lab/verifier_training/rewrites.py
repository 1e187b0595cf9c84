"""Other ways to write a step that leave its meaning as it is; each returns None where there is no place.

Pairs of two writers differ in many words, and a pair that differs in one word would always be a changed step
(`changes`). These make pairs that differ in a word and say the same, as a draft and its target mostly do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from reason_spec.lab.verifier_training.words import put_word

_OPENING: Final = (
    "So, ", "Now, ", "Next, ", "Then, ", "Thus, ", "Therefore, ", "Hence, ", "First, ", "Finally, ", "Okay, ",
    "To continue, ", "In this step, ", "Let's see: ",
)  # fmt: skip
_OPENED: Final = re.compile(
    r"^(?:so|now|next|then|thus|therefore|hence|first|finally|okay|alright|in this step|step \d+|\d+[.)])"
    r"[,:]? +",
    re.IGNORECASE,
)
_SPOKEN: Final = re.compile(
    r"[\w' ]{1,20},|(?:Wait|But|Hmm|Alternatively|However|Yes|No|And|Or|Also|Well|Which|Another|Answer|"
    r"Let|Step|Solution|Given|I|Okay)\b",
)
"""What another opening before it would make odd: "Next, wait, but"."""
_FIRST_WORD: Final = re.compile(
    r"^(?:The|We|This|It|To|Each|Every|If|There|That|Since|After|Before|He|She|They|His|Her|Their|For|In|On|"
    r"At|By|From|With|Find|Calculate|Determine|Add|Subtract|Multiply|Divide|Adding|Multiplying|Subtracting)\b"
)
"""Words that lose their capital behind an opening; another first word may be a name."""
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    one: tuple(other for other in group.split("|") if other != one)
    for group in (
        "calculate|compute|work out|figure out", "find|determine", "so|thus|therefore|hence",
        "need to|have to", "because|since", "in total|altogether", "this gives|this yields",
        "we get|we obtain", "bought|purchased", "each|every",
        "remaining|left over", "amount of money|sum of money", "first of all|to begin with",
        "let's|let us", "can't|cannot", "doesn't|does not", "isn't|is not", "it's|it is", "that's|that is",
        "there're|there are", "there's|there is", "we'll|we will", "we're|we are",
        "total number|overall number", "equals|is equal to|comes to", "kids|children",
        "consists of|is made up of", "half of|one half of", "twice|two times", "thrice|three times",
        "according to|as stated in", "the problem|the question", "requires|needs",
        "entire|whole", "further|additional", "large|big", "finishes|completes", "receives|gets",
        "approximately|roughly", "final answer|answer", "substitute|plug in",
        "add up|add together", "combine|put together", "note that|notice that|observe that",
    )
    for one in group.split("|")
} | {
    "buys": ("purchases",), "in all": ("in total", "altogether"), "must": ("have to", "need to"),
}  # fmt: skip
_NO_NEGATION: Final = r"(?<!not )(?<!n't )"
_CLAUSE: Final = r"(?<=[.,;:(] )|(?<![^\n])"
"""The place where a clause begins."""
_IS_HERE: Final = r"(?! (?:been|had|got|gone|taken|made|[a-z]+ed)\b)(?= [\w$\\])"
"""What stands behind "it's" for "it is": not behind "it's been"."""
_TIME: Final = (
    r"(?:(?:the|this) (?:beginning|start|last|first|time|day|end|year|week|month)|\w+day|\w+uary|"
    r"march|april|may|june|july|august|\w+ber)"
)
"""What "since" stands before where it does not mean "because"."""
_OBJECT: Final = r"(?= (?:an?|the|his|her|their|all|one|\d|\$))"
_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "so": (_CLAUSE, r"(?! (?:that|far|many|much|on|as)\b)"),
    "thus": (_CLAUSE, ""),
    "therefore": (_CLAUSE, ""),
    "find": ("", r"(?! out\b)"),
    "need to": (_NO_NEGATION, ""),
    "have to": (_NO_NEGATION, ""),
    "must": (r"(?<=\bI )|(?<=\bwe )|(?<=\byou )|(?<=\bthey )", r"(?! (?:not|also not|have)\b)(?= [a-z])"),
    "each": (
        "",
        r"(?= (?!has|have|is|was|other|cost|get|time|will|would|can|one|pay|with|of)[a-z]+[^s\W](?: |[.,:]))",
    ),
    "every": ("", r"(?= (?!other|time|single|one|two|three|four|five|few|second|third)[a-z]+)"),
    "in all": ("", r"(?=[ ]?[.,;:)=]|$)"),
    "remaining": (r"(?<=the )|(?<=his )|(?<=her )|(?<=their )", r"(?= [a-z]+)"),
    "left over": (r"(?<=has )|(?<=have )", ""),
    "whole": ("", r"(?! number)"),
    "further": ("", r"(?= [a-z]+s\b)"),
    "hence": ("", r"(?=,)"),
    "children": ("", r"(?!['’])"),
    **dict.fromkeys(
        ("it is", "that is", "there is", "there are", "we are", "we will", "is not"), ("", r"(?= [\w$\\])")
    ),
    **dict.fromkeys(("it's", "that's", "there's"), ("", _IS_HERE)),
    "since": (
        r"(?<!years )(?<!months )(?<!weeks )(?<!days )(?<!hours )(?<!been )",
        rf"(?! {_TIME}\b)(?= (?:(?:the|this|each|every|he|she|they|there|it|we)\b|\d|(?-i:[A-Z])))",
    ),
    "because": (r"(?<!is )(?<!was )(?<!'s )(?<!not )(?<!just )(?<!only )", r"(?! of\b|,)"),
    "gets": ("", _OBJECT),
    "finishes": ("", _OBJECT),
    "requires": ("", _OBJECT),
    "needs": ("", _OBJECT),
    "add up": ("", r"(?! to\b)"),
    "comes to": ("", r"(?= [\d$\\])"),
    "this gives": ("", r"(?! (?:us|him|her|them|me)\b)"),
    "half of": (
        r"(?<!\ba )(?<!\bthe )(?<!other )(?<!first )(?<!second )(?<!last )(?<!this )(?<!his )(?<!her )",
        "",
    ),
    "answer": (r"(?<=the )|(?<=our )", r"(?= is\b|:)"),
}
"""Where alone a word may be exchanged: what stands before and behind it."""
_WORD: Final = re.compile(
    r"(?<![\w\\$'-])(?:"
    + "|".join(
        f"(?:{before}){re.escape(word)}(?:{behind})"
        for word in sorted(_WORDS, key=len, reverse=True)
        for before, behind in [_PLACES.get(word, ("", ""))]
    )
    + r")(?![\w'-])",
    re.IGNORECASE,
)
_DIGITS: Final = {
    word: str(value)
    for value, word in enumerate(
        "two three four five six seven eight nine ten eleven twelve".split(), start=2
    )
}
_SPELLED: Final = {digits: word for word, digits in _DIGITS.items()}
_NUMBER_WORD: Final = re.compile(r"\b(" + "|".join(_DIGITS) + r")\b(?= [a-z])")
_SHORT_NUMBER: Final = re.compile(r"(?<=[a-z] )([2-9]|1[0-2])(?= [a-z]{3,})(?! (?:times|plus|minus|divided))")
_TIMES: Final = re.compile(r"(?<=[\d)}\]]) ?(?:\*|×|\\times|\\cdot) ?(?=[\d({$])")
_DOLLARS: Final = re.compile(r"(?<![\w$\\])\\?\$(\d+(?:\.\d+)?)(?![\d,.]*\d| ?[$+*/=×÷-])")
_WRITTEN_DOLLARS: Final = re.compile(r"(?<![\w.$])(\d+(?:\.\d+)?) dollars\b")
_PERCENT: Final = re.compile(r"(?<=\d) ?(?:\\?%| percent\b)")
_THOUSANDS: Final = re.compile(r"(?<![\d.,])(\d{1,3}),(\d{3})(?![\d,])")
_MATH_FRAMES: Final = re.compile(r"\\\(\s*(.+?)\s*\\\)|(?<!\$)\$(?!\$|\d)([^$\n]+?)(?<!\\)\$(?!\$)")
_IS_WRITTEN: Final = re.compile(r"(?<=[a-z]) = (?=\$?\d+(?:\.\d+)?\b(?! *[-+*/=×÷]))")

Rewrite = Callable[[str, Random], str | None]


def change_opening(text: str, rng: Random) -> str | None:
    """Drop the word that a step opens with, or put one there."""
    if opened := _OPENED.match(text):
        rest = text[opened.end() :]
        text = rest[:1].upper() + rest[1:]
        if rng.random() < 0.5:
            return text
    if not text or text[0] in "#-*|\\$>" or _SPOKEN.match(text):
        return None
    first = text[0].lower() + text[1:] if _FIRST_WORD.match(text) else text
    return rng.choice(_OPENING) + first


def change_word(text: str, rng: Random) -> str | None:
    """Put a word or phrase of the same meaning in the place of one."""
    found = list(_WORD.finditer(text))
    if not found:
        return None
    at = rng.choice(found)
    other = rng.choice(_WORDS[at[0].lower()])
    if at[0][0].isupper():
        other = other[0].upper() + other[1:]
    return put_word(text, at.start(), at.end(), other)


def change_digits(text: str, rng: Random) -> str | None:
    """Write a small number in words, or the other way round."""
    found = [*_NUMBER_WORD.finditer(text), *_SHORT_NUMBER.finditer(text)]
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.start()] + (_DIGITS.get(at[1]) or _SPELLED[at[1]]) + text[at.end() :]


def change_notation(text: str, rng: Random) -> str | None:
    """Write signs of one kind in another way: times, dollars, percent, thousands, frames of formulas."""
    sign = rng.choice((" * ", " × ", "*", " \\times "))
    dollars = _DOLLARS.sub(r"\1 dollars", text)
    ways = [
        _TIMES.sub(lambda _: sign, text),
        dollars if dollars != text else _WRITTEN_DOLLARS.sub(r"$\1", text),
        _PERCENT.sub(lambda at: "%" if "percent" in at[0] else " percent", text),
        _THOUSANDS.sub(r"\1\2", text),
        _MATH_FRAMES.sub(lambda at: at[1] or at[2], text),
        _IS_WRITTEN.sub(" is ", text),
    ]
    found = [way for way in ways if way != text]
    return rng.choice(found) if found else None


REWRITES: Final[tuple[Rewrite, ...]] = (
    change_opening,
    change_word,
    change_word,
    change_digits,
    change_notation,
)


def rewritten(text: str, rng: Random) -> str | None:
    """Return a step with one to three rewrites; None where none has a place."""
    found = text
    for rewrite in rng.sample(REWRITES, rng.choice((1, 1, 2, 2, 3))):
        found = rewrite(found, rng) or found
    return found if found != text else None
