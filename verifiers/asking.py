"""Verifiers that ask a model for one word: ``utility`` (0 to 9) and ``judge`` (aligned or unaligned).

Nothing is generated: the probabilities of all allowed answers are read at the first token. So a verdict has a
score, and it is ``unknown`` if the model would answer something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, Final, NamedTuple

from reason_spec.engines.base import Engine
from reason_spec.types import LossClass, Prefix, Step, Usage, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

_MIN_MASS: Final = 0.5
"""Least total probability of the allowed answers; below it the verdict is ``unknown``."""
_OPEN_THOUGHT: Final = "<think>"
_NO_THOUGHT: Final = "\n</think>\n\n"
_END_TOKENS: Final = 8
"""Tokens at the end of a prompt that are searched for an opened thought."""
_DIGITS: Final = tuple("0123456789")
_ALIGNED: Final = ("aligned", "unaligned")


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions to the model; a model trained as a judge has a wording of its own."""

    score: str = (
        "Judge only the last step of the reasoning above. Are its facts correct, does it follow from what "
        "stands before it, and does it bring the answer nearer? Reply with one digit from 0 (worthless) to "
        "9 (fully sound) and nothing else."
    )
    score_opening: str = "The score is: "
    compare: str = (
        "Two drafts of one step of a solution:\n\nFirst: {first}\n\nSecond: {second}\n\nCalculations, names, "
        "units and results count, wording does not. Reply aligned if both say the same; reply unaligned if "
        "they do not, or if it is too hard to tell."
    )
    compare_opening: str = ""


class _Answers(NamedTuple):
    chances: dict[str, float]
    """Probability of each answer, given that it is one of them."""
    mass: float
    """Probability that the answer is one of them."""
    work: Usage


class _OwnModel:
    """A model that a verifier starts and closes."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.engine: Engine | None = None
        self._make = make
        self._starting: asyncio.Future[None] | None = None

    async def start(self) -> None:
        if self._starting is None:
            self.engine = self._make()
            # If its worker ended for good, all later verdicts would be unknown.
            self.engine.keep_alive()
            self._starting = asyncio.ensure_future(self.engine.start())
        await asyncio.shield(self._starting)

    async def close(self) -> None:
        engine, self.engine, self._starting = self.engine, None, None
        if engine is not None:
            await engine.close()


class AskingVerifier(Verifier):
    """Asks the target, or a model of its own.

    Args:
        target: asked without ``make_model``; its owner starts and closes it.
        make_model: creates the model to ask; this verifier starts and closes it.
    """

    def __init__(
        self,
        target: Engine | None,
        threshold: float,
        deadline_seconds: float = 5.0,
        *,
        make_model: Callable[[], Engine] | None = None,
        questions: Questions | None = None,
    ) -> None:
        super().__init__(deadline_seconds)
        self.threshold: float = self.checked_threshold(threshold)
        self._target = target
        self.runs_on_target = self.judges_draft_only and make_model is None
        self._questions = questions or Questions()
        # One object for all copies with other thresholds.
        self._own = None if make_model is None else _OwnModel(make_model)

    @property
    def _model(self) -> Engine:
        model = self._target if self._own is None else self._own.engine
        assert model is not None, f"verifier {self.name} has no model to ask"
        return model

    async def start(self) -> None:
        if self._own is not None:
            await self._own.start()

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()

    async def _ask(self, prompt: Prefix, opening: str, answers: Sequence[str]) -> _Answers:
        """Return the probabilities of ``answers`` after a prompt, over all tokens of each."""
        tokenizer = self._model.tokenizer
        # A template that opens a thought wants it closed before the answer.
        end = tokenizer.decode_prompt(prompt.tokens_after(max(0, len(prompt) - _END_TOKENS))).rstrip()
        beginning = (_NO_THOUGHT if end.endswith(_OPEN_THOUGHT) else "") + opening
        if beginning:
            prompt = prompt.extend(tokenizer.encode(beginning))
        encoded = [tokenizer.encode(answer) for answer in answers]
        if all(len(tokens) == 1 for tokens in encoded):
            # All of them are read from the prediction of one token.
            score = await self._model.score_next(prompt, tuple(token for (token,) in encoded))
            chances, work = [exp(logprob) for logprob in score.logprobs], score.usage
        else:
            scores = await asyncio.gather(*(self._model.score(prompt, tokens) for tokens in encoded))
            chances = [exp(sum(score.logprobs)) for score in scores]
            work = sum((score.usage for score in scores), Usage())
        if self._own is not None:
            work = Usage()
        mass = sum(chances)
        shares = {
            answer: chance / mass if mass else 0.0 for answer, chance in zip(answers, chances, strict=True)
        }
        return _Answers(shares, mass, work)


class UtilityVerifier(AskingVerifier):
    """Scores a drafted step before the target has written anything (SpecReason, arXiv 2504.07891).

    ``score`` is the expected digit over 9, with ``greedy`` the most likely one. The question is a turn after
    the step, so that the target reuses the keys and values of everything before.
    """

    name: str = "utility"
    loss_class: LossClass = "routed"
    judges_draft_only: bool = True
    compares: bool = False

    def __init__(
        self, target: Engine | None, threshold: float, *args: Any, greedy: bool = False, **models: Any
    ) -> None:
        super().__init__(target, threshold, *args, **models)
        self._greedy = greedy

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        tokenizer = self._model.tokenizer
        if self._own is not None or context.target_prefix is None:
            asked = tokenizer.encode_chat([{"role": "user", "content": context.question}])
            before = Prefix(asked, owner=context.owner).extend(
                tokenizer.encode(context.prefix_text + drafted.text)
            )
        else:
            # The turn after it begins with the end of the text.
            ends_text = drafted.tokens[-1:] and drafted.tokens[-1] in tokenizer.eos_ids
            before = context.target_prefix.extend(drafted.tokens[:-1] if ends_text else drafted.tokens)
        prompt = before.extend(tokenizer.encode_turn(self._questions.score))
        answers = await self._ask(prompt, self._questions.score_opening, _DIGITS)
        expected = sum(int(digit) * chance for digit, chance in answers.chances.items())
        likeliest = max(answers.chances, key=answers.chances.__getitem__)
        reason = f"score {expected:.2f}, most likely {likeliest}"
        if answers.mass < _MIN_MASS:
            reason = f"no score: a digit comes with a chance of {answers.mass:.2f}"
            return Verdict("unknown", reason=reason, work=answers.work)
        score = (int(likeliest) if self._greedy else expected) / 9
        return Verdict(
            "accept" if score >= self.threshold else "reject",
            score,
            cost_tokens=len(drafted.tokens),
            reason=reason,
            work=answers.work,
        )


class JudgeVerifier(AskingVerifier):
    """Asks whether drafted step and target's step mean the same (Lookahead Reasoning, section 4.3).

    ``score`` is the probability of ``aligned`` against ``unaligned``.
    """

    name: str = "judge"
    loss_class: LossClass = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        if drafted.text == target.text:
            return Verdict("accept", 1.0, reason="same text")
        first, second = drafted.text.strip(), target.text.strip()
        question = self._questions.compare.format(first=first, second=second)
        asked = self._model.tokenizer.encode_chat([{"role": "user", "content": question}])
        prompt = Prefix(asked, owner=context.owner)
        answers = await self._ask(prompt, self._questions.compare_opening, _ALIGNED)
        if answers.mass < _MIN_MASS:
            reason = f"no judgement: aligned or unaligned come with a chance of {answers.mass:.2f}"
            return Verdict("unknown", reason=reason, work=answers.work)
        score = answers.chances["aligned"]
        return Verdict(
            "accept" if score >= self.threshold else "unknown",
            score,
            cost_tokens=len(prompt),
            reason=f"aligned with a chance of {score:.3f}",
            work=answers.work,
        )
