"""Pairs of steps from several solutions of each problem, labelled by machine.

Two steps of one problem with the same calculations (operands, operators, results) say the same in other
words; so do two short steps without a calculation that stand before the same one and share their words, and
two that state the same numbers; so does a step with other words of the same meaning (`rewrites`). Not the
same: a step changed in one place, cut, or carried on; the steps around it; steps with other calculations. A
calculation that a solution makes twice may mean two things and makes no pairs, and neither does a step with a
sentence more or less that only leads to the same calculations. What the labels are worth is
measured on pairs labelled by hand (docs/measurements/verifiers.md).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Final, TypeAlias

from reason_spec.lab.verifier_training.changes import Problem, changed_steps
from reason_spec.lab.verifier_training.rewrites import rewritten
from reason_spec.segment import split_steps
from reason_spec.verifiers.evidence import same_work
from reason_spec.verifiers.objections import missing_numbers
from reason_spec.verifiers.quantities import Quantities, read_quantities
from reason_spec.verifiers.semantic import squeezed
from reason_spec.verifiers.words import stem

_MAX_CHARS: Final = 500
_MIN_WORDS: Final = 3
_SENTENCE: Final = re.compile(r"(?<=[a-zA-Z\d)%\]}][.!?]) +(?=[A-Z\d(\\*])|\n+")
_WORD: Final = re.compile(r"[a-z]{3,}")
_STOP_WORDS: Final = frozenset(
    "the and that this with for from are was were has have had will can now then first next step let find "
    "calculate determine need how many much total number out there they them his her its text times frac "
    "boxed into our per each asking asks asked question problem know known want wants needs needed figure "
    "given giving says said tells states stated able could would should actually also just exactly answer "
    "steps solve solution therefore thus hence since because here okay".split()
)
"""Words that say nothing of what a step is about."""
_TOO_LOOSE: Final = 4.0
"""A step this many times as long as the other one probably says more."""
_SHARED_WORDS: Final = 0.6
"""Least share of the words of the longer step that the other one has, where no calculation says it."""
_MAY_SHARE: Final = 0.5
"""Share of the words of the shorter step from which on two steps of different places may say the same."""
_CHANGES_NUMBERS: Final = frozenset({"number", "number of the problem", "operation", "order"})
_EXCHANGES: Final = frozenset({"direction", "unit", "entity", "name of the problem", "noun of the problem"})
_A_SENTENCE_MORE: Final = frozenset({"sentence dropped", "the step before too", "carried on"})
_BY_PLACE: Final = frozenset({"the step before", "the step after", "another step"})
_TELLING_WORDS: Final = 2
_REWRITTEN_SHARE: Final = 0.4
"""Of the changed steps, those in which words of the same meaning are exchanged as well."""
_STANCE: Final = re.compile(
    r"\b(?:wait|alternatively|another way|check|verify|mistake|wrong|maybe|suppose|assum\w+|if|hmm|would|"
    r"should|no|not|n't|other hand|instead)\b|\?",
    re.IGNORECASE,
)
"""A step that doubts, tries or checks does not say what one says that states."""

Key: TypeAlias = tuple[tuple[Fraction, ...], str, Fraction]


@dataclass(frozen=True, slots=True)
class StepPair:
    """A drafted step and the target's, and whether they say the same; ``kind``: how the label was made."""

    problem: str
    question: str
    before: str
    """The target's last step before."""
    a: str
    b: str
    same: bool
    kind: str
    writers: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Unit:
    writer: str
    place: int
    text: str
    before: str
    after: str
    quantities: Quantities
    keys: frozenset[Key]
    words: frozenset[str]
    stance: bool


def mine_pairs(
    problem: str, question: str, solutions: Mapping[str, str], seed: int, most_a_kind: int = 12
) -> Iterator[StepPair]:
    """Yield pairs of one problem: at most ``most_a_kind`` of each kind.

    Args:
        solutions: texts, by who wrote them.
    """
    rng = Random(f"{seed}/{problem}")
    units = [unit for writer, text in solutions.items() for unit in _units(writer, text)]
    context = Problem.read(question, [unit.text for unit in units[:60]])
    same = list(_same(units, rng, most_a_kind))
    seen: set[tuple[str, str]] = set()

    def pair(one: str, other: _Unit, is_same: bool, kind: str, writer: str) -> Iterator[StepPair]:
        if (one, other.text) not in seen and squeezed(one) != squeezed(other.text):
            seen.add((one, other.text))
            writers = (writer, other.writer)
            yield StepPair(problem, question, other.before, one, other.text, is_same, kind, writers)

    for kind, one, other in same:
        yield from pair(one.text, other, True, kind, one.writer)
    for unit in rng.sample(units, min(len(units), most_a_kind)):
        if (reworded := rewritten(unit.text, rng)) is not None:
            yield from pair(reworded, unit, True, "rewritten", unit.writer)
    others: dict[str, list[tuple[str, _Unit, str]]] = defaultdict(list)
    for _, one, other in rng.sample(same, len(same)):
        for kind, changed in changed_steps(one.text, context, rng).items():
            if kind in _CHANGES_NUMBERS and not _differs(read_quantities(changed), one.quantities):
                continue  # The label of a list, part-time: it says the same.
            # Beside the other wording, and beside the step itself: what differs is one word then.
            beside = other if rng.random() < 0.6 else one
            # Else a pair that differs in an opening or a synonym would always be one that says the same.
            text = (rng.random() < _REWRITTEN_SHARE and rewritten(changed, rng)) or changed
            if kind in _EXCHANGES and not _has_lost_word(beside.text, one.text, changed):
                beside = one
            if kind == "sentence dropped" and not _has_more_numbers(beside.text, text):
                beside = one
            if kind != "sentence dropped" or _has_more_numbers(beside.text, text):
                others[kind].append((text, beside, one.writer))
        if one.after and _has_more_numbers(one.after, other):
            others["carried on"].append((f"{one.text}\n{one.after}", other, one.writer))
        if one.before and _has_more_numbers(one.before, other):
            others["the step before too"].append((f"{one.before}\n{one.text}", other, one.writer))
        if one.before and _says_more(one.before, other.text):
            others["the step before"].append((one.before, other, one.writer))
        if one.after:
            others["the step after"].append((one.after, other, one.writer))
    for one, other in _different(units, rng, 6 * most_a_kind):
        others["another step"].append((one.text, other, one.writer))
    for kind, found in others.items():
        limit = most_a_kind if "step" not in kind else most_a_kind // 2
        for changed, other, writer in found[: 3 * most_a_kind if kind == "another step" else limit]:
            if not _does_the_same(kind, changed, other):
                yield from pair(changed, other, False, kind, writer)


def _has_more_numbers(text: str, than: _Unit | str) -> bool:
    """Whether a text has a number that another one neither has nor computes.

    A sentence more without one may say what the other step implies: the unit of a result, what is next.
    """
    read = read_quantities(than) if isinstance(than, str) else than.quantities
    return bool(missing_numbers(read_quantities(text), read))


def _says_more(text: str, than: str) -> bool:
    """Whether a text has a number or two words of content that another one has not got."""
    if read_quantities(text).numbers - read_quantities(than).readings:
        return True
    known = set(_content(than))
    return len([word for word in _content(text) if word not in known]) >= _TELLING_WORDS


def _does_the_same(kind: str, text: str, other: _Unit) -> bool:
    """Whether a step that should be another one may say the same: solutions repeat themselves.

    A sentence more is no other step where both make the same calculations and have the same numbers: it only
    leads to them; so does a result without its calculation. Without a calculation on both sides, a step that
    shares half of the words of the shorter one and has no number of its own may announce or repeat the other
    one. If only one of the two doubts or asks, they are another step only where neither has a number: beside
    a number "check" or "not" seldom changes what a step says of it.
    """
    if kind not in _A_SENTENCE_MORE | _BY_PLACE:
        return False
    stands = bool(_STANCE.search(text)) == other.stance
    read = read_quantities(text)
    if read.calculations and other.quantities.calculations:
        return stands and same_work(read, other.quantities)
    if _only_states_results(read, other.quantities) or _only_states_results(other.quantities, read):
        return True
    if missing_numbers(read, other.quantities) or missing_numbers(other.quantities, read):
        return False
    words = frozenset(_content(text))
    shorter = min(len(words), len(other.words))
    if not shorter:
        return True
    if not stands and not (read.numbers or other.quantities.numbers):
        return False
    return len(words & other.words) >= _MAY_SHARE * shorter


def _only_states_results(one: Quantities, other: Quantities) -> bool:
    """Whether a step makes no calculation and has only numbers that another one computes: "So 6 days"."""
    return not one.calculations and bool(one.numbers) and one.numbers <= set(other.results)


def _has_lost_word(other: str, whole: str, changed: str) -> bool:
    """Whether another text has a word that a step lost when one was exchanged.

    "4 boys" does not contradict a step that names no girls.
    """
    words = [
        {stem(word) for word in re.findall(r"[a-z]+|[<>]", text.lower())} for text in (whole, changed, other)
    ]
    return bool((words[0] - words[1]) & words[2])


def _content(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _differs(one: Quantities, other: Quantities) -> bool:
    return (one.numbers, one.calculations, one.shares) != (other.numbers, other.calculations, other.shares)


def _units(writer: str, text: str) -> Iterator[_Unit]:
    """Yield the steps of a solution, and the sentences of those with several."""
    pieces: list[str] = []
    for step in split_steps(text):
        sentences = [sentence.strip() for sentence in _SENTENCE.split(step) if sentence.strip()]
        pieces += [step.strip()] if len(sentences) == 1 else [step.strip(), *sentences]
    for place, piece in enumerate(pieces):
        if len(piece.split()) < _MIN_WORDS or len(piece) > _MAX_CHARS or "think>" in piece:
            continue
        quantities = read_quantities(piece)
        before = next((p for p in reversed(pieces[:place]) if _stands_apart(p, piece)), "")
        after = next((p for p in pieces[place + 1 :] if _stands_apart(p, piece)), "")
        yield _Unit(
            writer,
            place,
            piece,
            before[-_MAX_CHARS:],
            after[:_MAX_CHARS],
            quantities,
            frozenset((c.operands, c.operators, c.value) for c in quantities.calculations),
            frozenset(_content(piece)),
            bool(_STANCE.search(piece)),
        )


def _stands_apart(other: str, piece: str) -> bool:
    """Whether a piece of a solution is a step beside another one, neither part of it nor its whole."""
    return other not in piece and piece not in other and len(other.split()) >= _MIN_WORDS


def _same(units: Sequence[_Unit], rng: Random, most: int) -> Iterator[tuple[str, _Unit, _Unit]]:
    ambiguous = _ambiguous(units)
    groups: dict[frozenset[Key], list[_Unit]] = defaultdict(list)
    stated: dict[frozenset[Fraction], list[_Unit]] = defaultdict(list)
    for unit in units:
        if unit.keys and not unit.keys & ambiguous and not unit.quantities.mistakes:
            groups[unit.keys].append(unit)
        elif not unit.keys and unit.quantities.numbers and len(unit.text) < 200:
            stated[unit.quantities.numbers].append(unit)
    places = {(unit.writer, unit.text): unit for unit in units}
    candidates = {
        "calculation": [p for group in groups.values() for p in _pairs_of(group)],
        "statement": [
            p for group in stated.values() for p in _pairs_of(group) if _says_in_words(*p)
        ],
        "announcement": [
            p for group in groups.values() for p in _pairs_of(list(_before(group, places)), 0.0)
            if _says_in_words(*p)
        ],
    }  # fmt: skip
    for kind, found in candidates.items():
        for one, other in rng.sample(found, min(len(found), 2 * most)):
            yield kind, one, other


def _ambiguous(units: Sequence[_Unit]) -> set[Key]:
    """Return calculations that solutions make in two places, in other words: of different things, perhaps."""
    places: dict[tuple[str, Key], list[_Unit]] = defaultdict(list)
    for unit in units:
        if len(unit.keys) == 1:
            for key in unit.keys:
                places[unit.writer, key].append(unit)
    writers: Counter[Key] = Counter()
    for (_, key), found in places.items():
        if any(not _shares_words(one, other, 0.3) for one, other in combinations(found[:6], 2)):
            writers[key] += 1
    return {key for key, count in writers.items() if count >= 2}


def _pairs_of(group: Sequence[_Unit], least: float = 0.1) -> list[tuple[_Unit, _Unit]]:
    return [
        (one, other)
        for one, other in combinations(group[:40], 2)
        if one.writer != other.writer
        and one.stance == other.stance
        and max(len(one.text), len(other.text)) <= _TOO_LOOSE * min(len(one.text), len(other.text))
        and _agrees(one.quantities, other.quantities)
        and _shares_words(one, other, least)
    ]


def _agrees(one: Quantities, other: Quantities) -> bool:
    """Whether neither states a number that the other has not got, but operands."""
    return one.numbers <= other.readings and other.numbers <= one.readings


def _shares_words(one: _Unit, other: _Unit, least: float) -> bool:
    smaller = min(len(one.words), len(other.words))
    return len(one.words & other.words) >= least * smaller if smaller else least <= 0.1


def _says_in_words(one: _Unit, other: _Unit) -> bool:
    larger = max(len(one.words), len(other.words))
    return larger > 0 and len(one.words & other.words) >= _SHARED_WORDS * larger


def _before(group: Sequence[_Unit], places: Mapping[tuple[str, str], _Unit]) -> Iterator[_Unit]:
    """Yield the units right before those of a group that announce it: no number in them.

    Args:
        places: all units, by writer and text.
    """
    for unit in group:
        found = places.get((unit.writer, unit.before))
        if found is not None and not found.quantities.readings and len(found.text) < 160:
            yield found


def _different(units: Sequence[_Unit], rng: Random, most: int) -> Iterator[tuple[_Unit, _Unit]]:
    """Yield steps of different content, most of which numbers alone do not tell apart.

    Both of one solution, which seldom says a thing twice; or the other one of another solution, without a
    calculation or number in common.
    """
    hard: list[tuple[_Unit, _Unit]] = []
    easy: list[tuple[_Unit, _Unit]] = []
    for _ in range(20 * most if len(units) > 1 else 0):
        one, other = rng.sample(units, 2)
        if one.text in other.text or other.text in one.text or _shares_words(one, other, 0.75):
            continue
        if one.keys and one.keys == other.keys:
            continue
        if one.quantities.numbers == other.quantities.numbers != frozenset():
            continue
        if one.writer == other.writer or one.keys or other.keys:
            (hard if _agrees(one.quantities, other.quantities) else easy).append((one, other))
        elif not _shares_words(one, other, 0.25):
            hard.append((one, other))
    # Those that share words first: they are what the encoder has to tell apart.
    hard.sort(key=lambda pair: -len(pair[0].words & pair[1].words))
    yield from hard[:most]
    yield from easy[: max(0, most // 2 - len(hard))]
