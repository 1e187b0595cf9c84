"""English words as the rules need them: stems, function words, and pairs that exclude each other."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

from reason_spec.verifiers.arithmetic import WORD_OPERATORS, number_of_word, tokenize
from reason_spec.verifiers.notation import normalize
from reason_spec.verifiers.quantities import read_terms

Term: TypeAlias = str | Fraction

_ENDINGS: Final = ("ing", "ed", "es", "s")
FUNCTION_WORDS: Final = frozenset(
    "a an the this that these those each every all both either neither any some no none one another other "
    "such same several many much more most few fewer less least enough half twice double triple i you he "
    "she it we they me him her us them my your his its our their mine yours hers ours theirs who whom "
    "whose which what when where why how there here and or but nor so yet for as if then than because "
    "since although though while until unless whether after before during about above across against along "
    "among around at behind below beside between beyond by down from in inside into like near of off on "
    "onto out outside over per through throughout to toward under up upon via with within without not also "
    "too very just only even still already again once now next first second third last finally thus hence "
    "therefore however instead otherwise overall together altogether initially originally later earlier "
    "soon is are was were be been being am do does did has have had having can could will would shall "
    "should may might must let lets wait okay yes hmm well zero two three four five six seven eight nine "
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty "
    "fifty sixty seventy eighty ninety hundred thousand million dozen".split()
)
"""Words that are neither names nor nouns of things that are counted."""
FINITE_VERB: Final = (
    r"(?:has|had|is|was|can|could|will|would|must|gave|bought|sold|got|ate|made|took|spent|paid|went|ran|"
    r"drove|kept|left|lost|won|wrote|read|found|met|[a-z]{2,}(?:ed|[^s']s))\b"
)
"""What a person does in a sentence, as a pattern: has, gives, bought."""
_OPPOSITES: Final = (
    "more:less more:fewer most:least greater:less greater:smaller larger:smaller bigger:smaller "
    "largest:smallest biggest:smallest longer:shorter longest:shortest long:short taller:shorter "
    "tallest:shortest tall:short older:younger oldest:youngest old:young old:new faster:slower fast:slow "
    "fastest:slowest higher:lower high:low highest:lowest upper:lower heavier:lighter heaviest:lightest "
    "heavy:light cheaper:costlier cheaper:dearer cheap:expensive wider:narrower deeper:shallower "
    "thicker:thinner hotter:colder warmer:cooler stronger:weaker richer:poorer nearer:farther closer:farther "
    "before:after earlier:later early:late first:last first:final initial:final original:final "
    "increase:decrease increase:reduction rise:fall rose:fell raise:lower grow:shrink grew:shrank gain:lose "
    "gained:lost gain:loss win:lose won:lost buy:sell bought:sold earn:spend earned:spent earn:pay "
    "save:spend saved:spent give:receive gave:received give:take gave:took lend:borrow lent:borrowed "
    "deposit:withdraw send:receive sent:received add:remove add:subtract multiply:divide sum:difference "
    "total:difference product:quotient product:sum remain:use left:used left:right over:under above:below "
    "inside:outside in:out into:from up:down top:bottom inner:outer upstairs:downstairs maximum:minimum "
    "profit:loss profit:cost income:expense revenue:cost open:close full:empty enter:leave arrive:leave "
    "arrive:depart come:go came:went start:end start:finish begin:end begin:finish first:second "
    "morning:evening boy:girl man:woman men:women male:female son:daughter brother:sister father:mother "
    "husband:wife odd:even positive:negative numerator:denominator double:half doubled:halved twice:half "
    "north:south east:west same:different always:never with:without include:exclude all:none every:no "
    "true:false past:future yesterday:tomorrow adult:child parent:child winner:loser "
    "buyer:seller success:failure climb:descend ascend:descend rise:sink fill:empty accept:reject pass:fail "
    "wide:high width:height length:width length:height radius:diameter area:perimeter area:volume "
    "mean:median row:column horizontal:vertical parallel:perpendicular prime:composite rational:irrational "
    "acute:obtuse add:difference divide:subtract divide:add multiply:add multiply:subtract "
    "sum:product sin:cos sin:tan cos:tan tan:cot sine:cosine"
)


def stem(word: str) -> str:
    """Return a word without 's and the endings of plural and tense; crude, for finding shared words."""
    word = word.removesuffix("'s")
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 2 and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word.endswith("e"):
        return word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


_OPENINGS: Final = frozenset(("so", "thus", "therefore", "hence", "then", "now"))
_OPENING_STEMS: Final = frozenset(map(stem, _OPENINGS))
_MULTIPLIERS: Final = frozenset("once twice double doubled triple".split())


def stemmed_terms(text: str) -> list[Term]:
    """Return the words, numbers and signs of a text in order, words by `stem` and without openings."""
    stems = (stem(term) if isinstance(term, str) else term for term in read_terms(text))
    return [term for term in stems if term not in _OPENING_STEMS]


@lru_cache(maxsize=4096)
def exact_terms(text: str) -> tuple[Term, ...]:
    """Return the words, numbers and signs of a text in order, such that equal ones say the same.

    Words lose a plural s and, where it means nothing, their capital; only an opening at the beginning is left
    out. Ordinals and multipliers are words: 3rd is not 3, double rooms are not two rooms.
    """
    found: list[Term] = []
    for token in tokenize(normalize(text)):
        if token.kind == "number" and token.value is not None:
            found.append(token.value)
        elif token.kind == "word":
            found.append(_exact(token.text, behind_number=bool(found) and isinstance(found[-1], Fraction)))
        elif token.kind != "end":
            found.append(WORD_OPERATORS.get(token.text.lower(), token.text))
    return tuple(found[1:] if found and found[0] in _OPENINGS else found)


def _exact(word: str, *, behind_number: bool) -> Term:
    """Return a word as `exact_terms` has it; behind a number, mW and MW are other units."""
    small = word.lower()
    number = None if small in _MULTIPLIERS else number_of_word(small)
    if number is not None and number.denominator == 1:
        return number
    if not behind_number and (len(word) == 1 or word[1:].islower()):
        word = small
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "su" else word


def _both_ways(pairs: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pair in pairs.split():
        one, other = map(stem, pair.split(":"))
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found


OPPOSITES: Final = _both_ways(_OPPOSITES)
"""Stems of words that say something else where a stem stands: its opposite, another measure of a thing."""
