"""Problems and worked solutions: right, solvable from their text alone, and split without overlap."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.pair import SAMPLE_PATH
from reason_spec.pair.generator import Example, make_drill, make_problem, problems
from reason_spec.pair.wording import FACTS, STEPS, Kind, Wording, step_weights
from tests.pair.test_arithmetic import check_working

seeds = st.integers(0, 2**31)
_RATIOS = {"twice": 2, "half": 2, "a third": 3, "a quarter": 4, "a fifth": 5}
_RATIOS |= {"three times": 3, "four times": 4, "five times": 5, "six times": 6}
_RATIOS |= {"seven times": 7, "eight times": 8, "nine times": 9}
_PEOPLE = r"([Ee]ach [a-z]+|[A-Z][a-z]+)"
_RATIO = "(" + "|".join(_RATIOS) + ")"


def _rule(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("WHO", _PEOPLE).replace("RATIO", _RATIO).replace("NUM", r"(\d+)") + "$")


# Written from the English, not from the generator: what each sentence says about who has what.
_NUMBER_FACTS = [
    _rule(r"WHO (?:has|owns|starts with) NUM ([a-z]+)"),
    _rule(r"There are NUM ([a-z]+) that belong to WHO"),
]
_IGNORED = [_rule(r"WHO also keeps .*"), _rule(r"WHO wants to buy .*"), _rule(r"Last year WHO lost .*")]
_RELATIONS: list[tuple[str, re.Pattern[str], str]] = [
    ("+", _rule(r"WHO has NUM more [a-z]+ than WHO"), "nko"),
    ("+", _rule(r"WHO has NUM [a-z]+ more than WHO does"), "nko"),
    ("+", _rule(r"Compared with WHO, WHO has NUM more [a-z]+"), "onk"),
    ("-", _rule(r"WHO has NUM fewer [a-z]+ than WHO"), "nko"),
    ("-", _rule(r"WHO has NUM [a-z]+ fewer than WHO does"), "nko"),
    ("-", _rule(r"Compared with WHO, WHO has NUM fewer [a-z]+"), "onk"),
    ("r", _rule(r"WHO has RATIO as many [a-z]+ as WHO"), "nko"),
    ("r", _rule(r"WHO has RATIO (?:of )?the number of [a-z]+ that WHO has"), "nko"),
    ("r", _rule(r"Compared with WHO, WHO has (?:only )?RATIO as many [a-z]+"), "onk"),
    ("%", _rule(r"WHO has NUM% as many [a-z]+ as WHO"), "nko"),
    ("%", _rule(r"WHO has NUM% of the number of [a-z]+ that WHO has"), "nko"),
    ("%", _rule(r"Compared with WHO, WHO has only NUM% as many [a-z]+"), "onk"),
    ("*", _rule(r"Every hour WHO collects as many [a-z]+ as WHO has, and \w+ works for NUM hours"), "nok"),
    ("*", _rule(r"WHO works for NUM hours and each hour collects as many [a-z]+ as WHO has"), "nko"),
    ("*", _rule(r"For NUM hours WHO collects, every hour, as many [a-z]+ as WHO has"), "kno"),
]
_SUMS = [
    (_rule(r"WHO has as many [a-z]+ as WHO and WHO together"), "nop"),
    (_rule(r"The number of [a-z]+ that WHO has is the sum of what WHO and WHO have"), "nop"),
    (_rule(r"Together WHO and WHO have as many [a-z]+ as WHO"), "opn"),
]
_CHANGES = [
    ("-", _rule(r"Then WHO gives NUM [a-z]+ to a neighbor"), "ok"),
    ("-", _rule(r"Later WHO loses NUM [a-z]+"), "ok"),
    ("-", _rule(r"After that WHO gives away NUM of these [a-z]+"), "ok"),
    ("+", _rule(r"Then WHO gets NUM more [a-z]+"), "ok"),
    ("+", _rule(r"Later WHO finds NUM more [a-z]+"), "ok"),
    ("+", _rule(r"After that WHO is given another NUM [a-z]+"), "ok"),
    ("*", _rule(r"Then WHO sells all these [a-z]+ for NUM dollars each"), "ok"),
    ("*", _rule(r"All the [a-z]+ of WHO are sold at NUM dollars each"), "ok"),
    ("*", _rule(r"Later WHO sells every one of the [a-z]+ for NUM dollars"), "ok"),
    ("/", _rule(r"Then WHO shares all these [a-z]+ equally among NUM (\w+)"), "okg"),
    ("/", _rule(r"All the [a-z]+ of WHO are divided equally among NUM (\w+)"), "okg"),
    ("/", _rule(r"Later WHO splits the [a-z]+ evenly between NUM (\w+)"), "okg"),
    ("x", _rule(r"Then WHO gives away NUM [a-z]+ and gets NUM more"), "okm"),
    ("x", _rule(r"Later WHO loses NUM of the [a-z]+, but finds another NUM"), "okm"),
    ("x", _rule(r"After that WHO sends NUM [a-z]+ to a friend and buys NUM new ones"), "okm"),
    ("s", _rule(r"Then WHO gives away RATIO of the [a-z]+"), "ok"),
    ("s", _rule(r"Later WHO uses up RATIO of these [a-z]+"), "ok"),
    ("s", _rule(r"After that RATIO of the [a-z]+ of WHO are gone"), "ko"),
]


def _apply(operator: str, value: int, operand: str, second: str = "") -> int:
    if operator == "x":
        return value - int(operand) + int(second)
    if operator == "s":
        return value - _exact(value, _RATIOS[operand.lower()])
    if operator == "r":
        number = _RATIOS[operand]
        return value * number if operand == "twice" or operand.endswith("times") else _exact(value, number)
    if operator == "%":
        return _exact(value * int(operand), 100)
    number = int(operand)
    return {"+": value + number, "-": value - number, "*": value * number}.get(operator) or _exact(
        value, number
    )


def _exact(a: int, b: int) -> int:
    quotient, rest = divmod(a, b)
    assert rest == 0
    return quotient


def _matched(sentence: str, pattern: re.Pattern[str], roles: str) -> dict[str, str] | None:
    match = pattern.match(sentence)
    return dict(zip(roles, match.groups(), strict=True)) if match else None


def solve(question: str) -> int:
    """Solve a problem by reading its English; sentences whose source is unknown yet wait."""
    *facts, asked = re.split(r"(?<=[.?])\s", question)
    has: dict[str, int] = {}
    waiting = [fact.rstrip(".") for fact in facts]
    while waiting:
        left = [fact for fact in waiting if not _read(fact, has)]
        assert len(left) < len(waiting), left
        waiting = left
    names = re.findall(r"[Ee]ach [a-z]+|\b[A-Z][a-z]+\b", asked.split(" ", 1)[1])
    values = [has[name.lower() if " " in name else name] for name in names]
    if "more" in asked:
        return values[0] - values[1]
    return sum(values)


def _read(fact: str, has: dict[str, int]) -> bool:
    if any(rule.match(fact) for rule in _IGNORED):
        return True
    for rule, roles in zip(_NUMBER_FACTS, ("nku", "kun"), strict=True):
        if (found := _matched(fact, rule, roles)) is not None:
            # Somebody already named owns something else that nobody asks about.
            has.setdefault(_who(found["n"]), int(found["k"]))
            return True
    for operator, rule, roles in _RELATIONS:
        if (found := _matched(fact, rule, roles)) is not None:
            return _relate(operator, found, has)
    for rule, roles in _SUMS:
        if (found := _matched(fact, rule, roles)) is not None:
            sources = [_who(found["o"]), _who(found["p"])]
            if any(source not in has for source in sources):
                return False
            has[_who(found["n"])] = sum(has[source] for source in sources)
            return True
    for operator, rule, roles in _CHANGES:
        if (found := _matched(fact, rule, roles)) is not None:
            found["n"] = f"each {_singular(found['g'])}" if "g" in found else found["o"]
            return _relate(operator, found, has)
    raise AssertionError(f"nobody understands: {fact}")


def _relate(operator: str, found: dict[str, str], has: dict[str, int]) -> bool:
    source = _who(found["o"])
    if source not in has:
        return False
    has[_who(found["n"])] = _apply(operator, has[source], found["k"], found.get("m", ""))
    return True


def _who(text: str) -> str:
    return text.lower() if " " in text else text


def _singular(group: str) -> str:
    return "child" if group == "children" else group.removesuffix("s")


@given(seeds)
def test_the_answer_follows_from_the_text_alone(seed: int) -> None:
    problem = make_problem("train", seed, 0)
    assert solve(problem.question) == problem.answer


@given(seeds, st.sampled_from(["target", "draft"]))
def test_every_equation_of_every_step_is_true(seed: int, wording: Wording) -> None:
    problem = make_problem("test", seed, 1, wording=wording)
    for step in problem.steps[:-1]:
        _check_equations(step)
    assert problem.steps[-1] == f"The answer is {problem.answer}."
    assert 0 < problem.answer <= 999


def _check_equations(step: str) -> None:
    workings = re.findall(r"\d+[-+*/]\d+(?:=\d+|: [\d+*/=, a-z-]*\d)(?=[.,])", step)
    assert workings, step
    for working in workings:
        check_working(re.sub(r",? (?!carry|borrow|\d).*", "", working))


@given(seeds)
def test_each_step_states_the_value_of_its_last_expression(seed: int) -> None:
    problem = make_problem("train", seed, 2)
    for step, planned in zip(problem.steps[:-1], problem.plan, strict=True):
        assert re.findall(r"\d+", step.rsplit(". ", 1)[-1]) == [str(planned.value)]
        for a, operator, b in planned.calculations:
            assert f"{a}{operator}{b}" in step


def test_a_step_from_two_sources_says_how_much_each_has() -> None:
    kinds = set()
    for problem in islice(problems("train", 0), 200):
        for step, planned in zip(problem.steps[:-1], problem.plan, strict=True):
            if planned.kind not in ("total", "compare", "together"):
                continue
            kinds.add(planned.kind)
            sources = (planned.names["old"], planned.names["other"])
            # A step begins with a capital whatever it begins with.
            first, second = (
                f"{who} with {n}" for who, n in zip(sources, (planned.a, planned.b), strict=True)
            )
            assert first.lower() in step.lower()
            assert second.lower() in step.lower()
    assert kinds == {"total", "compare", "together"}


def test_every_kind_occurs_and_values_stay_below_a_thousand() -> None:
    found = {step.kind for p in islice(problems("train", 0), 400) for step in p.plan}
    assert found == set(get_args(Kind))
    assert len(found) >= 12
    values = [step.value for p in islice(problems("train", 0), 400) for step in p.plan]
    assert max(values) <= 999


def test_a_share_of_the_problems_has_facts_that_are_not_needed_or_out_of_order() -> None:
    chosen = list(islice(problems("train", 0, operations=(4, 4)), 400))
    needless = sum(any(rule.match(f) for rule in _IGNORED for f in p.question.split(". ")) for p in chosen)
    assert 0.1 < needless / len(chosen) < 0.3
    unordered = sum(not _told_in_order(p) for p in chosen)
    assert unordered / len(chosen) > 0.02


def _told_in_order(problem: Example) -> bool:
    """Tell whether each fact can be understood from those before it."""
    has: dict[str, int] = {}
    return all(_read(fact.rstrip("."), has) for fact in re.split(r"(?<=[.?])\s", problem.question)[:-1])


@given(seeds, st.integers(1, 8))
def test_a_problem_has_one_step_for_each_operation_and_one_for_the_answer(seed: int, count: int) -> None:
    problem = make_problem("train", seed, 3, operations=(count, count))
    assert problem.operations == count == len(problem.plan) == len(problem.steps) - 1
    assert all("\n" not in step for step in problem.steps)


def test_splits_share_no_problem_even_in_other_words() -> None:
    skeletons = {
        split: {p.skeleton for p in islice(problems(split, 0, operations=(1, 1)), 300)}
        for split in ("train", "validation", "test")
    }
    assert all(len(found) > 100 for found in skeletons.values())
    assert not skeletons["train"] & skeletons["validation"]
    assert not skeletons["train"] & skeletons["test"]
    assert not skeletons["validation"] & skeletons["test"]


@given(seeds)
def test_the_skeleton_names_the_kinds_and_the_given_numbers(seed: int) -> None:
    problem = make_problem("validation", seed, 4)
    kinds, numbers = problem.skeleton.split("|")
    assert kinds.split(",") == [step.kind for step in problem.plan]
    in_words = [str(n) for word, n in _RATIOS.items() if re.search(rf"\b{word}\b", problem.question)]
    assert set(numbers.split(",")) <= {*re.findall(r"\d+", problem.question), *in_words}


def test_problems_depend_on_split_seed_and_index_alone() -> None:
    straight = list(islice(problems("test", 7), 20))
    assert [make_problem("test", 7, i) for i in range(20)] == straight
    assert len({p.question for p in straight}) == 20
    assert make_problem("test", 8, 0) != straight[0]


def test_operation_counts_are_uniform() -> None:
    counts = [p.operations for p in islice(problems("train", 0), 600)]
    assert all(50 <= counts.count(n) <= 105 for n in range(1, 9))


def test_the_draft_learns_other_words_for_some_kinds_and_the_same_problems() -> None:
    reworded = [kind for kind in STEPS if step_weights(kind, "draft") != step_weights(kind, "target")]
    assert 0.15 <= len(reworded) / len(STEPS) <= 0.4
    for index in range(30):
        target = make_problem("train", 0, index, wording="target")
        draft = make_problem("train", 0, index, wording="draft")
        assert (target.question, target.answer) == (draft.question, draft.answer)


def test_no_step_copies_its_fact() -> None:
    for kind in get_args(Kind):
        facts = {fact.rstrip(".") for fact in FACTS.get(kind, ())}
        for phrasing in STEPS[kind]:
            told = re.split(r":? \{work\}", phrasing)[0]
            assert not any(told in fact or fact in told for fact in facts)


def test_phrasings_are_used_as_unevenly_as_they_are_meant_to_be() -> None:
    used = Counter(
        STEPS[step.kind].index(step.phrasing) for p in islice(problems("train", 1), 500) for step in p.plan
    )
    assert [round(used[i] / used.total(), 1) for i in range(4)] == [0.6, 0.2, 0.1, 0.1]


@given(seeds)
def test_drills_are_right(seed: int) -> None:
    arithmetic = make_drill("arithmetic", seed, 0)
    _check_equations(arithmetic.steps[0])
    recall = make_drill("recall", seed, 0)
    assert solve(recall.question) == recall.answer
    assert recall.operations <= 1


def test_the_shipped_sample_is_of_the_test_split_and_right() -> None:
    rows = [json.loads(line) for line in SAMPLE_PATH.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 40
    assert all(row["id"].startswith("test-") for row in rows)
    assert all(solve(row["question"]) == int(row["answer"]) for row in rows)
