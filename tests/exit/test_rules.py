"""Live rules end a thinking where their trials say so, and go on wherever a trial is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import pytest

from reason_spec.engines.generation import Delta, EngineRequest, Generation
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.events import Recorder
from reason_spec.exit.policy import ExitMonitor, load_policy
from reason_spec.exit.probes import Position, ProbeLimits, Prober
from reason_spec.exit.rules import (
    DeerRule,
    DynasorRule,
    Exit,
    ExitRule,
    PolicyRule,
    ProbedPolicyRule,
    ReadStep,
)
from reason_spec.exit.trials import DEER_PROMPT, AnswerForm
from reason_spec.lab.virtual_time import VirtualTimeLoop
from reason_spec.types import Prefix, Sampling

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"
STEPS = (
    "Ana has 3 boxes of 4 apples, so she has 3 * 4 = 12 apples.\n\n",
    "She eats 2 of them: 12 - 2 = 10. So 10 apples are left.\n\n",
    "Wait, let me check that again. 3 * 4 = 12 and 12 - 2 = 10. Correct.\n\n",
    "Wait, maybe the boxes are full. No, they hold 4 apples each.\n\n",
    "Therefore, the answer is 10 apples.\n\n",
)
PROMPT = "question\n"


class Answers:
    """A script that answers the trial after each number of steps; it writes nothing else."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    def __call__(self, text: str, sampling: Sampling) -> str:
        thinking = text.removeprefix(PROMPT).removesuffix(DEER_PROMPT)
        num_steps = sum(thinking.count(step) for step in STEPS)
        return self.answers[min(num_steps, len(self.answers)) - 1]


class Unrated(ScriptedEngine):
    """Knows no log-probabilities, as a server without token ids."""

    def submit(self, request: EngineRequest) -> Generation:
        generation = super().submit(request)
        push = generation.push

        def push_unrated(delta: Delta) -> None:
            push(replace(delta, logprobs=(nan,) * len(delta.tokens)))

        generation.push = push_unrated  # type: ignore[method-assign]
        return generation


class Hangs(ScriptedEngine):
    """Takes requests and writes nothing until they are cancelled."""

    def submit(self, request: EngineRequest) -> Generation:
        generation = super().submit(request)
        self._running[-1].continuation = ()
        return generation

    def _advance(self, running: Any, drafts: tuple[int, ...]) -> None:
        return


@dataclass
class Outcome:
    found: Exit | None
    num_read: int
    recorder: Recorder
    left_running: int
    seconds: float


def follow(
    make: Callable[[Prober], ExitRule],
    *answers: str,
    kind: type[ScriptedEngine] = ScriptedEngine,
    fail_after: int | None = None,
    draft_answers: Sequence[str] = (),
    reads_on: bool = False,
) -> Outcome:
    """Read steps, one each 10 seconds, up to an exit."""

    async def run() -> Outcome:
        target = kind("target", Answers(*answers), seconds_per_pass=0.1, fail_after=fail_after)
        draft = ScriptedEngine("draft", Answers(*draft_answers or answers), seconds_per_pass=0.1)
        await target.start()
        await draft.start()
        recorder = Recorder()
        limits = ProbeLimits(20, 5.0, bool(draft_answers), confidence=0.9, reads_on=reads_on)
        form = AnswerForm.of(DEER_PROMPT)
        prober = Prober(target, draft, form, limits, Sampling(), recorder)
        rule, text, found, index = make(prober), PROMPT, None, 0
        try:
            for index, step in enumerate(STEPS):
                places = [
                    Position(
                        Prefix(target.tokenizer.encode(part)), Prefix(target.tokenizer.encode(part)), number
                    )
                    for number, part in ((index, text), (index + 1, text + step))
                ]
                text += step
                await asyncio.sleep(10)
                found = await rule.read(ReadStep(step, len(target.tokenizer.encode(step)), *places))
                if found is not None:
                    break
            seconds = asyncio.get_running_loop().time()
            await rule.close()
            left = (await target.stats()).num_running + (await draft.stats()).num_running
        finally:
            await target.close()
            await draft.close()
        return Outcome(found, index + 1, recorder, left, seconds)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def deer(prober: Prober) -> ExitRule:
    return DeerRule(prober, confidence=0.95, most_probes=10)


def dynasor(agreeing: int) -> Callable[[Prober], ExitRule]:
    return lambda prober: DynasorRule(prober, every=10, agreeing=agreeing)


def probed(threshold: float, **changes: Any) -> Callable[[Prober], ExitRule]:
    numbers = {"least_chance": 0.1, "confidence": 0.9, "agreeing": 2, "most_probes": 10, **changes}

    def make(prober: Prober) -> ExitRule:
        policy = load_policy().model_copy(update={"threshold": threshold})
        return ProbedPolicyRule(ExitMonitor(policy, QUESTION), prober, **numbers)

    return make


def test_deer_ends_before_the_step_that_would_reconsider() -> None:
    outcome = follow(deer, "{12}", "{10}")
    assert outcome.found == Exit("10", 1.0, keeps_step=False)
    assert outcome.num_read == 3
    assert outcome.recorder.num_probes == 1
    assert outcome.left_running == 0


def test_deer_goes_on_without_an_answer_and_asks_at_each_turn() -> None:
    outcome = follow(deer, "I do not know.")
    assert (outcome.found, outcome.recorder.num_probes) == (None, 2)
    once = follow(lambda prober: DeerRule(prober, confidence=0.95, most_probes=1), "no")
    assert (once.found, once.recorder.num_probes) == (None, 1)


def test_without_log_probabilities_a_trial_is_never_confident() -> None:
    assert follow(deer, "{12}", "{10}", kind=Unrated).found is None
    assert follow(probed(1.0), "{10}", kind=Unrated).found is None
    assert follow(dynasor(2), "{10}", kind=Unrated).found == Exit("10", 0.0)


def test_dynasor_ends_when_the_last_trials_agree() -> None:
    outcome = follow(dynasor(3), "{12}", "{10}", "{10}", "{10}")
    assert outcome.found == Exit("10", 1.0)
    # The trial after the fourth step is known when the fifth is read.
    assert outcome.num_read == 5


@pytest.mark.parametrize("answers", [("{12}", "{10}"), ("{10} wait",), ("",)])
def test_dynasor_goes_on_where_trials_differ_doubt_or_are_empty(answers: tuple[str, ...]) -> None:
    outcome = follow(dynasor(4), *answers, reads_on=True)
    assert outcome.found is None
    assert outcome.recorder.num_probes >= 4


def test_the_policy_needs_no_trial() -> None:
    policy = load_policy().model_copy(update={"threshold": 0.5})
    outcome = follow(lambda prober: PolicyRule(ExitMonitor(policy, QUESTION)), "{12}")
    assert outcome.found is not None
    assert (outcome.found.answer, outcome.recorder.num_probes) == ("10", 0)
    assert outcome.found.chance >= 0.5


def test_agreeing_trials_let_the_policy_end_below_its_threshold() -> None:
    alone = follow(probed(1.0, most_probes=1), "{10}")
    assert alone.found is None
    outcome = follow(probed(1.0), "{10}")
    assert outcome.found is not None
    assert outcome.found.answer == "10"


def test_a_trial_with_another_answer_holds_the_policy_back() -> None:
    assert follow(probed(0.5), "{10}").found is not None
    assert follow(probed(0.5), "{11}").num_read > follow(probed(0.5), "{10}").num_read


def test_after_the_last_trial_only_the_text_decides() -> None:
    outcome = follow(probed(0.5, most_probes=1), "{11}")
    assert outcome.recorder.num_probes == 1
    assert outcome.found is not None
    assert outcome.found.answer == "10"
    assert outcome.num_read == follow(probed(0.5), "{10}").num_read


@pytest.mark.parametrize("make", [deer, dynasor(2), probed(1.0)])
@pytest.mark.parametrize("trouble", [{"kind": Hangs}, {"fail_after": 0}])
def test_trials_that_hang_or_fail_never_end_a_thinking(
    make: Callable[[Prober], ExitRule], trouble: dict[str, Any]
) -> None:
    outcome = follow(make, "{10}", **trouble)
    assert outcome.found is None
    assert outcome.num_read == len(STEPS)
    assert outcome.recorder.num_probes > 0
    assert outcome.left_running == 0
    # A trial is given five seconds.
    assert outcome.seconds <= 10 * len(STEPS) + 5 * outcome.recorder.num_probes


@pytest.mark.parametrize(("drafted", "ends", "num_probes"), [("{10}", True, 2), ("no", False, 2)])
def test_the_target_confirms_only_what_the_draft_is_sure_of(
    drafted: str, ends: bool, num_probes: int
) -> None:
    outcome = follow(deer, "{10}", draft_answers=(drafted,))
    assert (outcome.found is not None) == ends
    assert outcome.recorder.num_probes == num_probes
    assert (outcome.recorder.target_usage.num_passes > 0) == ends
    assert outcome.recorder.draft_usage.num_passes > 0


def test_the_target_has_the_last_word() -> None:
    assert follow(deer, "I do not know.", draft_answers=("{10}",)).found is None


def test_tokens_of_trials_are_counted_and_shown_in_the_timeline() -> None:
    recorder = follow(deer, "{10}").recorder
    assert recorder.num_probe_tokens == recorder.target_usage.num_generated_tokens > 0
    marks = [(event.kind, event.purpose) for event in recorder.events]
    assert marks == [("started", "probe"), ("written", None)]


def test_a_context_without_room_for_a_trial_is_no_error() -> None:
    async def run() -> Any:
        target = ScriptedEngine("target", Answers("{10}"), max_context=4)
        prober = Prober(
            target, None, AnswerForm.of(DEER_PROMPT), ProbeLimits(20, 5.0), Sampling(), Recorder()
        )
        return await prober.begin(Position(Prefix((1, 2)), None, 1))

    assert asyncio.run(run()).answer is None


def test_dynasor_ignores_a_trial_without_an_answer() -> None:
    assert follow(dynasor(2), "{10}", "no answer", "{10}").found == Exit("10", 1.0)
