"""Versions of a draft are loaded between two passes, refused where they do not fit, and kept in order."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from reason_spec.engines import model_package
from reason_spec.engines.draft_versions import DraftVersions, VersionInfo, VersionVerdict
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.pruned import CONFIG, WEIGHTS, PrunedDraft, find_pruned
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import TorchSettings
from reason_spec.types import Prefix
from tests.engines.test_pruned import serve, write_draft
from tests.engines.tiny_models import save_model, write

one_loop = pytest.mark.asyncio(loop_scope="module")

PROMPT = Prefix((65, 66, 67, 68))
INFO = VersionInfo(parent=0, tokens_per_pass_before=2.0, tokens_per_pass=2.5)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrunedDraft]:
    folder = tmp_path_factory.mktemp("models")
    # Its norms are copied by the fused layers.
    base = save_model("qwen3", folder / "base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        found = find_pruned(str(write_draft(base, folder / "draft", {})))
        assert found is not None
        yield found


@pytest.fixture
def own_draft(draft: PrunedDraft, tmp_path: Path) -> PrunedDraft:
    """A copy whose folder takes versions."""
    found = find_pruned(str(shutil.copytree(draft.folder, tmp_path / "draft")))
    assert found is not None
    return found


def other_layers(draft: PrunedDraft, folder: Path, factor: float = 1.3) -> Path:
    """Write the draft with other weights."""
    folder.mkdir(parents=True)
    weights = load_file(draft.folder / WEIGHTS)
    save_file({name: factor * weight.roll(1, 0) for name, weight in weights.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_bytes((draft.folder / CONFIG).read_bytes())
    return folder


def engine_of(folder: Path, layers: Literal["auto", "module"] = "auto") -> TorchEngine:
    own = TorchSettings(layers=layers)
    model = resolve_model("draft", str(folder))
    return TorchEngine("draft", EngineSettings(model=model, device="cpu", cache_tokens=512, torch=own))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(draft: PrunedDraft) -> AsyncIterator[TorchEngine]:
    """An engine that each test leaves with the layers of the draft."""
    found = engine_of(draft.folder)
    await found.start()
    yield found
    await found.close()


async def text(engine: TorchEngine, length: int = 30) -> tuple[int, ...]:
    return (await engine.submit(EngineRequest(PROMPT, length)).result()).tokens


@one_loop
async def test_loaded_layers_write_as_a_model_of_its_own_with_them_and_outlive_their_worker(
    draft: PrunedDraft, engine: TorchEngine, tmp_path: Path
) -> None:
    other = other_layers(draft, tmp_path / "other")
    before = await text(engine)
    await engine.load_layers(other / WEIGHTS)
    after = await text(engine)
    assert after == write(serve(other), EngineRequest(PROMPT, len(after))).tokens
    assert after != before
    engine.keep_alive()
    assert engine.worker_pid is not None
    os.kill(engine.worker_pid, signal.SIGKILL)
    while engine.num_deaths == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await engine.recovered()
    assert await text(engine) == after
    await engine.load_layers(draft.folder / WEIGHTS)
    assert await text(engine) == before


async def test_layers_of_a_model_that_is_not_fused_are_replaced_too(
    draft: PrunedDraft, tmp_path: Path
) -> None:
    other = other_layers(draft, tmp_path / "other")
    engine = engine_of(draft.folder, "module")
    await engine.start()
    try:
        await engine.load_layers(other / WEIGHTS)
        after = await text(engine)
    finally:
        await engine.close()
    assert after == write(serve(other), EngineRequest(PROMPT, len(after))).tokens


@one_loop
async def test_a_request_under_way_ends_and_later_ones_begin_anew(
    draft: PrunedDraft, engine: TorchEngine, tmp_path: Path
) -> None:
    other = other_layers(draft, tmp_path / "other")
    await engine.load_layers(other / WEIGHTS)
    expected = await text(engine)
    await engine.load_layers(draft.folder / WEIGHTS)
    running = engine.submit(EngineRequest(PROMPT, 200))
    await anext(aiter(running))
    await engine.load_layers(other / WEIGHTS)
    assert await text(engine) == expected
    assert len((await running.result()).tokens) == 200
    assert await text(engine) == expected
    await engine.load_layers(draft.folder / WEIGHTS)


@one_loop
async def test_damaged_layers_are_refused_and_the_present_ones_stay(
    draft: PrunedDraft, engine: TorchEngine, tmp_path: Path
) -> None:
    before = await text(engine)
    norm = "model.norm.weight"
    damages: list[tuple[str, Callable[[Path], object]]] = [
        ("cannot be read", lambda file: file.write_bytes(file.read_bytes()[:-100])),
        ("cannot be read", lambda file: file.unlink()),
        (f"other layers: {norm}", lambda file: rewrite(file, norm, None)),
        (r"another size: .* is \[5\] instead of", lambda file: rewrite(file, norm, torch.ones(5))),
        ("is not finite", lambda file: rewrite(file, norm, torch.full((32,), torch.nan))),
    ]
    for number, (message, damage) in enumerate(damages):
        file = other_layers(draft, tmp_path / str(number)) / WEIGHTS
        damage(file)
        with pytest.raises(EngineError, match=message):
            await engine.load_layers(file)
        assert await text(engine) == before


def rewrite(file: Path, name: str, value: torch.Tensor | None) -> None:
    weights = load_file(file)
    del weights[name]
    if value is not None:
        weights[name] = value
    save_file(weights, file)


def test_the_newest_accepted_version_is_current_and_older_ones_are_deleted(
    own_draft: PrunedDraft, tmp_path: Path
) -> None:
    versions = DraftVersions(own_draft)
    assert (versions.current.number, versions.current.layers) == (0, own_draft.folder / WEIGHTS)
    verdicts = [True, False, True, False]
    for number, accepted in enumerate(verdicts, start=1):
        made = versions.publish(other_layers(own_draft, tmp_path / "made"), INFO)
        assert versions.untried == made
        versions.check(made)
        versions.decide(made, VersionVerdict(accepted=accepted, reason="tried"))
        assert made.number == number
    assert versions.current.number == 3
    assert versions.untried is None
    assert versions.current.info is not None
    assert versions.current.info.tokens_per_pass == INFO.tokens_per_pass
    assert [one.number for one in versions.all()] == [3, 4]


def test_versions_of_a_draft_that_was_trained_again_are_not_used(
    own_draft: PrunedDraft, tmp_path: Path
) -> None:
    versions = DraftVersions(own_draft)
    made = versions.publish(other_layers(own_draft, tmp_path / "made"), INFO)
    versions.decide(made, VersionVerdict(accepted=True, reason="tried"))
    versions.note_seen(7, 40)
    assert (versions.current.number, versions.last_seen(7), versions.last_seen(8)) == (1, 40, 0)
    shutil.copyfile(made.layers, own_draft.folder / WEIGHTS)
    again = DraftVersions(own_draft)
    assert (again.all(), again.current.number, again.last_seen(7)) == ([], 0, 0)
    newer = again.publish(other_layers(own_draft, tmp_path / "made"), INFO)
    assert again.all() == [newer]
    assert newer.number == 2
    assert not made.folder.exists()


def test_versions_of_a_packaged_draft_are_in_the_users_folder(
    own_draft: PrunedDraft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(model_package, "packaged_folders", lambda: {"models:tiny": own_draft.folder})
    packaged = find_pruned("models:tiny")
    assert packaged is not None
    made = DraftVersions(packaged).publish(other_layers(own_draft, tmp_path / "made"), INFO)
    assert made.folder == tmp_path / "data" / "reason-spec" / "versions" / "tiny" / "1"
    DraftVersions(packaged).check(made)
    assert {path.name for path in own_draft.folder.iterdir()} == {CONFIG, WEIGHTS}


def test_a_version_with_a_damaged_verdict_or_other_layers_is_not_used(
    own_draft: PrunedDraft, tmp_path: Path
) -> None:
    versions = DraftVersions(own_draft)
    made = versions.publish(other_layers(own_draft, tmp_path / "made"), INFO)
    (made.folder / "verdict.json").write_text("{")
    assert versions.current.number == 0
    assert versions.untried is None
    config = (made.folder / CONFIG).read_text()
    (made.folder / CONFIG).write_text(config.replace('"layers": [1]', '"layers": [0]'))
    with pytest.raises(EngineError, match="other layers or another vocabulary"):
        versions.check(made)
