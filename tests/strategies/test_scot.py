"""The draft writes whole answers: the best stands but for its end, or the target thinks itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.scot import Scot
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Prefix, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.exact import ExactVerifier
from reason_spec.verifiers.likelihood import LikelihoodVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import PROMPT, Breaks, Outcome, Says, autoregressive, solve

Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]
CHAINS = tuple(f"Chain {name}.\n\nIt goes on.\n\nThe answer is {name}." for name in ("one", "two", "three"))
OWN = "My own first.\n\nMy own second.\n\nMy answer."


class Scores(Verifier):
    """Scores a text by the first of these words that is in it so far; half and more is accepted."""

    name = "scores"
    loss_class = "routed"
    judges_draft_only, compares = True, False

    def __init__(self, **scores: float | None) -> None:
        super().__init__()
        self.scores = scores
        self.judged: list[str] = []

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        text = context.prefix_text + drafted.text
        self.judged.append(text)
        score = next(score for word, score in self.scores.items() if word in text)
        return Verdict("accept" if score is None or score >= 0.5 else "reject", score)


def scot(verifier: Verifier | None = None, **more: Any) -> Make:
    chosen = StrategySettings(**more)
    return lambda target, draft: Scot(chosen, target, draft, verifier or LikelihoodVerifier(target))


def picked(
    verifier: Verifier, *chains: str, width: int = 3, judge_whole: bool = False, **more: Any
) -> Outcome:
    """Solve with a draft that writes these chains in turn, and a target with words of its own."""
    scripts = WrittenAnswers({"question": (OWN,)}), WrittenAnswers({"question": chains or CHAINS})
    return solve(scot(verifier, width=width, judge_whole=judge_whole), *scripts, **more)


def origins(outcome: Outcome) -> list[str]:
    return [step.origin for step in outcome.steps]


# The pick ------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge_whole", [False, True])
@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({"one": 0.6, "two": 0.9, "three": 0.7}, "two"),
        ({"one": 0.2, "two": 0.3, "three": 0.5}, "three"),
        ({"one": 0.8, "two": 0.8, "three": 0.8}, "one"),
        ({"one": None, "two": 0.6, "three": 0.1}, "two"),
    ],
)
def test_the_best_accepted_draft_stands_but_for_its_answer(
    scores: dict[str, float | None], best: str, judge_whole: bool
) -> None:
    outcome = picked(Scores(**scores), judge_whole=judge_whole)
    assert outcome.text == f"Chain {best}.\n\nIt goes on.\n\nMy answer."
    assert origins(outcome) == ["draft", "draft", "target"]
    accepted = [verdict for verdict in outcome.recorder.verdicts if verdict.accepted]
    assert [step.verdict for step in outcome.steps] == [accepted[0], accepted[0], None]
    assert len(accepted) == 1
    assert outcome.recorder.alpha_step == pytest.approx(1 / 3)
    assert outcome.left_running == 0


@pytest.mark.parametrize("judge_whole", [False, True])
def test_where_all_drafts_are_wrong_the_target_thinks_itself(judge_whole: bool) -> None:
    outcome = picked(Scores(Chain=0.4), judge_whole=judge_whole)
    assert outcome.text == OWN
    assert set(origins(outcome)) == {"target"}
    assert outcome.recorder.alpha_step == 0.0
    refused = outcome.steps[0].verdict
    assert refused is not None
    assert refused.decision == "reject"
    assert outcome.recorder.draft_usage.num_discarded_tokens >= 3 * len(CHAINS[0].split("\n\n")[0].split())


@pytest.mark.parametrize(
    "verifier",
    [Says("reject"), Says("unknown"), Breaks("accept"), Says("accept", seconds=5, deadline=0.01)],
    ids=["reject", "unknown", "breaks", "too slow"],
)
@pytest.mark.parametrize("judge_whole", [False, True])
def test_whatever_a_verifier_does_but_accept_makes_the_target_think(
    verifier: Verifier, judge_whole: bool
) -> None:
    scripts = StoryScript(5), StoryScript(5, 0.5)
    outcome = solve(scot(verifier, judge_whole=judge_whole), *scripts)
    assert outcome.tokens == solve(autoregressive, *scripts).tokens
    assert set(origins(outcome)) == {"target"}
    assert outcome.left_running == 0


def test_a_draft_is_as_good_as_its_weakest_step() -> None:
    verifier = Scores(third=0.9, second=0.6, first=0.8, only=0.7)
    one, other = "A first.\n\nA second.\n\nA third.\n\nA.", "An only.\n\nB."
    outcome = picked(verifier, one, other, one)
    assert outcome.text.startswith("An only.")
    assert outcome.steps[0].verdict is not None
    assert outcome.steps[0].verdict.score == 0.7


def test_with_its_first_refused_step_a_draft_has_lost_and_writes_no_more() -> None:
    long = "So far.\n\nWrong.\n\n" + "And on it goes.\n\n" * 100
    verifier = Scores(Wrong=0.1, far=0.9)
    outcome = picked(verifier, long)
    assert outcome.text == OWN
    assert outcome.recorder.draft_usage.num_generated_tokens < 150
    assert not any("And on" in text for text in verifier.judged)
    assert outcome.left_running == 0


def test_a_draft_that_has_lost_does_not_go_on_beside_the_others() -> None:
    wrong = "Wrong.\n\n" + "And on it goes.\n\n" * 100
    good = "Good.\n\n" + "It is well.\n\n" * 30 + "The answer."
    outcome = picked(Scores(Wrong=0.1, Good=0.9), wrong, good, wrong)
    assert outcome.text.startswith("Good.")
    assert outcome.recorder.draft_usage.num_generated_tokens < 1.5 * len(outcome.tokens)


def test_a_stop_does_not_begin_in_what_ended_the_thinking() -> None:
    """With the word that is inserted there two of the drafts would begin with a stop."""
    limit = ThinkingLimit(max_steps=0, closing="Chain")
    verifier = Scores(one=0.6, two=0.9, three=0.7)
    outcome = picked(verifier, thinking=limit, stops=("Chain two", "Chain one"))
    assert outcome.text == "Chain two.\n\nIt goes on.\n\nMy answer."


@pytest.mark.parametrize("judge_whole", [False, True])
def test_a_draft_that_is_cut_is_not_picked(judge_whole: bool) -> None:
    length = len(ScriptedTokenizer().encode(CHAINS[0]))
    for budget in range(1, length + 1):
        outcome = picked(Scores(Chain=0.9), CHAINS[0], judge_whole=judge_whole, max_tokens=budget)
        assert set(origins(outcome)) == {"target"}
        assert len(outcome.tokens) <= budget
    # With its end-of-text token it fits.
    whole = picked(Scores(Chain=0.9), CHAINS[0], judge_whole=judge_whole, max_tokens=length + 1)
    assert origins(whole) == ["draft", "draft", "target"]


@pytest.mark.parametrize("lines", [False, True], ids=["same tokens", "a line is a token of the draft"])
def test_thinking_that_leaves_no_room_for_an_answer_is_not_picked(lines: bool) -> None:
    thinking = "Chain.\n</think>\n\n"
    length = len(ScriptedTokenizer().encode(thinking))
    tokenizer = ScriptedTokenizer(r"\n+|[^\n]+") if lines else None
    for room, origin in ((-1, "target"), (0, "target"), (2, "draft")):
        outcome = picked(
            Scores(Chain=0.9), thinking + "It is 4.", max_tokens=length + room, draft_tokenizer=tokenizer
        )
        assert outcome.steps[0].origin == origin
        assert len(outcome.tokens) <= length + room


def test_where_drafts_begin_alike_each_step_is_judged_once() -> None:
    verifier = Scores(one=0.6, two=0.9)
    outcome = picked(verifier, CHAINS[1], CHAINS[0], CHAINS[1])
    assert len(verifier.judged) == len(set(verifier.judged)) == 4
    assert outcome.text.startswith("Chain two.")
    assert [verdict.accepted for verdict in outcome.recorder.verdicts] == [True, False, False]


@pytest.mark.parametrize("end", ["And so.\n</think>\n\nIt is 4.", "It is 4."])
def test_a_draft_may_be_judged_once_and_whole(end: str) -> None:
    verifier = Scores(four=0.9, Wrong=0.1)
    drafts = [f"{start}\n\nWrong.\n\n{end}" for start in ("Two and two, four.", "So, four.", "Is four.")]
    outcome = picked(verifier, *drafts, judge_whole=True)
    assert outcome.text.startswith("Two and two, four.\n\nWrong.\n\n")
    # What is behind the thinking is no part of a draft, and is evidence where nothing tells it apart.
    ends = [text.endswith(("</think>\n\n", "It is 4.")) for text in verifier.judged]
    assert ends == [True] * 3


@pytest.mark.parametrize(("width", "num_drafts"), [(1, 5), (2, 2), (4, 4)])
def test_one_draft_would_leave_nothing_to_pick(width: int, num_drafts: int) -> None:
    outcome = picked(Scores(Chain=0.6), width=width)
    started = [event for event in outcome.recorder.events if (event.kind, event.lane) == ("started", "draft")]
    started = [event for event in started if event.purpose == "answer"]
    assert len(started) == num_drafts


def test_a_draft_that_is_all_answer_is_not_picked() -> None:
    outcome = picked(Scores(answer=0.9), "The answer is 4.")
    assert outcome.text == OWN
    assert {verdict.decision for verdict in outcome.recorder.verdicts} == {"unknown"}


# Where the thinking ends ---------------------------------------------------------------------


def test_behind_the_end_of_thinking_the_target_writes_and_the_draft_stops() -> None:
    chain = "So.\n\nAnd so.\n</think>\n\n" + "The answer, at great length, is 4. " * 50
    outcome = picked(Scores(So=0.9), chain)
    assert outcome.text == "So.\n\nAnd so.\n</think>\n\nMy answer."
    assert origins(outcome) == ["draft", "draft", "target"]
    assert outcome.recorder.draft_usage.num_generated_tokens < 150
    assert outcome.left_running == 0


def test_thinking_that_ends_with_the_text_leaves_its_last_step_to_the_target() -> None:
    outcome = picked(Scores(So=0.9), "So.\n\nAnd so.\n</think>\nThe answer is 4.")
    assert outcome.text == "So.\n\nMy own second.\n\nMy answer."


def test_an_empty_end_is_no_answer() -> None:
    """A draft that ends with a blank line has its answer before that."""
    outcome = picked(Scores(Chain=0.9), CHAINS[0] + "\n\n")
    assert outcome.text == "Chain one.\n\nIt goes on.\n\nMy answer."


# The same answers where the drafts are the target's own ---------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.7, 1.0]),
    depth=st.integers(0, 2),
    width=st.integers(1, 3),
    budget=st.integers(1, 120),
    step_max_tokens=st.sampled_from([3, 7, 512]),
    judge_whole=st.booleans(),
    stops=st.sampled_from([(), ("sang.\n\nThen",), ("The end",), ("birds",), ("g.\n\nThe",)]),
    other_tokens=st.booleans(),
)
def test_where_only_the_targets_own_thinking_is_likely_the_answer_is_its_own(
    seed: int,
    agreement: float,
    depth: int,
    width: int,
    budget: int,
    step_max_tokens: int,
    judge_whole: bool,
    stops: tuple[str, ...],
    other_tokens: bool,
) -> None:
    scripts = StoryScript(seed), StoryScript(seed, agreement)
    alone = solve(autoregressive, *scripts, max_tokens=budget, stops=stops)
    outcome = solve(
        scot(depth=depth, width=width, step_max_tokens=step_max_tokens, judge_whole=judge_whole),
        *scripts,
        max_tokens=budget,
        stops=stops,
        draft_tokenizer=ScriptedTokenizer(r"\n+|\w+|\s|.") if other_tokens else None,
    )
    assert outcome.tokens == alone.tokens
    assert outcome.text == alone.text
    assert outcome.left_running == 0


@pytest.mark.parametrize("other_tokens", [False, True])
def test_a_draft_of_the_targets_own_words_is_only_read(other_tokens: bool) -> None:
    outcome = solve(
        scot(),
        StoryScript(3),
        StoryScript(3),
        draft_tokenizer=ScriptedTokenizer(r"\n+|\w+|\s|.") if other_tokens else None,
    )
    assert origins(outcome) == ["draft"] * 6 + ["target"]
    usage = outcome.recorder.target_usage
    assert usage.num_generated_tokens == len(outcome.steps[-1].tokens)
    assert usage.num_scored_tokens >= sum(len(step.tokens) for step in outcome.steps[:-1])
    assert {step.tokenizer_id for step in outcome.steps} == {ScriptedTokenizer().tokenizer_id}


def test_without_drafts_the_draft_does_nothing() -> None:
    outcome = solve(scot(depth=0), StoryScript(1), StoryScript(1, 0.0))
    assert outcome.recorder.draft_usage.num_generated_tokens == 0
    engine = ScriptedEngine("target", StoryScript(0))
    assert scot(depth=0)(engine, engine).loss_class == "exact"
    assert scot()(engine, engine).loss_class == "routed"


# Counting, failing, leaving ------------------------------------------------------------------


def test_all_work_of_the_drafts_is_counted_and_what_does_not_stand_as_discarded() -> None:
    outcome = picked(Scores(one=0.6, two=0.9, three=0.7))
    tokenizer = ScriptedTokenizer()
    usage = outcome.recorder.draft_usage
    of_chains = sum(len(tokenizer.encode(chain)) + 1 for chain in CHAINS)
    assert usage.num_generated_tokens >= of_chains
    stands = sum(len(step.tokens) for step in outcome.steps if step.origin == "draft")
    # What is written ahead for the target's answer is counted too, and is of use or not.
    assert of_chains - stands <= usage.num_discarded_tokens <= usage.num_generated_tokens - stands


def test_a_draft_engine_that_fails_leaves_the_target_alone() -> None:
    outcome = solve(scot(), StoryScript(1), StoryScript(1), draft_fails_after=5)
    assert outcome.text == solve(autoregressive, StoryScript(1), StoryScript(1)).text
    assert {step.origin for step in outcome.steps} == {"target"}
    assert "draft: scripted failure" in str(outcome.recorder.draft_failure)
    assert outcome.left_running == 0


@pytest.mark.parametrize("stop_after", [1, 6, 7])
def test_abandoning_a_solution_leaves_nothing_running(stop_after: int) -> None:
    outcome = solve(scot(), StoryScript(3), StoryScript(3), stop_after=stop_after, target_seconds=0.002)
    assert len(outcome.steps) == stop_after
    assert outcome.left_running == 0


@pytest.mark.parametrize("verdict_seconds", [0.0, 5.0], ids=["while drafting", "while judging"])
async def test_a_solution_cancelled_before_the_pick_leaves_nothing_running(verdict_seconds: float) -> None:
    target = ScriptedEngine("target", StoryScript(3))
    draft = ScriptedEngine("draft", StoryScript(3, num_steps=200), seconds_per_pass=0.002)
    await target.start()
    await draft.start()
    prompt = Prefix(target.tokenizer.encode(PROMPT))
    request = SolveRequest(PROMPT, prompt, prompt, 10_000)
    recorder = Recorder()
    verifier = Says("accept", verdict_seconds, deadline=10)

    async def first_step() -> None:
        async for _ in scot(verifier)(target, draft).solve(request, recorder):
            break

    solving = asyncio.create_task(first_step())
    for _ in range(6_000):
        await asyncio.sleep(0.01)
        # In so many passes each draft writes several steps: verdicts are under way as well.
        if (await draft.stats()).num_passes >= 80:
            break
    solving.cancel()
    with suppress(asyncio.CancelledError):
        await solving
    assert (await target.stats()).num_running + (await draft.stats()).num_running == 0
    usage = recorder.draft_usage
    assert 0 < usage.num_generated_tokens == usage.num_discarded_tokens < 5_000
    await target.close()
    await draft.close()


def test_a_verifier_that_only_compares_is_refused_with_the_remedy() -> None:
    engine = ScriptedEngine("target", StoryScript(0))
    with pytest.raises(SettingsError, match="likelihood"):
        Scot(StrategySettings(), engine, engine, ExactVerifier())
