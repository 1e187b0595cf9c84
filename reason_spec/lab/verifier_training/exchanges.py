"""One word of a step exchanged for another of the same class that makes it say something else.

A word is exchanged only where its neighbours show its class: "first" behind "the" but not in "first, we", and
"add" with its "to". What is left is grammatical, as a model's mistake is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple, TypeAlias

from reason_spec.lab.verifier_training.words import mean_the_same, put_word, singular

_NOUNS_BEHIND: Final = r"(?= (?:[a-z]+ )?[a-z]+s\b)"


class _Exchange(NamedTuple):
    """A word, what takes its place, and patterns of what stands before and behind it."""

    word: str
    other: str
    before: str = ""
    behind: str = ""


def _both(pairs: str, before: str = "", behind: str = "") -> list[_Exchange]:
    """Return exchanges both ways of pairs ``one:other``."""
    found = [pair.split(":") for pair in pairs.split()]
    both = [words for one, other in found for words in ((one, other), (other, one))]
    return [_Exchange(one, other, before, behind) for one, other in both]


def _right_after(words: str) -> str:
    """Return a pattern of the place right behind one of some words."""
    return (
        "(?:" + "|".join(rf"(?<=\b[{word[0]}{word[0].upper()}]{word[1:]} )" for word in words.split()) + ")"
    )


_DET: Final = rf"(?:{_right_after('the his her their its')}|(?<='s ))"
_DIRECTIONS: Final = (
    *_both(
        "greater:less larger:smaller lower:higher longer:shorter older:younger faster:slower "
        "cheaper:costlier heavier:lighter",
        r"(?<!no )(?<!any )",
        r"(?= than\b)",
    ),
    *_both(
        "highest:lowest largest:smallest longest:shortest oldest:youngest fastest:slowest maximum:minimum",
        _DET,
    ),
    *_both("first:last", _DET, r"(?= (?!step|thing|part|of\b|one)[a-z]+)"),
    *_both("final:initial", _DET, r"(?= (?!answer|step|result|calc)[a-z]+)"),
    *_both("old:new", _DET, r"(?= [a-z]+)"),
    *_both("remaining:used", _DET, _NOUNS_BEHIND),
    *_both("even:odd", behind=r"(?= (?:numbers?|integers?|digits?)\b)"),
    *_both("most:least", r"(?<=\bat )", r"(?= [\d$a-z])"),
    *_both("before:after", behind=r"(?= (?:the|he|she|they|his|her|\d|[A-Z])\b)"),
    *_both("earlier:later", r"(?<=hours )|(?<=minutes )|(?<=days )|(?<=weeks )|(?<=years )|(?<=months )"),
    *_both(
        "increase:decrease increases:decreases increased:decreased increasing:decreasing positive:negative "
        "always:never inside:outside weekdays:weekends weekday:weekend morning:evening mornings:evenings "
        "adults:children boys:girls men:women mother:father sister:brother sisters:brothers "
        "\\geq:\\leq \\ge:\\le",
        r"(?<![-\w])",
        r"(?!['’])",
    ),
    *_both("multiply:divide multiplying:dividing multiplied:divided", behind=r"(?= [^.;:\n]*\bby\b)"),
    *_both("bought:sold buys:sells", behind=r"(?= (?:\d|the|a|an|all|his|her|their|some|[a-z]+s)\b)"),
    *_both("spent:earned spends:earns", behind=r"(?= (?:\\?\$|a total of \\?\$|\d+ dollars|money))"),
    *_both("gained:lost", behind=r"(?= (?:\d|a|the|some)\b)"),
    *_both(
        "revenue:cost profit:cost income:cost earnings:costs",
        rf"(?:{_DET}|(?<=\btotal )|(?<=daily )|(?<=weekly ))",
        r"(?= (?:is|was|from|of|for|per)\b|[:=])",
    ),
    *_both("sum:difference", _DET, r"(?= (?:of|between)\b)"),
    _Exchange("total", "remaining", _DET, r"(?= (?:number|amount) of\b)"),
    _Exchange("more", "less", r"(?<!once )(?<!any )(?<!no )", r"(?= than\b)"),
    _Exchange("less", "more", r"(?<!no )", r"(?= than\b)"),
    _Exchange("more", "fewer", r"(?<=\d )|(?<=many )", r"(?= [a-z]{2,}s\b)"),
    _Exchange("fewer", "more", behind=r"(?= [a-z]{2,}s\b|(?= than\b))"),
    _Exchange(">", "<", r"(?<= )", r"(?= )"),
    _Exchange("<", ">", r"(?<= )", r"(?= )"),
)  # fmt: skip
_AMOUNT: Final = rf"(?:(?<=[\d)}}$*] )|(?<=text\{{ )|(?<=/)|{_right_after('many of in few the')})"
_RATE: Final = rf"(?:(?<=/)|{_right_after('per each every an a one that the')})"
_UNITS: Final = (
    *(
        exchange
        for pairs in (
            "dollars:cents", "hours:minutes minutes:seconds hours:days days:weeks weeks:months months:years",
            "meters:feet feet:yards inches:feet", "miles:kilometers kilometers:meters", "degrees:radians",
            "cm:mm km:m", "pounds:ounces kilograms:grams kg:g", "liters:gallons cups:gallons",
        )
        for exchange in _both(pairs, _AMOUNT, r"(?![-'’])")
    ),
    *_both("week:day month:year hour:day minute:hour week:month mile:kilometer", _RATE, r"(?![-'’\d]| \d)"),
    *_both("weekly:daily monthly:yearly", behind=r"(?= [a-z])"),
    *_both(
        "square:cubic",
        r"(?<=\d )|(?<=in )|(?<=\{ )",
        r"(?= (?:feet|meters|inches|yards|cm|units|centimeters|miles))",
    ),
    *_both("length:width width:height radius:diameter area:perimeter", _DET, r"(?= (?:of|is|was)\b)"),
    *_both("\\sin:\\cos sine:cosine"),
)  # fmt: skip
_DEGREES_OF_HEAT: Final = re.compile(r"degrees (?:Fahrenheit|Celsius|warm|cold|hot|cool)")
_RESULT: Final = re.compile(r"(?:=|\bequals|\bis|\bgives)\s*[\\$({]*[\d.,]+[)}]*\s*(?:\\text\{\s*)?$")
"""What stands before the unit or noun of a result."""
_COUNT: Final = re.compile(
    r"(?:\d|\b(?:of|many|the|more|fewer|other|remaining|total|his|her|their|two|three|four|five|six|seven|"
    r"eight|nine|ten|all|and|in|for|per|each|every|one|a|an|or|these|those|extra|additional)|[/({]|"
    r"\b[A-Z][a-z]+'s) ?$"
)
"""What stands before a noun that no other noun describes: of "apple trees" only "trees" would change."""
_NO_COMPOUND: Final = re.compile(
    r"(?! ?-|['’])(?:(?= (?:a|an|the|in|on|at|of|for|from|to|with|per|each|every|and|or|is|are|was|were|has|"
    r"have|had|he|she|they|that|which|who|does|do|did|will|can|left|sold|by|after|before|if|when|so|than|but|as|"
    r"gives|cost|costs|times)\b| [\W\d A-Z])|[^\w ]|\s*$|\n)"
)
"""What stands behind a noun that is no part of a compound: not "pizza" in "pizza slices"."""

Found: TypeAlias = list[tuple[int, int, str]]


def _compiled(table: Sequence[_Exchange]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (
            re.compile(
                rf"(?:{one.before})"
                + (
                    rf"(?<![\w-]){re.escape(one.word)}(?![\w-])"
                    if one.word[0].isalpha()
                    else re.escape(one.word) + r"(?!\w)"
                )
                + rf"(?:{one.behind})"
            ),
            one.other,
        )
        for one in table
    )


_WHO: Final = frozenset(
    "adults children boys girls men women mother father sister brother sisters brothers".split()
)
"""Put beside itself, each says nonsense: the brother ate more than the brother."""
_JOINT: Final = re.compile(r"\b(?:and|or|plus)\b|[&+,]")
"""What makes a list or a sum of two names."""
_JOINED_WORDS: Final = 3
"""Most words between two names that are joined: "Tom's red pens and Ana's"."""
_POSSESSIVES: Final = "my|your|his|her|its|our|their"
_COMPILED_DIRECTIONS: Final = _compiled(_DIRECTIONS)
_COMPILED_UNITS: Final = _compiled(_UNITS)


def change_direction(text: str, rng: Random) -> str | None:
    """Put the contrary in the place of a word: more, the first, divide."""
    found: Found = [
        (at.start(), at.end(), other)
        for pattern, other in _COMPILED_DIRECTIONS
        for at in pattern.finditer(text)
        if other not in _WHO or not _has(text, other)
    ]
    return _put_one(text, found, rng)


def change_unit(text: str, rng: Random) -> str | None:
    """Put another unit of the same dimension, or another quantity, in the place of one."""
    found: Found = []
    for pattern, other in _COMPILED_UNITS:
        for at in pattern.finditer(text):
            is_result = _RESULT.search(text[: at.start()]) is not None
            if (is_result or not _has(text, other)) and not _DEGREES_OF_HEAT.match(text, at.start()):
                found.append((at.start(), at.end(), other))
    return _put_one(text, found, rng)


def _put_one(text: str, found: Found, rng: Random) -> str | None:
    """Return a text with one of the exchanges that were found; None where there are none."""
    return put_word(text, *rng.choice(found)) if found else None


def _has(text: str, word: str) -> bool:
    """Whether a text has a word in singular or plural: "7 weeks in a week" is nonsense."""
    return re.search(rf"\b{re.escape(word.removesuffix('s'))}s?\b", text, re.IGNORECASE) is not None


def exchange_nouns(text: str, nouns: Sequence[str], rng: Random) -> str | None:
    """Put another noun that the problem counts in the place of one, of the same number.

    All its places, if the other is not there; else only that of a result: "3 boxes * 12 pens = 36 boxes".

    Args:
        nouns: plurals.
    """
    forms = {form: (noun, form == noun) for noun in nouns for form in (noun, singular(noun))}
    places = [
        (at.start(), at.end(), *forms[at[0]])
        for at in re.finditer(r"\b[a-z]{3,}\b", text)
        if at[0] in forms and _COUNT.search(text[: at.start()]) and _NO_COMPOUND.match(text, at.end())
    ]
    choices: list[tuple[list[tuple[int, int, bool]], str]] = []
    for noun in dict.fromkeys(place[2] for place in places):
        own = [(start, end, plural) for start, end, found, plural in places if found == noun]
        is_whole = len(own) == len(re.findall(rf"\b(?:{noun}|{singular(noun)})\b", text, re.IGNORECASE))
        results = [place for place in own if place[2] and _RESULT.search(text[: place[0]])]
        for other in nouns:
            if mean_the_same(noun, other):
                continue
            if not re.search(rf"\b(?:{other}|{singular(other)})\b", text, re.IGNORECASE):
                if is_whole:
                    choices.append((own, other))
            elif results:
                choices.append((results[-1:], other))
    if not choices:
        return None
    chosen, other = rng.choice(choices)
    for start, end, plural in reversed(chosen):
        text = put_word(text, start, end, other if plural else singular(other))
    return text


def exchange_persons(text: str, persons: Sequence[str], rng: Random) -> str | None:
    """Put another person of the problem in the place of one, in a step without a pronoun for one of them."""
    named = [name for name in persons if re.search(rf"\b{name}\b", text)]
    others = [name for name in persons if name not in named]
    if not named or not others or re.search(r"\b(?:he|she|his|her|him|hers)\b", text, re.IGNORECASE):
        return None
    return re.sub(rf"\b{rng.choice(named)}\b", rng.choice(others), text)


def swap_persons(text: str, persons: Sequence[str]) -> str | None:
    """Let the first two persons that a step names change places.

    Not where a list, a sum or "between" joins them ("Tom's pens + Ana's pens" says the same either way), nor
    behind a possessive pronoun: of "Ana sells her Dad's pens" would be left "Dad sells her Ana's pens".
    """
    named = [name for name in dict.fromkeys(re.findall(r"\b[A-Z][a-z]{2,}\b", text)) if name in persons][:2]
    if len(named) < 2 or _are_joined(text, *named):
        return None
    if re.search(rf"\b(?:{_POSSESSIVES}) (?:\S+ ){{0,2}}(?:{'|'.join(named)})\b", text, re.IGNORECASE):
        return None
    swap = dict(zip(named, reversed(named), strict=True))
    # Of "Lewis'" only the mark would be left.
    pattern = rf"\b({'|'.join(named)})\b('(?!s))?"
    return re.sub(pattern, lambda at: swap[at[1]] + "'s" * bool(at[2]), text)


def _are_joined(text: str, one: str, other: str) -> bool:
    """Whether a list, a sum or "between" joins two names, in either order."""
    if re.search(rf"\bbetween\b[^.;:\n]*\b(?:{one}|{other})\b", text, re.IGNORECASE):
        return True
    return any(
        _JOINT.search(at[1]) is not None and len(re.findall(r"\w+", _JOINT.sub(" ", at[1]))) <= _JOINED_WORDS
        for first, second in ((one, other), (other, one))
        # The last place of the first name before the second one.
        for at in re.finditer(rf"\b{first}\b(?:['’]s?)?((?:(?!\b{first}\b)[^.;:\n])*?)\b{second}\b", text)
    )
