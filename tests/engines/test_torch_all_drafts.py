"""All sources of drafts at once, over several architectures: no text changes by a token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.engines.torch.eagle_drafts import EagleDrafts
from reason_spec.engines.torch.eagle_head import EagleHead
from reason_spec.engines.torch.layer_skipping import LayerSkipping
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.engines.torch.token_drafts import DraftModel, TokenDrafts
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.settings import EngineSettings
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.tree_shapes import DraftTreeName
from reason_spec.types import Acceptance, NoiseKey, Prefix, Sampling, TokenDrafterName
from tests.engines.tiny_models import LENGTH, NUM_PROMPTS, drain, prompt, save_model, spoiled
from tests.naive_suffix import naive_caches

NUM_SLOTS = 2048
STRICT = (Acceptance(), Acceptance("cascade", 0.0), Acceptance("lenient", 1.0, 2))
FAMILIES = ("llama", "qwen3", "gemma2-sliding-softcap")


@dataclass
class Family:
    """A tiny model, and the texts that it writes without a draft."""

    model: Model
    tokenizer: HuggingFaceTokenizer
    folder: str
    head: Path

    def write(
        self,
        requests: list[EngineRequest],
        earlier: EarlierTexts | None = None,
        draft_model: DraftModel | None = None,
    ) -> list[GenerationResult]:
        """Run requests together; the draft model drafts for those that ask for it."""
        scheduler = Scheduler(
            self.model,
            self.tokenizer,
            num_slots=NUM_SLOTS,
            debug=True,
            draft_model=draft_model,
            earlier=earlier,
        )
        for number, request in enumerate(requests):
            scheduler.submit(number, request)
        results = drain(scheduler)
        return [result for _, result in sorted(results.items()) if isinstance(result, GenerationResult)]

    def draft_model(self, kind: str) -> DraftModel:
        if kind == "self":
            self.model.tap = None
            return LayerSkipping(self.folder, self.model)
        return EagleDrafts("head", EagleHead.load(self.head), self.model, NUM_SLOTS)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = str(save_model(request.param, tmp_path_factory.mktemp(request.param)))
    model = load_model(EngineSettings(model=folder, cache_tokens=NUM_SLOTS, device="cpu"))
    head = tmp_path_factory.mktemp("head")
    HeadStudent(folder, folder, None, torch.device("cpu")).save(head)
    return Family(model, load_tokenizer(folder, None), folder, head)


@st.composite
def requests(draw: st.DrawFn) -> EngineRequest:
    return EngineRequest(
        Prefix(prompt(draw(st.integers(0, NUM_PROMPTS - 1)))),
        LENGTH,
        sampling=Sampling(
            draw(st.sampled_from([0.0, 0.0, 0.7, 1.3])), noise=NoiseKey(5, problem=draw(st.integers(0, 2)))
        ),
        token_drafter=draw(st.sampled_from(get_args(TokenDrafterName))),
        model_drafts=draw(st.booleans()),
        num_draft_tokens=draw(st.integers(1, 24)),
        draft_tree=draw(st.sampled_from(get_args(DraftTreeName))),
        refusal_threshold=draw(st.sampled_from([None, 0.3])),
        siblings=draw(st.sampled_from(["", "problem"])),
        acceptance=draw(st.sampled_from(STRICT)),
    )


@given(
    asked=st.lists(requests(), min_size=1, max_size=4),
    hinted=st.lists(st.booleans(), min_size=4, max_size=4),
    told=st.lists(st.booleans(), min_size=4, max_size=4),
    place=st.integers(0, LENGTH - 1),
    kind=st.sampled_from(["self", "head"]),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mixture_of_drafts_changes_a_text(
    family: Family,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[EngineRequest],
    hinted: list[bool],
    told: list[bool],
    place: int,
    kind: str,
) -> None:
    """Hints and earlier texts hold the right text with one token replaced, so drafts are right and wrong."""
    # A random model never drafts well; here it drafts all the same.
    monkeypatch.setattr(TokenDrafts, "_pays", lambda *_: True)
    alone = [replace(one, token_drafter="none", model_drafts=False, num_draft_tokens=0) for one in asked]
    expected = [family.write([one])[0].tokens for one in alone]
    earlier = EarlierTexts(naive_caches())
    drafted: list[EngineRequest] = []
    for number, (one, text) in enumerate(zip(asked, expected, strict=True)):
        wrong = spoiled(text, place)
        if told[number]:
            earlier.begin(100 + number, "", "a", [("output", (*one.prefix.tokens, *wrong))])
            earlier.begin(number, "", "a", [("prompt", one.prefix.tokens)])
            one = replace(one, text=number)
        drafted.append(replace(one, hint=wrong) if hinted[number] else one)
    results = family.write(drafted, earlier, family.draft_model(kind))
    assert [result.tokens for result in results] == expected
    if any(hinted[: len(asked)]):
        assert sum(result.usage.num_drafted_tokens for result in results) > 0
