"""Sampling with either layer keeps the distribution of the embedded target, as plain transformers has it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from reason_spec.accelerator import Accelerator
from reason_spec.engines.base import Engine, Tokenizer
from reason_spec.engines.generation import (
    EngineRequest,
    Generation,
    GenerationResult,
    Score,
)
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch import acceptor
from reason_spec.engines.torch.eagle_drafts import EagleDrafts
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.engines.torch.layer_skipping import LayerSkipping
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.token_drafts import DraftModel, TokenDrafts
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.pair import SAMPLE_PATH, embedded_path
from reason_spec.settings import EngineSettings, SuffixSettings, load_settings
from reason_spec.speculation.acceptance import Accepted, accept
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.tree import TokenTree
from reason_spec.strategies.suffix_session import SuffixCacheSessions
from reason_spec.suffix.scopes import SuffixCaches
from reason_spec.types import NoiseKey, Prefix, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.engines.tiny_models import drain
from tests.naive_suffix import naive_caches

QUESTIONS = [json.loads(line)["question"] for line in SAMPLE_PATH.read_text().splitlines()]
NUM_SAMPLES = 600
NUM_SLOTS = 4096
SMALLEST_EXPECTED = 5.0
"""A cell of the chi-square test holds at least so many samples on average; smaller ones are joined."""
ALARM = 1e-4

Pair = tuple[int, int]


@dataclass
class Served:
    """A model of the pair, in this process."""

    model: Model
    tokenizer: Tokenizer

    def scheduler(self, **options: Any) -> Scheduler:
        return Scheduler(self.model, self.tokenizer, num_slots=NUM_SLOTS, **options)


def serve(role: Any) -> Served:
    torch.set_num_threads(1)
    folder = str(embedded_path(role))
    return Served(load_model(EngineSettings(model=folder, cache_tokens=NUM_SLOTS)), load_tokenizer(folder))


@pytest.fixture(scope="module")
def target() -> Served:
    return serve("target")


@pytest.fixture(scope="module")
def draft() -> Served:
    return serve("draft")


# --- the target's own distribution ---------------------------------------------------------------------


@dataclass
class Truth:
    """Probabilities of the first two tokens behind a question's prompt, from the module's softmax."""

    question: str
    prompt: tuple[int, ...]
    temperature: float
    cells: dict[Pair, float] = field(default_factory=dict)

    def sampling(self, sample: int) -> Sampling:
        return Sampling(self.temperature, noise=NoiseKey(seed=11, sample=sample))

    def p_value(self, pairs: Iterable[Pair]) -> float:
        """Return the chi-square test's p of samples; pairs that are no cell make one together."""
        counted = Counter(pair if pair in self.cells else None for pair in pairs)
        assert counted.total() == NUM_SAMPLES
        found = [counted[pair] for pair in self.cells] + [counted[None]]
        shares = [*self.cells.values(), 1.0 - sum(self.cells.values())]
        return float(chisquare(found, np.array(shares) * NUM_SAMPLES).pvalue)

    def likely_pair(self, rank: int) -> Pair:
        return sorted(self.cells, key=self.cells.__getitem__)[-rank]


def plain_module(role: Any) -> Any:
    import transformers as tf

    return tf.AutoModelForCausalLM.from_pretrained(
        embedded_path(role), dtype=torch.float32, attn_implementation="eager"
    ).eval()


def last_logits(module: Any, texts: list[tuple[int, ...]]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = module(torch.tensor(texts)).logits[:, -1].double()
    return logits


@pytest.fixture(scope="module")
def truth(target: Served) -> Truth:
    """The truth for the question on which the models differ most."""
    module, draft_module = plain_module("target"), plain_module("draft")

    def difference(question: str) -> float:
        prompt = target.tokenizer.encode_chat([{"role": "user", "content": question}])
        own, other = (torch.softmax(last_logits(m, [prompt]), -1) for m in (module, draft_module))
        return float((own - other).abs().sum())

    question = max(QUESTIONS, key=difference)
    prompt = target.tokenizer.encode_chat([{"role": "user", "content": question}])
    return truth_after(prompt, module, question)


def truth_after(prompt: tuple[int, ...], module: Any, question: str = "") -> Truth:
    """Return the truth at the temperature that spreads the samples best."""
    (first_logits,) = last_logits(module, [prompt])
    firsts = first_logits.topk(24).indices.tolist()
    second_logits = last_logits(module, [(*prompt, token) for token in firsts])
    truths = []
    for temperature in (1.0, 1.5, 2.0, 2.5):
        p_first = torch.softmax(first_logits / temperature, -1)[firsts]
        p_pair = p_first[:, None] * torch.softmax(second_logits / temperature, -1)
        truth = Truth(question, prompt, temperature)
        for row, column in (p_pair * NUM_SAMPLES >= SMALLEST_EXPECTED).nonzero().tolist():
            truth.cells[firsts[row], column] = float(p_pair[row, column])
        if sum(truth.cells.values()) < 1 - SMALLEST_EXPECTED / NUM_SAMPLES:
            truths.append(truth)
    best = max(truths, key=lambda truth: len(truth.cells))
    assert len(best.cells) >= 5, "no temperature spreads the first two tokens"
    return best


# --- token level ---------------------------------------------------------------------------------------


@dataclass
class Sampled:
    pairs: list[Pair]
    num_drafted: int
    num_accepted: int


def sample_with_hints(target: Served, truth: Truth, **options: Any) -> Sampled:
    """Sample three tokens from the target's scheduler, with a likely pair as the hint."""
    hint = truth.likely_pair(3)
    return sample(
        target.scheduler(**options), truth, EngineRequest(Prefix(truth.prompt), 3, hint=hint, stream=False)
    )


def sample(scheduler: Scheduler, truth: Truth, request: EngineRequest) -> Sampled:
    for number in range(NUM_SAMPLES):
        scheduler.submit(number, replace(request, sampling=truth.sampling(number)))
    results = [r for _, r in sorted(drain(scheduler).items()) if isinstance(r, GenerationResult)]
    return Sampled(
        # A text that ends with its first token has no second one; it belongs to no cell.
        [(*r.tokens, -1)[:2] for r in results],  # type: ignore[misc]
        sum(r.usage.num_drafted_tokens for r in results),
        sum(r.usage.num_accepted_draft_tokens for r in results),
    )


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20], ids=["checked in passes", "from kept predictions"])
def test_token_level_speculation_keeps_the_targets_distribution(
    target: Served, truth: Truth, kept_bytes: int
) -> None:
    sampled = sample_with_hints(target, truth, kept_prediction_bytes=kept_bytes)
    # A token that is chosen from a kept prediction needs no pass, and so has no draft that one checked.
    assert (sampled.num_drafted >= NUM_SAMPLES) == (kept_bytes == 0)
    assert 0 < sampled.num_accepted < sampled.num_drafted
    assert truth.p_value(sampled.pairs) > ALARM


@pytest.mark.parametrize(
    "asked", [{"token_drafter": "recycling"}, {"token_drafter": "stand"}, {"siblings": "problem"}]
)
def test_recycled_predictions_keep_the_targets_distribution(
    target: Served, truth: Truth, asked: dict[str, Any]
) -> None:
    """The table is filled by the samples themselves; its drafts share the noise of the sample."""
    request = EngineRequest(Prefix(truth.prompt), 3, stream=False, **asked)
    sampled = sample(target.scheduler(kept_prediction_bytes=0), truth, request)
    assert 0 < sampled.num_accepted < sampled.num_drafted
    assert truth.p_value(sampled.pairs) > ALARM


def test_prompt_lookup_keeps_the_targets_distribution(target: Served, truth: Truth) -> None:
    """The end of the question stands there twice; what follows its first time is drafted for the second."""
    prompt = (*truth.prompt, *truth.likely_pair(1), *truth.prompt[-3:])
    truth = truth_after(prompt, plain_module("target"))
    request = EngineRequest(Prefix(prompt), 3, token_drafter="prompt_lookup", stream=False)
    sampled = sample(target.scheduler(kept_prediction_bytes=0), truth, request)
    assert 0 < sampled.num_accepted < sampled.num_drafted
    assert truth.p_value(sampled.pairs) > ALARM


@pytest.mark.parametrize("kind", ["head", "self"])
def test_drafts_of_a_model_in_the_engine_keep_the_targets_distribution(
    target: Served, truth: Truth, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drafting may not save time here; it is done all the same.
    monkeypatch.setattr(TokenDrafts, "_pays", lambda *_: True)
    monkeypatch.setattr(target.model, "tap", None)
    folder = str(embedded_path("target"))
    draft_model: DraftModel = LayerSkipping(folder, target.model)
    if kind == "head":
        # An untrained head that predicts likely tokens alone is right now and then.
        likely = sorted({token for pair in truth.cells for token in pair})
        HeadStudent(folder, folder, likely, torch.device("cpu")).save(tmp_path)
        draft_model = EagleDrafts("head", EagleHead.load(tmp_path), target.model, NUM_SLOTS)
    request = EngineRequest(Prefix(truth.prompt), 3, model_drafts=True, stream=False)
    sampled = sample(target.scheduler(kept_prediction_bytes=0, draft_model=draft_model), truth, request)
    assert 0 < sampled.num_accepted < sampled.num_drafted
    assert truth.p_value(sampled.pairs) > ALARM


@pytest.mark.slow
def test_drafts_from_earlier_texts_keep_the_targets_distribution(target: Served, truth: Truth) -> None:
    """What was written last for the prompt is drafted for the next sample."""
    earlier = EarlierTexts(naive_caches())
    scheduler = target.scheduler(kept_prediction_bytes=0, earlier=earlier)
    results = []
    for sample in range(NUM_SAMPLES):
        opening = [("prompt", truth.prompt)]
        earlier.begin(sample, "", "a", opening)  # type: ignore[arg-type]
        request = EngineRequest(Prefix(truth.prompt), 3, sampling=truth.sampling(sample), text=sample)
        scheduler.submit(sample, request)
        (result,) = drain(scheduler).values()
        assert isinstance(result, GenerationResult)
        earlier.extend(sample, result.tokens)
        earlier.close(sample)
        results.append(result)
    drafted = sum(result.usage.num_drafted_tokens for result in results)
    accepted = sum(result.usage.num_accepted_draft_tokens for result in results)
    assert drafted >= NUM_SAMPLES
    assert 0 < accepted < drafted
    assert truth.p_value((*result.tokens, -1)[:2] for result in results) > ALARM  # type: ignore[misc]


def test_the_test_notices_an_acceptance_that_is_too_kind(
    target: Served, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fifth draft is let through whatever the target says."""
    asked = iter(range(1 << 30))

    def kind(drafts: TokenTree, choose: Any) -> Accepted:
        def lenient(node: int, depth: int) -> int:
            let_through = node + 1 < len(drafts) and next(asked) % 5 == 0
            return drafts.tokens[node + 1] if let_through else int(choose(node, depth))

        return accept(drafts, lenient)

    monkeypatch.setattr(acceptor, "accept", kind)
    sampled = sample_with_hints(target, truth, kept_prediction_bytes=0)
    assert truth.p_value(sampled.pairs) < ALARM


# --- step level ----------------------------------------------------------------------------------------


class InProcessEngine(Engine):
    """A model of the pair behind the engines' contract, one pass every ``turns`` turns of the event loop.

    The workers of the real engine take turns as the machine lets them; here the draft is ahead of the
    target in every run alike.
    """

    has_costs: ClassVar[bool] = False

    def __init__(self, name: str, served: Served, turns: int) -> None:
        self.name = name
        self._served = served
        self._turns = turns
        self._scheduler = served.scheduler()
        self._generations: dict[int, Generation] = {}
        self._next_number = 0
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        return self._served.tokenizer

    @property
    def max_context(self) -> int:
        return self._served.model.max_context

    async def start(self) -> None:
        self._loop_task = asyncio.create_task(self._step_loop())

    async def close(self) -> None:
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)

    def submit(self, request: EngineRequest) -> Generation:
        number, self._next_number = self._next_number, self._next_number + 1
        generation = Generation(
            request,
            on_cancel=lambda: self._scheduler.cancel(number),
            on_hint=lambda hint: self._scheduler.offer_hint(number, hint),
        )
        self._generations[number] = generation
        self._scheduler.submit(number, request)
        return generation

    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        raise AssertionError("lookahead with these verifiers scores nothing")

    async def stats(self) -> EngineStats:
        return self._scheduler.stats()

    async def reset_prefix_cache(self) -> None:
        self._scheduler.reset_prefix_cache()

    async def _step_loop(self) -> None:
        while True:
            for _ in range(self._turns):
                await asyncio.sleep(0)
            if self._scheduler.has_work:
                for number, result in self._scheduler.step().results:
                    assert isinstance(result, GenerationResult)
                    self._generations.pop(number).finish(result)


class KindVerifier(Verifier):
    """Accepts every drafted step, which the class it claims does not allow."""

    name = "kind"
    loss_class = "exact"

    async def verify(  # type: ignore[misc]  # final: the rules are broken on purpose
        self, context: VerificationContext, drafted: Step, target: Step | None = None
    ) -> Verdict:
        return Verdict("accept")

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        raise AssertionError("every step was accepted before")


@asynccontextmanager
async def lookahead_over(
    target: Served, draft: Served, temperature: float, verifier: Verifier
) -> AsyncIterator[Accelerator]:
    flags = {
        "sampling.temperature": temperature,
        "sampling.max_tokens": 2,
        "sampling.seed": 11,
        "strategy.name": "lookahead",
        # Steps of one token: each of the two is decided by the verifier.
        "strategy.step_max_tokens": 1,
    }
    engines = InProcessEngine("target", target, 12), InProcessEngine("draft", draft, 1)
    async with Accelerator(load_settings(flags=flags), *engines, verifier) as accelerator:
        yield accelerator


@dataclass
class Lookahead:
    pairs: list[Pair]
    num_accepted: int
    num_refused: int


async def sample_with_lookahead(
    target: Served, draft: Served, truth: Truth, verifier: Verifier, suffix: SuffixCaches | None = None
) -> Lookahead:
    places = asyncio.Semaphore(24)
    async with lookahead_over(target, draft, truth.temperature, verifier) as accelerator:
        if suffix is not None:
            steps = SuffixSettings(use="steps")
            accelerator.bundle.suffix_sessions = SuffixCacheSessions(steps, suffix, accelerator.target)

        async def answer(sample: int) -> Any:
            async with places:
                return await accelerator.answer(truth.question, sample=sample)

        solutions = await asyncio.gather(*(answer(sample) for sample in range(NUM_SAMPLES)))
    verdicts = [verdict for solution in solutions for verdict in solution.recorder.verdicts]
    texts = [[token for step in solution.steps for token in step.tokens] for solution in solutions]
    if suffix is not None:
        verdicts = [verdict for solution in solutions for verdict in solution.recorder.cache_verdicts]
    num_accepted = sum(verdict.accepted for verdict in verdicts)
    pairs: list[Pair] = [(*text, -1)[:2] for text in texts]
    return Lookahead(pairs, num_accepted, len(verdicts) - num_accepted)


async def test_lookahead_with_the_exact_verifier_keeps_the_targets_distribution(
    target: Served, draft: Served, truth: Truth
) -> None:
    sampled = await sample_with_lookahead(target, draft, truth, ExactVerifier())
    assert sampled.num_accepted > NUM_SAMPLES / 10
    assert sampled.num_refused > NUM_SAMPLES / 10
    assert truth.p_value(sampled.pairs) > ALARM


async def test_steps_from_the_cache_keep_the_targets_distribution_under_the_exact_verifier(
    target: Served, draft: Served, truth: Truth
) -> None:
    sampled = await sample_with_lookahead(target, draft, truth, ExactVerifier(), naive_caches())
    assert sampled.num_accepted > NUM_SAMPLES / 20
    assert sampled.num_refused > NUM_SAMPLES / 20
    assert truth.p_value(sampled.pairs) > ALARM


async def test_the_test_notices_a_verifier_that_accepts_everything(
    target: Served, draft: Served, truth: Truth
) -> None:
    sampled = await sample_with_lookahead(target, draft, truth, KindVerifier())
    assert sampled.num_refused == 0
    assert truth.p_value(sampled.pairs) < ALARM
