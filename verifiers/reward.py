"""``reward``: a process reward model says how likely a solution is right up to a drafted step.

As in RSD (arXiv 2501.19324): a step stands where its reward reaches a threshold, 0.7 unless set otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from reason_spec.errors import SettingsError
from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.batching import Batcher, use_one_core

if TYPE_CHECKING:
    import torch

DEFAULT_THRESHOLD: Final = 0.7


class SoFar(NamedTuple):
    """A question, and the answer up to the end of the step in question."""

    question: str
    answer: str


Reward: TypeAlias = Callable[[Sequence[SoFar]], Sequence[float]]
"""From texts to rewards between 0 and 1, in order; called in one thread, with what waits at once."""


class RewardVerifier(Verifier):
    """Accepts a step whose reward reaches ``threshold``, rejects others.

    Args:
        load: returns the reward model; called once, in the thread that runs it.
    """

    name: str = "reward"
    loss_class: LossClass = "routed"
    judges_alone: bool = True
    compares: bool = False

    def __init__(
        self, load: Callable[[], Reward], threshold: float | None = None, deadline_seconds: float = 5.0
    ) -> None:
        super().__init__(deadline_seconds)
        self.threshold = DEFAULT_THRESHOLD if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            raise SettingsError(f"threshold of reward = {threshold!r}: a reward lies between 0 and 1")
        self._load = load
        self._reward: Reward | None = None
        self._batcher: Batcher[SoFar, float] = Batcher(self._rewards, "reward", initializer=use_one_core)

    async def start(self) -> None:
        if self._reward is None:
            await self._batcher.run(self._load_once)

    async def close(self) -> None:
        await self._batcher.close()
        self._reward = None

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        reward = await self._batcher.ask(SoFar(context.question, context.prefix_text + drafted.text))
        if not 0 <= reward <= 1:
            raise ValueError(f"a reward of {reward!r}; it has to lie between 0 and 1")
        return Verdict(
            "accept" if reward >= self.threshold else "reject",
            reward,
            cost_tokens=len(drafted.tokens),
            reason=f"reward {reward:.3f}, threshold {self.threshold:g}",
        )

    def _load_once(self) -> None:
        if self._reward is None:
            self._reward = self._load()

    def _rewards(self, texts: Sequence[SoFar]) -> Sequence[float]:
        assert self._reward is not None, "a reward was asked for before start"
        rewards = list(map(float, self._reward(texts)))
        if len(rewards) != len(texts):
            raise ValueError(f"the reward model gave {len(rewards)} rewards for {len(texts)} texts")
        return rewards


def load_classifier(model: str) -> Reward:
    """Load a sequence classifier of transformers as a reward model.

    It reads question and answer in its chat template. With one output the reward is its sigmoid, with two
    the chance of the second.

    Raises:
        SettingsError: it cannot be loaded, or has more outputs.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        module = AutoModelForSequenceClassification.from_pretrained(model).eval()
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise SettingsError(f"verifier.reward_model = {model!r} cannot be loaded: {first_line}") from None
    if module.config.num_labels not in (1, 2):
        raise SettingsError(
            f"verifier.reward_model = {model!r} has {module.config.num_labels} outputs; one or two are known"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    module.config.pad_token_id = tokenizer.pad_token_id

    @torch.inference_mode()
    def reward(texts: Sequence[SoFar]) -> list[float]:
        shown = [_render(tokenizer, text) for text in texts]
        encoded = tokenizer(shown, padding=True, return_tensors="pt", add_special_tokens=False)
        return _chances(module(**encoded).logits.float())

    return reward


def _render(tokenizer: Any, text: SoFar) -> str:
    if tokenizer.chat_template is None:
        return f"{text.question}\n\n{text.answer}"
    turns = [{"role": "user", "content": text.question}, {"role": "assistant", "content": text.answer}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False))


def _chances(logits: torch.Tensor) -> list[float]:
    chances = logits[:, 0].sigmoid() if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]
    return [float(chance) for chance in chances]
