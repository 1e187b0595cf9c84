"""A server stores the target's own answers and tries versions of its draft; a worse one is rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from reason_spec.accelerator import Accelerator, GenerationRequest
from reason_spec.accelerator.adaptation import (
    DraftAdaptation,
    Outcome,
    draft_to_adapt,
    open_adaptation,
    standard_errors,
)
from reason_spec.accelerator.answer_store import ANSWERS, AnswerStore
from reason_spec.control.budget import SpeculationBudget
from reason_spec.engines.draft_versions import DraftVersion, DraftVersions, VersionInfo
from reason_spec.engines.pruned import CONFIG, WEIGHTS, find_pruned
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.engines.weights import identify_model
from reason_spec.errors import SettingsError
from reason_spec.settings import EngineSettings, Settings, load_settings
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.types import Constraint
from tests.engines.tiny_models import save_model

one_loop = pytest.mark.asyncio(loop_scope="module")

INFO = VersionInfo(parent=0, tokens_per_pass_before=1.0, tokens_per_pass=2.0)
WINDOW = 8
good_draft = pytest.mark.parametrize("learning", [True], indirect=True, ids=["good draft"])
bad_draft = pytest.mark.parametrize("learning", [False], indirect=True, ids=["bad draft"])


def write_layers(target: Path, folder: Path, *, good: bool) -> Path:
    """Write a draft with all layers of the target, which is the target itself, or with wrong weights."""
    folder.mkdir(parents=True)
    weights = {
        name: tensor.clone() if good else 0.5 * tensor.roll(1, 0)
        for name, tensor in load_file(target / "model.safetensors").items()
        if name.startswith(("model.layers.", "model.norm."))
    }
    save_file(weights, folder / WEIGHTS)
    (folder / CONFIG).write_text(f'{{"base": "{target}", "layers": [0, 1]}}')
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield save_model("llama", folder / "target")


def settings_for(target: Path, draft: Path, **more: object) -> Settings:
    flags = {
        "target.model": str(target), "draft.model": str(draft), "target.device": "cpu", "draft.device": "cpu",
        "target.cache_tokens": 2048, "draft.cache_tokens": 2048, "load_control.use": "off",
        "strategy.name": "speculative", "sampling.max_tokens": 24,
    }  # fmt: skip
    return load_settings(flags={**flags, **{name.replace("__", "."): value for name, value in more.items()}})


def learning_settings(target: Path, draft: Path, **more: object) -> Settings:
    learns = {"server__learn_folder": str(draft.parent / "answers"), "server__learn_excludes": "private"}
    return settings_for(target, draft, **learns | more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def accelerator(target: Path) -> AsyncIterator[Accelerator]:
    """Engines that all tests share; the layers of the draft are those of the last test."""
    draft = write_layers(target, target.parent / "draft", good=True)
    async with Accelerator.from_settings(settings_for(target, draft)) as accelerator:
        yield accelerator


class Learning:
    """An accelerator whose draft adapts, with a small window; ``outcomes`` are those of versions.

    ``seed`` draws the prompts: those of other tests would be drafted from the answers to them.
    """

    def __init__(self, accelerator: Accelerator, target: Path, draft: Path, seed: str) -> None:
        self.accelerator, self.target, self.draft = accelerator, target, draft
        found = find_pruned(str(draft))
        assert found is not None
        self.versions = DraftVersions(found)
        self.outcomes: list[Outcome] = []
        engine = accelerator.draft
        assert isinstance(engine, TorchEngine)
        self.engine = engine
        key = StoreKey(identify_model("target", EngineSettings(model=str(target))), tokenizer_of(accelerator))
        self.store = AnswerStore.create(draft.parent / "answers", key)
        self.adaptation = accelerator.bundle.adaptation = DraftAdaptation(
            self.store, self.versions, accelerator.target, self.engine, "default", ["private"],
            self.outcomes.append, WINDOW,
        )  # fmt: skip
        self.seed = seed
        self.rng = Random(seed)

    async def serve(self, count: int) -> set[str]:
        """Answer random prompts, with a step of the adaptation after each."""
        texts = set()
        for _ in range(count):
            prompt = tuple(self.rng.randrange(60, 120) for _ in range(6))
            texts.add((await self.accelerator.answer(GenerationRequest(prompt=prompt))).text)
            await self.adaptation.step()
        return texts

    async def serve_drafted(self, count: int) -> None:
        """Answer prompts until so many had drafts: those of a draft that is too late do not count."""
        for _ in range(4 * count + 60):
            await self.serve(1)
            (newest,) = self.store.newest(1)
            count -= newest.acceptance_rate is not None
            if not count:
                return
        raise AssertionError("hardly an answer had drafts")

    def publish(self, *, good: bool) -> DraftVersion:
        made = write_layers(self.target, self.draft.parent / "made", good=good)
        return self.versions.publish(made, INFO)


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def tokenizer_of(accelerator: Accelerator) -> str:
    return accelerator.target.tokenizer.tokenizer_id


@pytest_asyncio.fixture(loop_scope="module")
async def learning(
    request: pytest.FixtureRequest, accelerator: Accelerator, target: Path, tmp_path: Path
) -> AsyncIterator[Learning]:
    draft = write_layers(target, tmp_path / "draft", good=request.param)
    learning = Learning(accelerator, target, draft, request.node.name)
    await learning.engine.load_layers(draft / WEIGHTS)
    yield learning
    accelerator.bundle.adaptation = None
    await learning.adaptation.close()


@good_draft
@one_loop
async def test_a_worse_version_is_rolled_back_and_a_damaged_one_refused(learning: Learning) -> None:
    damaged = learning.publish(good=True)
    damaged.layers.write_bytes(damaged.layers.read_bytes()[:-8])
    await learning.serve_drafted(WINDOW - 1)
    assert learning.outcomes == []
    await learning.serve_drafted(1)
    assert learning.outcomes == ["refused"]
    assert learning.adaptation.version == 0

    worse = learning.publish(good=False)
    await learning.serve_drafted(1)
    assert learning.adaptation.version == worse.number == 2
    await learning.serve_drafted(2 * WINDOW)
    assert learning.outcomes == ["refused", "rejected"]
    assert learning.adaptation.version == 0
    (kept,) = learning.versions.all()
    assert kept.verdict is not None
    assert not kept.verdict.accepted
    assert kept.verdict.rate is not None
    assert kept.verdict.rate_before is not None
    assert kept.verdict.rate < 0.5 < kept.verdict.rate_before
    await learning.serve_drafted(WINDOW)
    rates = {answer.version: answer.acceptance_rate for answer in learning.store.newest(99)}
    assert rates.keys() == {0, 2}
    assert rates[0] is not None
    assert rates[0] > 0.9


@bad_draft
@one_loop
async def test_a_better_version_stays_and_is_loaded_at_the_next_start(learning: Learning) -> None:
    await learning.serve_drafted(WINDOW)
    better = learning.publish(good=True)
    await learning.serve_drafted(2 * WINDOW + 1)
    assert learning.outcomes == ["accepted"]
    assert learning.versions.current.number == learning.adaptation.version == better.number
    again = DraftAdaptation(learning.store, learning.versions, learning.accelerator.target, learning.engine)
    await again.start()
    assert again.version == better.number
    better.layers.write_bytes(b"damaged")
    await again.start()
    assert learning.versions.current.number == 0


@good_draft
@one_loop
async def test_only_finished_answers_in_the_targets_own_words_are_stored(learning: Learning) -> None:
    answer = learning.accelerator.answer
    prompt = tuple(range(65, 80))
    solution = await answer(GenerationRequest(prompt=prompt, tenant="ana"))
    await answer(GenerationRequest(prompt=prompt, tenant="private"))
    await answer(GenerationRequest(prompt=prompt, constraint=Constraint(choice=("a", "b"))))
    await answer(GenerationRequest(prompt=prompt, strategy="specreason", verifier="likelihood"))
    steps = learning.accelerator.solve(GenerationRequest(prompt=prompt, max_tokens=200))
    await anext(steps)
    await steps.aclose()
    (stored,) = learning.store.newest(9)
    tokens = tuple(token for step in solution.steps for token in step.tokens)
    assert (stored.prompt, stored.answer, stored.tenant) == (prompt, tokens, "ana")
    await learning.serve_drafted(1)
    (newest,) = learning.store.newest(1)
    assert newest.num_accepted > 0


@good_draft
@one_loop
async def test_nothing_is_learned_from_an_inserted_text_on(learning: Learning) -> None:
    generator = learning.accelerator.generator
    request = GenerationRequest(prompt=tuple(range(65, 80)))
    steps = (await learning.accelerator.answer(request)).steps
    learned = learning.adaptation.begin(generator.resolve(request), generator.strategy())
    assert learned is not None
    for step in (steps[0], replace(steps[0], origin="inserted"), *steps):
        learned.add(step)
    learned.finish(SpeculationBudget())
    (newest,) = learning.store.newest(1)
    assert newest.answer == steps[0].tokens


@good_draft
@one_loop
async def test_the_answers_do_not_depend_on_the_version(learning: Learning) -> None:
    expected = await learning.serve(2 * WINDOW + 4)
    learning.rng.seed(learning.seed)
    learning.publish(good=False)
    assert await learning.serve(2 * WINDOW + 4) == expected
    # Answers whose draft was late do not count for the window.
    await learning.serve_drafted(2 * WINDOW)
    assert learning.outcomes == ["rejected"]


@good_draft
@one_loop
async def test_a_folder_that_fails_is_left_and_answers_go_on(
    learning: Learning, caplog: pytest.LogCaptureFixture
) -> None:
    learning.store.close()
    assert len(await learning.serve(2)) == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "answers are not stored for the draft any more" in warning
    assert f"{ANSWERS}: cannot be used" in warning


@one_loop
async def test_off_by_default_nothing_is_written(accelerator: Accelerator, target: Path) -> None:
    await accelerator.answer("How many?")
    assert accelerator.bundle.adaptation is None
    assert not [name for name in files_below(target.parent) if name.endswith(".sqlite")]
    assert files_below(target.parent / "draft") == {CONFIG, WEIGHTS}


@good_draft
@one_loop
async def test_opening_deletes_the_answers_of_excluded_tenants(learning: Learning) -> None:
    accelerator = learning.accelerator
    for tenant in ("ana", "ben"):
        await accelerator.answer("How many?", tenant=tenant)
    excluding = learning_settings(learning.target, learning.draft, server__learn_excludes="ana")
    found = draft_to_adapt(excluding, accelerator.generator.strategy())
    opened = await open_adaptation(excluding, found, accelerator.target, accelerator.draft, lambda _: None)
    await opened.close()
    assert [answer.tenant for answer in learning.store.newest(9)] == ["ben"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"draft__model": "embedded"}, "no draft to adapt: name one that 'draft train' made"),
        ({"strategy__name": "prompt_lookup"}, "a strategy that uses it, such as --strategy speculative"),
        ({"strategy__name": "lookahead"}, "strategy lookahead may change them. Use --strategy speculative"),
    ],
)
def test_settings_under_which_nothing_can_be_learnt_are_refused(
    target: Path, tmp_path: Path, more: dict[str, object], message: str
) -> None:
    settings = learning_settings(target, write_layers(target, tmp_path / "draft", good=True), **more)
    with pytest.raises(SettingsError, match=message):
        draft_to_adapt(settings, Accelerator.from_settings(settings).generator.strategy())


def test_a_difference_is_measured_in_its_standard_errors() -> None:
    low, high = [0.4, 0.5, 0.6, 0.5], [0.8, 0.9, 1.0, 0.9]
    assert standard_errors(high, low) == pytest.approx(-0.4 / (2 * 0.02 / 3 / 4) ** 0.5)
    assert standard_errors(high, high) == 0.0
    assert -2.0 < standard_errors([0.9] * 8, [0.895] * 8) < 0.0
