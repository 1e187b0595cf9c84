"""What drafts inside the target's engine: answers stay the target's, drafts are those of the training."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reason_spec.engines.eagle_files import is_head
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch import eagle_drafts, layer_skipping
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.eagle_drafts import EagleDrafts
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.layer_skipping import WINDOW, LayerSkipping, SkipSearch
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.sequence_drafter import DraftRates, SequenceDrafter
from reason_spec.engines.torch.sublayers import layers_of
from reason_spec.engines.torch.texts import SharedArray
from reason_spec.engines.torch.token_drafts import _TRY_EVERY, DraftLane, DraftModel, TokenDrafts
from reason_spec.errors import EngineError, UnsupportedModelError
from reason_spec.lab.drafts import head_student
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.lab.drafts.texts import IGNORED, TrainingText
from reason_spec.pair import embedded_path
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import TorchSettings
from reason_spec.speculation.tree_shapes import DraftTreeName
from reason_spec.suffix.base import Proposal
from reason_spec.types import NoiseKey, Prefix, Sampling, TokenDrafterName
from tests.engines.tiny_models import save_model

PROMPT = tuple(range(40, 70))
SLOTS = 2048


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny random models never draft well; here they draft all the same."""
    monkeypatch.setattr(TokenDrafts, "_pays", lambda *_: True)


@pytest.fixture(params=["fused", "module"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Model]:
    folder = save_model("llama", tmp_path / "target")
    settings = EngineSettings(
        model=str(folder), cache_tokens=SLOTS, torch=TorchSettings(layers=request.param), device="cpu"
    )
    return str(folder), load_model(settings)


def made_head(folder: str, place: Path, vocabulary: list[int] | None = None) -> HeadStudent:
    student = HeadStudent(folder, folder, vocabulary, torch.device("cpu"))
    place.mkdir(exist_ok=True)
    student.save(place)
    return student


def write(
    model: Model, folder: str, drafter: DraftModel | None, requests: list[EngineRequest]
) -> list[tuple[int, ...]]:
    scheduler = Scheduler(
        model, load_tokenizer(folder, None), num_slots=SLOTS, debug=True, draft_model=drafter
    )
    found: dict[int, Any] = {}
    for number, request in enumerate(requests):
        scheduler.submit(number, request)
    while scheduler.has_work:
        found.update(scheduler.step().results)
    if drafter is not None:
        assert sum(result.usage.num_drafted_tokens for result in found.values()) > 0
    return [found[number].tokens for number in range(len(requests))]


def requests_of(temperature: float, token_drafter: TokenDrafterName = "none") -> list[EngineRequest]:
    """Three texts at once; two of them share their prompt."""
    return [
        EngineRequest(
            Prefix(prompt),
            40,
            sampling=Sampling(temperature=temperature, noise=NoiseKey(seed=3, problem=index)),
            token_drafter=token_drafter,
            model_drafts=True,
            num_draft_tokens=4,
        )
        for index, prompt in enumerate((PROMPT, PROMPT, (*PROMPT[:7], 9, 8, 7)))
    ]


@pytest.mark.usefixtures("always_worth_it")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["self", "head"])
def test_drafts_do_not_change_the_tokens(
    target: tuple[str, Model], kind: str, temperature: float, tmp_path: Path
) -> None:
    folder, model = target
    expected = write(model, folder, None, requests_of(temperature))
    drafter: DraftModel
    if kind == "self":
        drafter = LayerSkipping(folder, model)
    else:
        made_head(folder, tmp_path / "head")
        drafter = EagleDrafts("head", EagleHead.load(tmp_path / "head"), model, SLOTS)
    for source in ("none", "prompt_lookup", "recycling", "stand"):
        assert write(model, folder, drafter, requests_of(temperature, source)) == expected
    for draft_tree in ("chain", "eagle2", "sequoia"):
        requests = [
            replace(request, draft_tree=draft_tree) for request in requests_of(temperature, "recycling")
        ]
        assert write(model, folder, drafter, requests) == expected
    requests = [replace(request, refusal_threshold=0.3) for request in requests_of(temperature)]
    assert write(model, folder, drafter, requests) == expected


@pytest.mark.usefixtures("always_worth_it")
@pytest.mark.parametrize(("draft_tree", "chunk"), [("greedy", 512), ("eagle2", 512), ("greedy", 8)])
def test_a_head_drafts_what_it_would_have_drafted_in_training(
    target: tuple[str, Model],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    draft_tree: DraftTreeName,
    chunk: int,
) -> None:
    folder, model = target
    monkeypatch.setattr(eagle_drafts, "_PREFILL_CHUNK", chunk)
    vocabulary = list(range(0, model.vocab_size, 2))
    student = made_head(folder, tmp_path / "head", vocabulary)
    head = EagleHead.load(tmp_path / "head")
    # The stored weights are rounded, and so are sums in bfloat16: both sides take the former in float32.
    student._head.load_state_dict(head.state_dict())
    monkeypatch.setattr(head_student, "_STATE_DTYPE", torch.float32)
    monkeypatch.setattr(torch, "autocast", lambda *_args, **_options: torch.enable_grad())
    seen: list[tuple[tuple[int, ...], int, torch.Tensor]] = []
    run = EagleDrafts.run

    def record(self: EagleDrafts, lanes: list[DraftLane]) -> torch.Tensor:
        logits = run(self, lanes)
        for row, lane in enumerate(lanes):
            text = tuple(lane.sequence.tokens.values.tolist()) + tuple(lane.tokens)
            seen.append((text, len(lane.tokens), logits[row, vocabulary].clone()))
        return logits

    monkeypatch.setattr(EagleDrafts, "run", record)
    requests = [replace(request, draft_tree=draft_tree) for request in requests_of(0.0)[:2]]
    write(model, folder, EagleDrafts("head", head, model, SLOTS), requests)
    assert {num_drafted for _, num_drafted, _ in seen} == {0, 1, 2, 3}
    for text, num_drafted, logits in seen[:24]:
        # One more token, which the head can predict, so that the last place of the text has a loss.
        batch = [TrainingText(text[:1], (*text[1:], 0))]
        expected, _, places = student.draft_steps(batch, num_drafted + 1)[num_drafted]
        row = int((places[0, : len(text)] != IGNORED).sum()) - 1
        torch.testing.assert_close(logits, expected[row].detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("always_worth_it")
def test_a_head_reads_a_long_prompt_in_pieces_between_the_passes_of_others(
    target: tuple[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = target
    chunk = 16
    long = Prefix(tuple(number % 200 for number in range(12 * chunk)))
    requests = [
        replace(request, prefix=prefix)
        for request, prefix in zip(requests_of(0.0), (Prefix(PROMPT), long), strict=False)
    ]
    expected = write(model, folder, None, requests)
    made_head(folder, tmp_path / "head")
    monkeypatch.setattr(eagle_drafts, "_PREFILL_CHUNK", chunk)
    pieces: list[int] = []
    prefill = EagleDrafts._prefill

    def record(self: EagleDrafts, sequence: GenerationSequence, start: int) -> None:
        pieces[-1] += 1
        prefill(self, sequence, start)

    monkeypatch.setattr(EagleDrafts, "_prefill", record)
    head = EagleDrafts("head", EagleHead.load(tmp_path / "head"), model, SLOTS)
    scheduler = Scheduler(model, load_tokenizer(folder, None), num_slots=SLOTS, draft_model=head)
    results: dict[int, Any] = {}
    for number, request in enumerate(requests):
        scheduler.submit(number, request)
    while scheduler.has_work:
        pieces.append(0)
        results.update(scheduler.step().results)
    assert [results[number].tokens for number in range(2)] == expected
    assert max(pieces) == 1
    assert sum(pieces) >= 12
    assert all(results[number].usage.num_drafted_tokens > 0 for number in range(2))


def test_training_on_its_own_drafts_makes_chains_longer(tmp_path: Path) -> None:
    folder = str(save_model("llama", tmp_path / "target"))
    texts = [TrainingText((60, start, 61), tuple(range(start, start + 12))) for start in range(65, 95)]
    student = HeadStudent(folder, folder, None, torch.device("cpu"))
    # The target is random and does not write these texts: its own distribution is no goal here.
    student._target_head = torch.zeros_like(student._target_head)
    optimizer = torch.optim.Adam(student.parameters, 3e-3)
    before = student.loss(texts)[0].item()
    for _ in range(20):
        optimizer.zero_grad()
        loss, num_tokens = student.loss(texts)
        (loss / num_tokens).backward()
        optimizer.step()
    assert student.loss(texts)[0].item() < before
    agreement = student.agreement([texts], 4)
    assert list(agreement.accepted) == sorted(agreement.accepted, reverse=True)


def test_a_skipping_model_that_skips_nothing_is_the_target(target: tuple[str, Model]) -> None:
    folder, model = target
    skipping = LayerSkipping(folder, model)
    assert skipping.speed(frozenset(), 1.0) == pytest.approx(1.0, abs=0.01)
    every = frozenset(skipping._candidates)
    assert skipping.speed(every, 0.9) > skipping.speed(every, 0.5)


@pytest.mark.usefixtures("always_worth_it")
def test_a_search_finds_better_layers_and_the_next_start_begins_with_them(
    target: tuple[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = target
    kept = tmp_path / "kept.json"
    drafter = LayerSkipping(folder, model, kept, clock=itertools.count(0.0, 0.5).__next__)
    # Every candidate that skips more is better, and at the start nothing is skipped.
    monkeypatch.setattr(drafter, "_matchness", lambda *_: 0.9)
    monkeypatch.setattr(drafter, "_start", frozenset)
    long = [EngineRequest(Prefix(PROMPT), WINDOW + 100, model_drafts=True, num_draft_tokens=2)]
    write(model, folder, drafter, long)
    best = drafter._tasks[""].best
    assert drafter.speed(best, 0.9) > drafter.speed(frozenset(), 0.9)
    assert LayerSkipping(folder, model, kept)._tasks[""].best == best
    kept.write_text("{damaged")
    assert LayerSkipping(folder, model, kept)._tasks == {}


def test_processes_that_keep_layers_in_one_file_keep_each_others(
    target: tuple[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = target
    kept = tmp_path / "layer_skipping" / "kept.json"
    monkeypatch.setattr(layer_skipping, "MAX_TASKS", 3)
    first, second = (LayerSkipping(folder, model, kept) for _ in range(2))
    for drafter, scope in ((first, "a"), (second, "b"), (first, "c"), (second, "d"), (first, "c")):
        drafter._tasks[scope] = SkipSearch(frozenset(drafter._candidates[:1]))
        drafter._save(scope)
    assert list(LayerSkipping(folder, model, kept)._tasks) == ["b", "d", "c"]
    assert not list(kept.parent.glob("*.tmp"))


def test_processes_that_keep_layers_at_the_same_time_lose_none(
    target: tuple[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = target
    kept = tmp_path / "kept.json"
    first, second = (LayerSkipping(folder, model, kept) for _ in range(2))
    first._tasks["a"] = second._tasks["b"] = SkipSearch(frozenset(first._candidates[:1]))
    load, loaded, saved = first._load, threading.Event(), threading.Event()

    def load_and_wait() -> dict[str, SkipSearch]:
        found = load()
        loaded.set()
        # Without a lock the other one writes now, and what it keeps is lost.
        saved.wait(0.2)
        return found

    def save_second() -> None:
        assert loaded.wait(20)
        second._save("b")
        saved.set()

    monkeypatch.setattr(first, "_load", load_and_wait)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(save_second)
        first._save("a")
        other.result()
    assert list(LayerSkipping(folder, model, kept)._tasks) == ["a", "b"]


def test_drafts_that_never_pay_are_tried_again(
    target: tuple[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = target
    monkeypatch.setattr(TokenDrafts, "_pays", lambda *_: False)
    scheduler = Scheduler(
        model, load_tokenizer(folder, None), num_slots=SLOTS, draft_model=LayerSkipping(folder, model)
    )
    num_passes = 2 * _TRY_EVERY + 10
    scheduler.submit(1, EngineRequest(Prefix(PROMPT), num_passes, model_drafts=True))
    results: dict[int, Any] = {}
    while scheduler.has_work:
        results.update(scheduler.step().results)
    assert sum(results[1].usage.acceptance_histogram) == 2, "two passes with drafts"


def test_a_head_of_another_model_is_refused(target: tuple[str, Model], tmp_path: Path) -> None:
    folder, model = target
    made_head(folder, tmp_path / "head")
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert is_head(tmp_path / "head")
    assert not is_head(Path(folder))
    head = EagleHead.load(tmp_path / "head")
    object.__setattr__(head.config, "vocab_size", 7)
    with pytest.raises(EngineError, match="made for"):
        EagleDrafts("head", head, model, SLOTS)
    (tmp_path / "head" / "config.json").write_text(json.dumps(config | {"hidden_size": "wide"}))
    with pytest.raises(EngineError, match="hidden_size"):
        EagleHead.load(tmp_path / "head")
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    (tmp_path / "head" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(EngineError, match="train it again"):
        EagleHead.load(tmp_path / "head")


def test_layers_unlike_llama_are_refused(tmp_path: Path) -> None:
    settings = EngineSettings(model=str(save_model("gpt2", tmp_path / "gpt2")), cache_tokens=SLOTS)
    with pytest.raises(UnsupportedModelError, match="not made like Llama"):
        layers_of("gpt2", load_model(settings).module)
    with pytest.raises(UnsupportedModelError, match="not made like Llama"):
        HeadStudent(settings.model, "gpt2", None, torch.device("cpu"))


def test_a_threshold_of_refusal_ends_drafts_where_one_is_likely() -> None:
    tokens, chances = tuple(range(8)), tuple(0.9**length for length in range(1, 9))
    for threshold, length in ((0.05, 2), (0.3, 4), (1.0, 8)):
        drafter = drafter_of(EngineRequest(Prefix(PROMPT), 40, refusal_threshold=threshold))
        drafts = (
            Proposal(tokens[:count], tuple(range(-1, count - 1)), chances[:count]) for count in range(1, 8)
        )
        ended = next((len(draft.tokens) for draft in drafts if drafter.is_long_enough(draft)), 8)
        assert ended == length
    without = drafter_of(EngineRequest(Prefix(PROMPT), 40))
    assert not without.is_long_enough(Proposal(tokens, tuple(range(-1, 7)), chances))


def drafter_of(request: EngineRequest) -> SequenceDrafter:
    tokens = SharedArray()
    tokens.extend(PROMPT)
    tokenizer = load_tokenizer(str(embedded_path("target")), None)
    output = RequestOutput(request, tokenizer, 100)
    return SequenceDrafter(request, tokens, output, TokenChoice(request), None, DraftRates(64))
