"""The speculator for vLLM's newer model runner, on CPU tensors, in that runner's own states and batches.

The runner itself needs Triton and a device: its kernels that write texts are written out here.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.errors import EngineError
from reason_spec.vllm_plugin import register
from reason_spec.vllm_plugin.drafter import DRAFT_TOKENS, OWNER, SECTION
from reason_spec.vllm_plugin.speculator import WARM_UP, Speculator, offer_speculator
from tests.vllm_plugin import test_proposer

pytestmark = pytest.mark.skipif(
    installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"
)
MAX_LENGTH, END, ANSWER = test_proposer.MAX_LENGTH, test_proposer.END, test_proposer.ANSWER
MAX_REQUESTS = 4
WIDTH = 8
CPU = torch.device("cpu")
UNUSED_BY_OURS = {
    *("load_model", "dcp_size", "draft_attn_layer_names", "set_attn", "model", "observe_verification"),
    *("draft_token_confidence_probs", "prepare_watermarking"),
}
"""What the runner takes from drafters with a model, with adaptive verification or with watermarks alone."""


def runner_source(name: str) -> str:
    package = importlib.import_module("vllm.v1.worker.gpu")
    return (Path(str(package.__file__)).parent / f"{name}.py").read_text(encoding="utf-8")


def make_config(**own: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=WIDTH, use_ngram=lambda: True),
        model_config=SimpleNamespace(
            max_model_len=MAX_LENGTH, enable_prompt_embeds=False, logits_processors=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, prefill_context_parallel_size=1),
        lora_config=None,
        additional_config={SECTION: {"newer_runner": True, **own}},
    )


@pytest.fixture(autouse=True)
def buffers_of_vllms_cpu_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device there is no pinned memory; vLLM's CPU worker replaces the same class."""
    buffers: Any = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
    plain: Any = importlib.import_module("vllm.v1.worker.cpu.buffer_utils")
    monkeypatch.setattr(buffers, "UvaBuffer", plain.UvaBuffer)
    factories: Any = importlib.import_module("vllm.v1.worker.gpu.spec_decode")
    monkeypatch.setattr(factories, "init_speculator", factories.init_speculator)


def make_states() -> Any:
    from vllm.v1.worker.gpu.states import RequestState

    return RequestState(MAX_REQUESTS, MAX_LENGTH, MAX_LENGTH, WIDTH, 1000, CPU, use_dense_all_token_ids=True)


def write_staged(tensor: Any) -> None:
    """Do what ``StagedWriteTensor.apply_write`` does with a kernel."""
    start = 0
    writes = zip(
        tensor._staged_write_indices, tensor._staged_write_starts, tensor._staged_write_cu_lens, strict=True
    )
    for index, place, end in writes:
        values = torch.tensor(tensor._staged_write_contents[start:end], dtype=tensor.dtype)
        tensor.gpu.view(tensor.num_rows, -1)[index, place : place + len(values)] = values
        start = end
    tensor.clear_staged_writes()


class NewerRunner:
    """What ``GPUModelRunner`` does around its speculator, in its order."""

    def __init__(self, **own: Any) -> None:
        from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors

        self.states = make_states()
        self.config = make_config(**own)
        offer_speculator()
        factories: Any = importlib.import_module("vllm.v1.worker.gpu.spec_decode")
        self.speculator: Any = factories.init_speculator(self.config, CPU, self.states)
        self.processors = build_custom_logits_processors(
            self.config, self.states, False, self.config.model_config.logits_processors
        )

    def add(
        self,
        name: str,
        text: list[int],
        options: dict[str, Any] | None = None,
        *,
        max_tokens: int = MAX_LENGTH,
    ) -> None:
        states = self.states
        states.add_request(name, len(text), text, 0, max_tokens)
        parameters = SimpleNamespace(extra_args=options, ignore_eos=False, all_stop_token_ids={END})
        processing = [
            processor.add_request(states.req_id_to_index[name], parameters) for processor in self.processors
        ]
        assert not any(processing)
        write_staged(states.total_len)
        write_staged(states.all_token_ids)

    def step(self, new: dict[str, list[int]], **more: Any) -> dict[str, list[int]]:
        """Sample these tokens in these rows, and return what the next pass would verify."""
        from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

        assert all(len(tokens) <= 1 + WIDTH for tokens in new.values())
        states, num = self.states, len(new)
        batch: Any = InputBatch.make_dummy(num, num, InputBuffers(MAX_REQUESTS, MAX_LENGTH, CPU))
        batch.req_ids = list(new)
        slots = [states.req_id_to_index[name] for name in new]
        batch.idx_mapping[:] = torch.tensor(slots)
        batch.idx_mapping_np[:] = slots
        for slot, tokens in zip(slots, new.values(), strict=True):
            length = int(states.total_len.gpu[slot])
            states.all_token_ids.gpu[slot, length : length + len(tokens)] = torch.tensor(tokens).int()
            states.total_len.gpu[slot] += len(tokens)
            if tokens:
                states.last_sampled_tokens[slot] = tokens[-1]
        num_sampled = torch.tensor([len(tokens) for tokens in new.values()], dtype=torch.int32)
        drafts = self.speculator.propose(
            batch,
            None,
            None,
            torch.zeros(num, 2),
            None,
            num_sampled,
            torch.zeros_like(num_sampled),
            states.last_sampled_tokens,
            states.next_prefill_tokens,
            torch.zeros(MAX_REQUESTS),
            torch.zeros(MAX_REQUESTS, dtype=torch.int64),
            **{"num_speculative_tokens": WIDTH, "dp_sync_state": None, "mm_inputs": None, **more},
        )
        assert drafts.shape == (num, WIDTH)
        assert drafts.dtype == states.draft_tokens.dtype
        states.draft_tokens[batch.idx_mapping] = drafts
        return {name: states.draft_tokens[slot].tolist() for name, slot in zip(new, slots, strict=True)}

    def say(self, name: str, tokens: list[int], **more: Any) -> list[int]:
        """Sample tokens in as few passes as there can be; return the last drafts."""
        drafts = []
        for start in range(0, len(tokens), 1 + WIDTH):
            drafts = self.step({name: tokens[start : start + 1 + WIDTH]}, **more)[name]
        return drafts

    def run(
        self, name: str, prompt: list[int], answer: list[int], options: dict[str, Any] | None = None
    ) -> list[list[int]]:
        """Generate an answer token by token, then end; return the drafts after each token."""
        self.add(name, prompt, options)
        drafts = [self.step({name: [token]})[name] for token in answer]
        self.states.remove_request(name)
        return drafts


def fill(drafts: list[int], last: int) -> list[int]:
    return drafts + [last] * (WIDTH - len(drafts))


def test_a_model_that_verifies_needs_fewer_passes_for_its_second_answer_and_says_the_same() -> None:
    runner = NewerRunner()
    passes = []
    for name in ("a", "b"):
        runner.add(name, [1, 2, 3])
        said: list[int] = []
        drafts, number = [0] * WIDTH, 0
        while len(said) < len(ANSWER):
            rest = ANSWER[len(said) :]
            wrong = (
                place for place, (ours, its) in enumerate(zip(drafts, rest, strict=False)) if ours != its
            )
            accepted = next(wrong, WIDTH)
            said += (new := rest[: accepted + 1])
            drafts, number = runner.step({name: new})[name], number + 1
        assert said == ANSWER
        runner.states.remove_request(name)
        passes.append(number)
    assert passes[0] > len(ANSWER) - WIDTH
    assert passes[1] < passes[0] // 3


texts = st.lists(st.integers(10, 14) | st.just(END), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(texts, texts, st.sampled_from(["a", "b", None])), min_size=1, max_size=4))
def test_drafts_are_those_on_the_older_runner(
    requests: list[tuple[list[int], list[int], str | None]],
) -> None:
    older, newer = test_proposer.Runner(WIDTH, limit_drafts=False), NewerRunner(limit_drafts=False)
    for number, (prompt, answer, owner) in enumerate(requests):
        answer = answer[: answer.index(END) + 1] if END in answer else answer
        options = None if owner is None else {OWNER: owner}
        expected = older.run(str(number), prompt, answer, options)
        drafts = newer.run(str(number), prompt, answer, options)
        assert drafts == [fill(some, last) for some, last in zip(expected, answer, strict=True)]


def test_rows_keep_their_own_drafts_and_prompts_in_work_get_none() -> None:
    runner = NewerRunner()
    other = [token + 200 for token in ANSWER[:-1]]
    runner.run("one", [1], ANSWER)
    runner.run("two", [2], other)
    for name in ("a", "b", "in work"):
        runner.add(name, [1])
    runner.step({"a": ANSWER[:1], "b": other[:1], "in work": []})
    drafts = runner.step({"b": other[1:10], "in work": [], "a": ANSWER[1:10]})
    assert drafts == {"a": ANSWER[10:18], "b": other[10:18], "in work": [0] * WIDTH}
    assert runner.step({"in work": ANSWER[:5]})["in work"] == ANSWER[5:13]


def test_a_slot_is_not_taken_for_the_request_that_had_it_before() -> None:
    runner = NewerRunner(share="owner")
    runner.add("a", [1], {OWNER: "a"})
    runner.step({"a": ANSWER[:9]})
    slot = runner.states.req_id_to_index["a"]
    runner.states.remove_request("a")
    runner.add("b", [1], {OWNER: "b"})
    assert runner.states.req_id_to_index["b"] == slot
    assert runner.step({"b": ANSWER[:5]})["b"] == fill([], ANSWER[4])
    runner.add("a", [1], {OWNER: "a"})
    assert runner.step({"a": ANSWER[:5]})["a"] == fill(ANSWER[5:9], ANSWER[4])


def test_a_preempted_request_goes_on_with_the_text_it_comes_back_with() -> None:
    runner = NewerRunner()
    runner.run("one", [1], ANSWER)
    runner.add("a", [1])
    runner.step({"a": ANSWER[:9]})
    runner.states.remove_request("a")
    runner.add("b", [7])
    runner.add("a", [1, *ANSWER[:7]])
    drafts = runner.step({"b": [8], "a": ANSWER[7:9]})
    assert drafts["a"] == ANSWER[9:17]


def test_a_name_that_comes_back_is_of_the_owner_it_comes_back_with() -> None:
    runner = NewerRunner()
    runner.run("one", [1], ANSWER, {OWNER: "a"})
    runner.add("again", [1], {OWNER: "b"})
    assert runner.say("again", ANSWER[:5]) == fill([], ANSWER[4])
    runner.states.remove_request("again")
    runner.add("again", [1, *ANSWER[:5]], {OWNER: "a"})
    assert runner.say("again", ANSWER[5:9]) == ANSWER[9:17]


def test_nothing_is_drafted_or_learnt_behind_a_token_that_stops() -> None:
    runner = NewerRunner()
    runner.add("a", [1])
    runner.say("a", ANSWER[:36])
    assert runner.say("a", [*ANSWER[36:], 50, 51]) == fill([], 51)
    assert runner.say("a", [52, 53]) == fill([], 53)
    runner.add("b", [1])
    assert runner.say("b", ANSWER[:-3]) == fill(ANSWER[-3:], ANSWER[-4])
    runner.add("c", [2])
    for token in (50, 51, 52):
        assert runner.say("c", [token]) == fill([], token)


def test_drafts_keep_to_the_limits_of_a_request_and_of_a_pass() -> None:
    runner = NewerRunner()
    runner.run("a", [1], ANSWER)
    runner.add("short", [1], max_tokens=24)
    assert runner.say("short", ANSWER[:20]) == fill(ANSWER[20:23], ANSWER[19])
    runner.add("none", [1], {DRAFT_TOKENS: 0})
    assert runner.say("none", ANSWER[:20]) == fill([], ANSWER[19])
    runner.add("few", [1])
    assert runner.say("few", ANSWER[:20], num_speculative_tokens=2) == fill(ANSWER[20:22], ANSWER[19])


def test_a_dummy_run_and_warm_up_leave_no_text() -> None:
    runner = NewerRunner()
    runner.add("a", [1])
    assert runner.step({"a": ANSWER[:1]}, dummy_run=True)["a"] == [0] * WIDTH
    assert not runner.speculator._requests
    runner.run(f"{WARM_UP[0]}0_", [1], ANSWER)
    assert len(runner.speculator._caches) == 0
    warm_up = runner_source("warmup")
    assert all(f'"{name}' in warm_up for name in WARM_UP)


def test_an_error_costs_drafts_and_is_logged_once_and_the_text_is_read_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = NewerRunner()
    runner.run("one", [1], ANSWER)
    runner.add("a", [1])
    runner.step({"a": ANSWER[:2]})
    with monkeypatch.context() as broken:
        broken.setattr(runner.speculator, "_sampled", None)
        for token in ANSWER[2:4]:
            assert runner.step({"a": [token]})["a"] == [0] * WIDTH
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    assert runner.step({"a": ANSWER[4:9]})["a"] == ANSWER[9:17]


def test_an_error_of_one_request_costs_only_its_own_drafts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = NewerRunner()
    runner.run("one", [1], ANSWER)
    for name in ("a", "b"):
        runner.add(name, [1])
    runner.step({"a": ANSWER[:2], "b": ANSWER[:2]})
    broken, draft = runner.speculator._requests["a"], runner.speculator._draft

    def fail_for_a(request: Any, *arguments: Any) -> list[int]:
        if request is broken:
            raise MemoryError
        drafts: list[int] = draft(request, *arguments)
        return drafts

    monkeypatch.setattr(runner.speculator, "_draft", fail_for_a)
    for end in (4, 6):
        drafts = runner.step(dict.fromkeys(("a", "b"), ANSWER[end - 2 : end]))
        assert drafts == {"a": fill([], ANSWER[end - 1]), "b": ANSWER[end : end + WIDTH]}
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


def test_the_log_says_that_it_is_untested_on_devices(caplog: pytest.LogCaptureFixture) -> None:
    NewerRunner()
    assert "newer (V2) model runner" in caplog.text
    assert "untested on devices" in caplog.text


@pytest.mark.parametrize(
    ("section", "name", "value", "named"),
    [
        ("parallel_config", "tensor_parallel_size", 2, "tensor"),
        ("parallel_config", "prefill_context_parallel_size", 2, "prefill context"),
        ("model_config", "enable_prompt_embeds", True, "embeddings"),
        ("", "lora_config", object(), "LoRA"),
    ],
)
def test_what_cannot_be_drafted_for_ends_the_start(
    section: str, name: str, value: object, named: str
) -> None:
    config = make_config()
    setattr(getattr(config, section) if section else config, name, value)
    with pytest.raises(EngineError, match=named):
        Speculator(config, CPU, make_states())


@pytest.mark.parametrize(("forced", "is_ours"), [("1", True), ("0", False), (None, False)])
def test_vllms_own_speculators_are_left_alone_unless_the_runner_is_forced_and_ours_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, forced: str | None, is_ours: bool
) -> None:
    factories: Any = importlib.import_module("vllm.v1.worker.gpu.spec_decode")
    own = SimpleNamespace(name="vLLM's own")

    def make(*_: Any) -> Any:
        return own

    monkeypatch.setattr(factories, "init_speculator", make)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    if forced is not None:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", forced)
    register()
    register()
    assert (factories.init_speculator is make) != is_ours
    asked, another = make_config(), make_config()
    another.speculative_config.use_ngram = lambda: False
    made = factories.init_speculator(asked, CPU, make_states())
    assert isinstance(made, Speculator) == is_ours
    for config in (another, make_config(newer_runner=False)):
        assert factories.init_speculator(config, CPU, make_states()) is own
        assert config.model_config.logits_processors is None


def test_the_interface_is_that_of_vllm() -> None:
    """A new version of vLLM that asks a speculator for more, or calls it otherwise, fails here."""
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

    for name in BaseSpeculator.__abstractmethods__:
        arguments = list(inspect.signature(getattr(BaseSpeculator, name)).parameters)
        inspect.signature(getattr(Speculator, name)).bind(**dict.fromkeys(arguments))
    positional = inspect.signature(BaseSpeculator.propose).parameters
    assert list(positional)[1:7] == list(inspect.signature(Speculator.propose).parameters)[1:7]
    source = runner_source("model_runner")
    asked = set(re.findall(r"\bself\.speculator\.(\w+)", source)) - UNUSED_BY_OURS
    assert {name for name in asked if not hasattr(Speculator, name)} == set()
    assert "self.speculator = init_speculator(\n" in source
    assert source.index("init_speculator(\n") < source.index("self.model_config.logits_processors")
