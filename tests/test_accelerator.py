from __future__ import annotations

import asyncio

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.bundle import create_engines
from reason_spec.accelerator.cores import CoreAllocator, available_cores, share_out_cores
from reason_spec.engines.generation import Score
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.errors import EngineError, SettingsError
from reason_spec.settings import Settings, load_settings
from reason_spec.types import Prefix
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript


class CoreNotingEngine(ScriptedEngine):
    """Notes the cores it was given."""

    def __init__(self, name: str, script: StoryScript) -> None:
        super().__init__(name, script)
        self.cores: list[tuple[int, ...]] = []
        self.num_resets = 0

    async def set_cores(self, cores: tuple[int, ...]) -> None:
        self.cores.append(cores)

    async def reset_prefix_cache(self) -> None:
        self.num_resets += 1


class SlowOnOneCore(CoreNotingEngine):
    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        await asyncio.sleep(0.02 if self.cores[-1:] != [(0, 1)] else 0)
        return await super().score(prefix, continuation)


class BrokenEngine(ScriptedEngine):
    async def start(self) -> None:
        raise EngineError("no such model")


def make(settings: Settings | None = None, target: ScriptedEngine | None = None) -> Accelerator:
    return Accelerator(
        settings or Settings(),
        target or CoreNotingEngine("target", StoryScript(1)),
        CoreNotingEngine("draft", StoryScript(1, 0.5)),
        ExactVerifier(),
    )


async def test_every_strategy_gives_the_targets_answer_under_the_exact_verifier() -> None:
    async with make() as accelerator:
        answers = [
            await accelerator.answer("question", strategy=name)
            for name in ("autoregressive", "prompt_lookup", "lookahead")
        ]
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].text.endswith("The end.")
    assert {answer.loss_class for answer in answers} == {"exact"}


async def test_steps_stream_before_the_answer_is_complete() -> None:
    async with make() as accelerator:
        solving = accelerator.solve("question")
        first = await anext(solving)
        assert first.text.endswith("\n\n")
        await solving.aclose()
        assert (await accelerator.target.stats()).num_running == 0


async def test_a_part_that_cannot_start_is_reported_and_the_others_are_freed() -> None:
    accelerator = make(target=BrokenEngine("target", StoryScript(1)))
    with pytest.raises(EngineError, match="no such model"):
        await accelerator.start()
    assert isinstance(accelerator.draft, ScriptedEngine)
    assert accelerator.draft._loop_task is None


async def test_the_target_leaves_the_drafts_core_alone_only_while_there_is_a_draft() -> None:
    async with make() as accelerator:
        engine = accelerator.target
        assert isinstance(engine, CoreNotingEngine)
        cores = accelerator.bundle.cores = CoreAllocator(engine, beside_draft=(0,), every=(0, 1))
        cores.alone = (0, 1)
        await cores.use(cores.beside_draft)
        engine.cores.clear()
        before = engine.num_resets
        await accelerator.prepare("autoregressive")
        await accelerator.prepare("lookahead")
        assert engine.cores == [(0, 1), (0,)]
        assert engine.num_resets == before + 2


async def test_the_target_starts_on_every_core_and_leaves_the_drafts_before_the_first_answer() -> None:
    every = available_cores()
    engines = create_engines(Settings(), ["lookahead"])
    assert isinstance(engines.target, WorkerEngine)
    assert engines.target._cores == every
    async with make() as accelerator:
        engine = accelerator.target
        assert isinstance(engine, CoreNotingEngine)
        shares = share_out_cores(Settings(), every, with_draft=True)
        assert engine.cores == ([] if shares.target == every else [shares.target])


async def test_a_target_with_drafts_runs_on_the_cores_that_are_fastest_for_several_tokens() -> None:
    engine = SlowOnOneCore("target", StoryScript(1))
    async with make(target=engine) as accelerator:
        cores = accelerator.bundle.cores = CoreAllocator(engine, beside_draft=(0,), every=(0, 1))
        # An allocator takes its engine to be on all cores, where engines start; this one has moved since.
        await engine.set_cores(cores.every)
        await cores.calibrate()
        assert cores.drafting == (0, 1)
        await accelerator.prepare("prompt_lookup")
        assert engine.cores[-1] == (0, 1)


@pytest.mark.parametrize(
    ("flags", "cores", "expected"),
    [
        ({}, (0, 1), ((0,), (1,))),
        ({}, (0, 1, 2, 3), ((0, 1, 2), (3,))),
        ({}, (5,), ((5,), (5,))),
        ({"target.cores": [3]}, (0, 3), ((3,), (0,))),
        ({"draft.cores": [0]}, (0, 1, 2), ((1, 2), (0,))),
        ({"target.cores": [0], "draft.cores": [1]}, (0, 1, 2), ((0,), (1,))),
    ],
)
def test_two_engines_never_share_a_core_where_there_are_two(
    flags: dict[str, object], cores: tuple[int, ...], expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert share_out_cores(load_settings(flags=dict(flags)), cores, with_draft=True) == expected


@pytest.mark.parametrize("served", ["target", "draft"])
def test_beside_a_served_model_the_other_gets_every_core(served: str) -> None:
    flags = {f"{served}.kind": "remote", f"{served}.remote.base_urls": ["http://gpu-1:8000/v1"]}
    target, draft = share_out_cores(load_settings(flags=flags), (0, 1, 2), with_draft=True)
    assert (target if served == "draft" else draft) == (0, 1, 2)


def test_a_lone_target_gets_every_core() -> None:
    assert share_out_cores(Settings(), (0, 1), with_draft=False)[0] == (0, 1)


def test_an_unknown_strategy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="did you mean 'lookahead'"):
        Accelerator.from_settings(strategy__name="lookahed")


def test_a_router_that_needs_entropies_is_refused_where_the_draft_reports_none() -> None:
    flags = {"target.kind": "scripted", "draft.kind": "scripted", "router.name": "glimp"}
    accelerator = make(load_settings(flags=flags))
    with pytest.raises(SettingsError, match=r"'glimp' needs the entropy .* draft.kind = 'scripted'"):
        accelerator.generator.strategy("arbitrage")


@pytest.mark.parametrize("room", [1, 5, 12, 20, 33, 50])
async def test_an_answer_ends_where_the_context_is_full_under_every_strategy(room: int) -> None:
    script = StoryScript(1)
    prompt = ScriptedEngine("", script).tokenizer.encode_chat([{"role": "user", "content": "question"}])
    target = ScriptedEngine("target", script, max_context=len(prompt) + room)
    async with make(target=target) as accelerator:
        for name in ("autoregressive", "prompt_lookup", "lookahead"):
            answer = await accelerator.answer("question", strategy=name)
            assert answer.num_tokens == room
            assert answer.steps[-1].finish == "length"


async def test_a_prompt_that_fills_the_context_is_refused() -> None:
    async with make(target=ScriptedEngine("target", StoryScript(1), max_context=2)) as accelerator:
        with pytest.raises(EngineError, match="leaves no room for an answer"):
            await accelerator.answer("question", strategy="lookahead")
