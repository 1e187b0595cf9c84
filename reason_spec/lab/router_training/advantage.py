"""Label drafted steps with the advantage of the target's own step, to train routers on.

Both models write the next step from the same text, and each of the two steps gets a value (Arbitrage, arXiv
2512.05033, section 4.2): a reward model's score, or the share of right answers among continuations after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.engines.base import has_digit
from reason_spec.engines.generation import EngineRequest
from reason_spec.errors import DataError, EngineError, first_mistake
from reason_spec.evaluation.prompts import messages_for, noise_key, stops_for
from reason_spec.evaluation.record_folder import problem_key
from reason_spec.routers.features import StepFeatures
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.step_tokens import step_from_result
from reason_spec.tasks.grading import Grader
from reason_spec.types import NoiseKey, Origin, Prefix, Problem, Sampling, Step
from reason_spec.verifiers.base import VerificationContext, Verifier

Label: TypeAlias = Literal["rollouts", "reward"]
_ROLLOUT_SAMPLE = 1 << 20
"""First sample number of the noise of continuations, beyond those of answers."""


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """A drafted step, the target's own at the same place, and the value of each, from 0 to 1.

    ``problem`` is the `problem_key` of its problem. ``text_before`` holds the steps before both. ``logprobs``
    are the draft's own at temperature 1, ``has_digit`` marks its tokens with a digit. Values are None where
    both steps are the same text. ``reward`` is a reward model's score of the drafted step, where there is one
    and the step was not cut off.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    problem: str
    question: str
    text_before: str
    step_index: int
    num_prefix_tokens: int
    drafted: str
    own: str
    ends_text: bool
    logprobs: tuple[float, ...]
    has_digit: tuple[bool, ...]
    num_own_tokens: int
    value_drafted: float | None = None
    value_own: float | None = None
    reward: float | None = None

    @property
    def advantage(self) -> float:
        """The gain in value if the target writes the step."""
        if self.value_own is None or self.value_drafted is None:
            return 0.0
        return self.value_own - self.value_drafted

    @property
    def features(self) -> StepFeatures:
        """The features of the drafted step that a router sees."""
        return StepFeatures.of_step(
            self.drafted,
            self.logprobs,
            self.has_digit,
            question=self.question,
            text_before=self.text_before,
            step_index=self.step_index,
            num_prefix_tokens=self.num_prefix_tokens,
            ends_text=self.ends_text,
        )

    @classmethod
    def from_json(cls, record: object) -> LabelledStep:
        """Read what ``asdict`` made of a step.

        Raises:
            ValueError: a field is missing, unknown or of another kind.
        """
        try:
            step = TypeAdapter(cls).validate_python(record)
        except ValidationError as error:
            raise ValueError(f"no labelled step: {first_mistake(error)}") from None
        if len(step.logprobs) != len(step.has_digit):
            raise ValueError(f"{len(step.logprobs)} logprobs and {len(step.has_digit)} has_digit")
        return step


@dataclass(frozen=True, slots=True)
class LabelOptions:
    """How steps are labelled; ``temperature`` is that of the continuations."""

    label: Label = "rollouts"
    rollouts: int = 4
    temperature: float = 0.7


class Labeller:
    """Solves problems and labels each drafted step on the way.

    At each place the better step is kept, the draft's where both are equal: a good router meets such places.
    ``reward``, where given, scores every drafted step.
    """

    def __init__(
        self, accelerator: Accelerator, options: LabelOptions, grader: Grader, reward: Verifier | None
    ) -> None:
        assert accelerator.draft is not None, "labels are those of drafted steps"
        self._settings = accelerator.settings
        self._target, self._draft = accelerator.target, accelerator.draft
        self._options = options
        self._grader = grader
        self._reward = reward

    async def label(self, problem: Problem) -> list[LabelledStep]:
        """Solve a problem and return its steps, labelled.

        Raises:
            DataError: rollouts are to be graded, and the problem has no answer.
            EngineError: an engine failed.
        """
        if problem.answer is None and self._options.label == "rollouts":
            raise DataError(f"problem {problem.id!r} has no answer: label its steps with a reward model")
        place = self._asked(problem)
        labelled: list[LabelledStep] = []
        while True:
            drafted, own = await asyncio.gather(self._write("draft", place), self._write("target", place))
            step = await self._compare(problem, place, drafted, own)
            labelled.append(step)
            kept = own if step.advantage > 0 else drafted
            place = place.after((kept,), self._target, self._draft)
            if kept.ends_text or place.max_tokens < 1:
                return labelled

    def _asked(self, problem: Problem) -> SolveRequest:
        messages = messages_for(problem, self._settings)
        sampling = self._settings.sampling
        return SolveRequest(
            problem.question,
            Prefix(self._target.tokenizer.encode_chat(messages)),
            Prefix(self._draft.tokenizer.encode_chat(messages)),
            sampling.max_tokens,
            sampling.for_sample(noise_key(problem), 0),
            self._settings.boundary.to_boundary(),
            stops_for(self._settings),
        )

    async def _write(self, lane: Origin, place: SolveRequest) -> Step:
        engine = self._draft if lane == "draft" else self._target
        prompt = place.draft_prompt if lane == "draft" else place.target_prompt
        assert prompt is not None
        request = replace(_to_the_end(place, prompt, place.sampling), boundary=place.boundary)
        return step_from_result(await engine.submit(request).result(), lane, engine)

    async def _compare(self, problem: Problem, place: SolveRequest, drafted: Step, own: Step) -> LabelledStep:
        tokenizer = self._draft.tokenizer
        if drafted.logprobs is None:
            raise EngineError(
                f"engine {self._draft.name!r} returns no log-probabilities, which routers read: take a "
                "server that returns token ids, as vLLM does, or run the draft here"
            )
        step = LabelledStep(
            problem=problem_key(problem),
            question=problem.question,
            text_before=place.text_before,
            step_index=place.num_steps_before,
            num_prefix_tokens=len(place.target_prompt),
            drafted=drafted.text,
            own=own.text,
            ends_text=drafted.ends_text,
            logprobs=drafted.logprobs,
            has_digit=tuple(has_digit(tokenizer, token) for token in drafted.tokens),
            num_own_tokens=len(own.tokens),
        )
        if self._reward is not None and drafted.finish != "length":
            step = replace(step, reward=await self._rewarded(self._reward, place, drafted))
        if (drafted.text, drafted.ends_text) == (own.text, own.ends_text):
            return step
        values = await asyncio.gather(self._value(problem, place, drafted), self._value(problem, place, own))
        return replace(step, value_drafted=values[0], value_own=values[1])

    async def _value(self, problem: Problem, place: SolveRequest, step: Step) -> float:
        if self._options.label == "reward":
            if step.finish == "length":
                # It took all tokens that were left.
                return 0.0
            assert self._reward is not None, "labels by reward were asked for without a reward model"
            return await self._rewarded(self._reward, place, step)
        rest = place.after((step,), self._target, self._draft)
        if step.ends_text or rest.max_tokens < 1:
            return await self._graded(problem, rest.text_before)
        numbers = range(self._options.rollouts)
        texts = await asyncio.gather(*(self._continue(problem, rest, number) for number in numbers))
        grades = [await self._graded(problem, rest.text_before + text) for text in texts]
        return sum(grades) / len(grades)

    async def _continue(self, problem: Problem, place: SolveRequest, number: int) -> str:
        noise = NoiseKey(self._settings.sampling.seed, noise_key(problem), _ROLLOUT_SAMPLE + number)
        sampling = Sampling(self._options.temperature, noise=noise)
        request = _to_the_end(place, place.target_prompt, sampling)
        return (await self._target.submit(request).result()).text

    async def _graded(self, problem: Problem, text: str) -> float:
        assert problem.answer is not None
        return float((await self._grader.grade_async(text, problem.answer, problem.task)).correct is True)

    async def _rewarded(self, reward: Verifier, place: SolveRequest, step: Step) -> float:
        context = VerificationContext(
            place.question, place.text_before, place.target_prompt, place.num_steps_before
        )
        verdict = await reward.verify(context, step)
        if verdict.score is None:
            raise DataError(f"the reward model gave a step no score: {verdict.reason}")
        return verdict.score


def _to_the_end(place: SolveRequest, prompt: Prefix, sampling: Sampling) -> EngineRequest:
    """Return the request for the rest of an answer."""
    return EngineRequest(
        prompt,
        place.max_tokens,
        sampling,
        stops=place.stops,
        stop_context=place.stop_context(place.text_before),
        stream=False,
    )
