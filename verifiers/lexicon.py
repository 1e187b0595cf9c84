"""The words that carry a step's meaning where sentence embeddings do not see a difference."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

NEGATIONS: Final = frozenset(
    {
        *("not", "no", "never", "none", "neither", "nor", "nothing", "nobody"),
        *("cannot", "can't", "couldn't", "isn't", "aren't", "wasn't", "weren't", "won't", "wouldn't"),
        *("don't", "doesn't", "didn't", "hasn't", "haven't", "hadn't", "shouldn't"),
        *("unable", "impossible", "fails", "false", "incorrect"),
    }
)


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Strip endings so that forms of one word meet (divides, divided, dividing); not linguistics."""
    if word in NEGATIONS:
        return word
    word = _IRREGULAR.get(word, word)
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 5 and word.endswith("ing"):
        word = _undouble(word[:-3])
    elif len(word) > 4 and word.endswith("ed"):
        word = _undouble(word[:-2])
    elif len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def _undouble(word: str) -> str:
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz" else word


_IRREGULAR: Final = {
    "gave": "give", "given": "give", "gives": "give", "bought": "buy", "sold": "sell", "lost": "lose",
    "spent": "spend", "took": "take", "taken": "take", "won": "win", "ate": "eat", "eaten": "eat",
    "left": "left", "paid": "pay", "has": "have", "had": "have", "was": "is", "were": "is", "are": "is",
    "got": "get", "gotten": "get", "found": "find", "made": "make", "went": "go", "goes": "go",
    "came": "come", "kept": "keep", "sent": "send", "began": "begin", "begun": "begin", "grew": "grow",
    "fell": "fall",
    "rose": "rise", "lent": "lend", "children": "child", "people": "person", "feet": "foot",
    "owns": "own", "maxima": "maximum", "minima": "minimum", "vertices": "vertex", "bases": "base",
    "dice": "die", "addition": "add", "subtraction": "subtract", "multiplication": "multiply",
    "division": "divide", "note": "notice", "noting": "notice",
}  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in text.split())


def _groups(table: str) -> tuple[tuple[frozenset[str], ...], ...]:
    return tuple(
        tuple(_words(pole) for pole in line.split("|")) for line in table.strip().splitlines() if line.strip()
    )


FILLERS: Final = _words(
    "so thus therefore hence then now next finally first firstly secondly also and as a an the we us our you "
    "that this it its which get gets getting gives giving have has had is are was be being been can could "
    "will would shall should must may might do does did by of to in on at for with from into let lets since "
    "because given using use there here just already exactly indeed simply again still follows means "
    "know notice see find compute calculate determine conclude consequently accordingly overall i e all"
)
"""Words of discourse: their presence changes no claim."""


def is_filler(word: str) -> bool:
    """Whether ``word`` is one of ``FILLERS``; who *finds* 8 coins does more than we who *find* a sum."""
    return stem(word) in FILLERS and word not in ("finds", "found")


RETRACTIONS: Final = NEGATIONS | _words(
    "wait wrong incorrect mistake mistaken error oops sorry redo recompute recalculate recheck retry"
)
"""Words that take back what was said before."""
RETRACTED: Final = _words(
    "me i my made there something step last previous earlier above result answer calculation "
    "again over hmm actually try back go fix correction little quite seems looks think"
)
"""What else such a clause may hold; with any other word in it, it says more than that."""
AFFIRMATIONS: Final = _words("right correct true fine")
"""Words that take something back only with a negation (``that is not right``)."""

AMOUNT_UP: Final = _words(
    "more greater larger bigger higher increase increases exceed exceeds additional extra above"
)
AMOUNT_DOWN: Final = _words("less fewer smaller lower decrease decreases reduce reduces below short")

TREND_UP: Final = AMOUNT_UP | _words("rise grow gain climb ascend ahead warmer hotter increase up")
TREND_DOWN: Final = AMOUNT_DOWN | _words(
    "fall drop sink lose descend behind colder cooler decrease shrink down"
)
"""Which way something goes or lies: a step that knows one way only is none that knows the other only."""

COMPARATIVES: Final[dict[str, tuple[str, int]]] = {
    stem(word): (axis, sign)
    for axis, up, down in (
        ("amount", "more greater larger bigger higher", "less fewer smaller lower"),
        ("age", "older elder", "younger"),
        ("weight", "heavier", "lighter"),
        ("speed", "faster quicker", "slower"),
        ("length", "longer taller", "shorter"),
        ("price", "dearer costlier pricier", "cheaper"),
        ("wealth", "richer", "poorer"),
        ("time", "later", "earlier sooner"),
        ("width", "wider broader", "narrower"),
        ("strength", "stronger", "weaker"),
        ("distance", "farther further", "nearer closer"),
        ("warmth", "warmer hotter", "colder cooler"),
    )
    for sign, words in ((1, up), (-1, down))
    for word in words.split()
}
"""Comparative to its axis and sign: ``x older than y`` is ``y younger than x``."""

GROUPS: Final = _groups("""
more greater larger bigger higher | less fewer smaller lower
add adds sum plus combine | subtract minus difference | multiply product times | divide quotient
give gives donate lend | receive receives borrow
buy purchase | sell
earn win gain collect save | lose spend waste
increase grow rise | decrease shrink fall drop reduce
before earlier | after later
ordinal1 | last
start begin | end finish
up upward | down downward
right rightward | left leftward
north | south | east | west
above over | below under
inside interior inner | outside exterior outer
most maximum greatest largest highest max | least minimum smallest lowest min
atleast | atmost
even | odd
prime | composite
positive | negative
true | false
all every each both | none neither | some
always | never | sometimes
same equal agree | different unequal differ
correct right | wrong incorrect
enough | lack
parallel | perpendicular
horizontal | vertical
clockwise | counterclockwise anticlockwise
acute | obtuse
rational | irrational
increasing | decreasing
numerator | denominator
length long | width wide | height high tall | depth deep
radius radii | diameter | circumference
area | perimeter | volume
row | column
sine sin | cosine cos | tangent tan
mean average | median | mode
permutation permutations | combination combinations
domain | range
odd | even
profit income revenue | loss | cost expense
buyer | seller
boy | girl
man men husband | woman women wife
brother | sister
father dad | mother mom
son | daughter
morning | afternoon | evening | night
monday | tuesday | wednesday | thursday | friday | saturday | sunday
january | february | march | april | june | july | august | september | october | november | december
red | green | blue | yellow | black | white | orange | purple | pink | brown | gray grey
second seconds | minute minutes | hour hours | day days | week weeks | month months | year years
millimeter mm | centimeter cm | meter | kilometer km | inch inches | foot | yard | mile
gram grams | kilogram kilograms kg | ounce ounces | pound pounds | ton tons
liter liters | milliliter milliliters ml | gallon gallons | cup cups
mph | kph
penny pennies | nickel nickels | dime dimes | quarter quarters
square | triangle | circle | rectangle | pentagon | hexagon | octagon | cube | sphere | cylinder | cone
adult adults | child
single | married
full fill | empty
open | closed
front | back
top | bottom
near | far
import | export
hot warm | cold cool
union | intersection
convex | concave
ascending | descending
commutative | associative | distributive
permanent | temporary
arithmetic | geometric
weekday weekdays | weekend weekends
independent | dependent
with | without
include including | exclude excluding
possible | impossible
integer integers | fraction fractions
domestic | foreign
replacement | noreplacement
accept | reject
pass | fail
real | imaginary
sufficient enough | insufficient
square | cubic | squareroot | cuberoot
degree degrees | radian radians
differentiate derivative | integrate integral
""")
"""Each line a set of exclusive poles: a step that moves from one to another means something else."""

POLES: Final[dict[str, frozenset[tuple[int, int]]]] = {}
for _group, _poles in enumerate(GROUPS):
    for _pole, _members in enumerate(_poles):
        for _member in _members:
            POLES[_member] = POLES.get(_member, frozenset()) | {(_group, _pole)}

OPERATION_WORDS: Final[dict[str, str]] = {
    stem(word): operation
    for operation, words in (
        ("+", "add adds plus sum total altogether together combined more increase gain receive extra"),
        ("-", "subtract minus less fewer remove difference remain remaining remainder lose spend"),
        ("-", "decrease reduce left away without"),
        ("*", "times multiply product twice double triple each every per squared"),
        ("/", "divide split share quotient ratio average equally evenly apiece"),
    )
    for word in words.split()
}  # fmt: skip

ACTIONS: Final[dict[str, str]] = {
    stem(word): operation
    for operation, words in (
        ("+", "add adds sum plus combine receive find more additional above ahead extra"),
        ("-", "subtract minus take remove without lose spend fewer less difference below behind"),
        ("*", "multiply product"),
        ("/", "divide split share quotient"),
    )
    for word in words.split()
}
"""Words that announce the operation a step is about to carry out.

``take`` does so only with one of ``TAKE_AWAY``, ``find`` only of somebody who finds, not in ``we find``.
"""
TAKE_AWAY: Final = frozenset({"from", "away", "off", "out"})

PERSONAL_ACTIONS: Final = {stem("get"): "+"}
"""Announce an operation only behind a name: ``Ida gets 6``, but not ``this gets 6``."""

OPENERS: Final = _words(
    """
    so thus therefore hence then now next first second third fourth fifth final finally since because given
    let lets we the this that these those it he she they there if when while after before for from to in on
    at by with of as and but or also note notice recall remember substitute plug solve simplify expand factor
    add subtract multiply divide compute calculate find determine evaluate consider observe apply use combine
    rewrite isolate square take set get check verify convert round sum count list write each every all both
    half twice together altogether overall however what which his her their its my our your here again
    another not no yes only similarly likewise initially originally later earlier meanwhile afterwards
    compared taken without once during per out up down step answer total result remaining i a an one two
    three four five six seven eight nine ten where who how why suppose assume thereby number product
    difference cost price time distance area perimeter length width equation value case true false identify
    understand define express start begin look choose select draw place replace group cross reduce cancel
    distribute collect move than most least more less fewer many much some any over under between among
    across within about around through until unlike like along beyond except near above below still
    whenever wherever whether yet rather instead moreover furthermore additionally further specifically
    importantly clearly obviously naturally alternatively
    """
)
"""Words that open sentences with a capital and name nobody."""

PARTICLE_VERBS: Final = _words("left end up start begin together along compare remain deal agree go come")
"""Words that take a ``with`` which is not the contrary of ``without``."""

ANY_UNITS: Final = _words("parts pieces portions shares things items ones times")
"""Units that count whatever is counted: 8 parts may be 8 players."""

IRREGULAR_PLURALS: Final = frozenset(
    "people children men women feet teeth mice geese dice sheep fish".split()
)
