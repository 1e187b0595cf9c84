"""Drafts on vLLM's newer model runner, in place of its method ``ngram_gpu``. Untested on devices.

The newer runner takes no class of a user: `offer_speculator` wraps the function that makes its speculators.
Sampled tokens stay on the device there, so every pass waits for the device and copies [requests, 3 + draft
tokens] integers to the CPU. That ends the overlap of CPU and device for which the newer runner is made.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.errors import EngineError
from reason_spec.vllm_plugin import logger
from reason_spec.vllm_plugin.drafter import Drafter, Request, plugin_settings

_FACTORIES: Final = "vllm.v1.worker.gpu.spec_decode"
_RUNNER: Final = "vllm.v1.worker.gpu.model_runner"
_LOGITS_PROCESSORS: Final = "vllm.v1.worker.gpu.sample.logits_processor.interface"
WARM_UP: Final = ("_warmup_", "_v2_mixed_warmup")
"""How vLLM names the requests with which it warms up; their texts are noise."""


def offer_speculator() -> None:
    """Let the newer model runner make a `Speculator` where the settings ask for one.

    Raises:
        ImportError, AttributeError: this version of vLLM has no such function.
    """
    factories: Any = importlib.import_module(_FACTORIES)
    make = factories.init_speculator
    if make.__module__ == __name__:
        return

    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        config = vllm_config.speculative_config
        if not (config.use_ngram() and plugin_settings(vllm_config).newer_runner):
            return make(vllm_config, device, req_states)
        speculator = Speculator(vllm_config, device, req_states)
        model = vllm_config.model_config
        model.logits_processors = [*(model.logits_processors or ()), parameter_reader(speculator)]
        return speculator

    factories.init_speculator = init_speculator
    # The runner holds a name of its own once it is imported.
    if (runner := cast("Any", sys.modules.get(_RUNNER))) is not None:
        runner.init_speculator = init_speculator


def parameter_reader(speculator: Speculator) -> type:
    """Return a logits processor that changes nothing: no other interface shows parameters of requests."""
    base: Any = importlib.import_module(_LOGITS_PROCESSORS).LogitsProcessor

    class ParameterReader(base):  # type: ignore[misc] # vLLM has no types here
        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            speculator.note_request(req_idx, sampling_params)
            return False

        def apply(self, logits: Tensor, _: Any) -> Tensor:
            return logits

    return ParameterReader


class Speculator(Drafter):
    """Has the interface of vLLM's ``BaseSpeculator``.

    The runner verifies ``num_speculative_tokens`` tokens of each request in each pass, however few are
    found: it fills up with the last token. So ``limit_drafts`` saves nothing here and is not applied.

    Args:
        req_states: the runner's ``RequestState``: texts on the device, and which request is in which slot.

    Raises:
        EngineError: the configuration has what cannot be drafted for correctly.
        pydantic.ValidationError: a key or a value of ``additional_config.reason_spec`` is wrong.
    """

    num_query_per_req = 1
    num_extra_query_per_req = 0
    supports_mm_inputs = False
    draft_logits: Tensor | None = None
    pcp_manager: Any = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        _refuse(vllm_config)
        super().__init__(vllm_config)
        self._device = device
        self._states = req_states
        self._parameters: dict[int, Any] = {}
        """vLLM's ``SamplingParams`` by slot."""
        self._new: set[int] = set()
        """Slots whose request was added, and has sampled nothing since."""
        self._back = torch.arange(self._max_tokens + 1, 0, -1, device=device)
        _, version = installed_version() or ("", "unknown")
        logger.warning(
            "reason-spec drafts up to %d tokens a pass with vLLM %s on the newer (V2) model runner, in place "
            "of its method ngram_gpu: untested on devices; %s",
            self._max_tokens,
            version,
            self._settings,
        )

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is no model, so no graph either."""

    def capture(self) -> None:
        """There is no model, so no graph either."""

    def note_request(self, slot: int, parameters: Any) -> None:
        """Take the parameters of a request that came into a slot: a new one, or one that was preempted."""
        self._parameters[slot] = parameters
        self._new.add(slot)

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        *_: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **__: Any,
    ) -> Tensor:
        """Return the drafts of each request on the device, int64 [requests, draft tokens]. Never raises.

        Args:
            num_sampled: int32 [requests] on the device, the tokens generated in this pass; 0 while
                a prompt is prefilled. They stand at the end of the texts in ``req_states`` already.
            num_speculative_tokens: how many of the drafts the runner takes; it drops the others.
        """
        drafts = np.zeros((input_batch.num_reqs, self._max_tokens), dtype=np.int64)
        limit = self._max_tokens if num_speculative_tokens is None else num_speculative_tokens
        if not dummy_run:
            try:
                self._fill(drafts, input_batch, num_sampled, limit)
            except Exception:
                # Logged, not raised: a pass without drafts is right, and vLLM's engine would end.
                self._log_error()
        return torch.from_numpy(drafts).to(self._device)

    def _fill(self, drafts: npt.NDArray[np.int64], input_batch: Any, num_sampled: Tensor, limit: int) -> None:
        counts, lengths, tokens = self._sampled(input_batch.idx_mapping, num_sampled)
        # Whatever fails from here on, a row without drafts repeats its last token.
        drafts[counts > 0] = tokens[counts > 0, -1:]
        self._close_ended(self._states.req_id_to_index)
        for row, (name, slot) in enumerate(zip(input_batch.req_ids, input_batch.idx_mapping_np, strict=True)):
            if (count := int(counts[row])) == 0:
                continue
            try:
                request = self._request(name, int(slot), int(lengths[row]) - count)
                if request is not None:
                    kept = self._draft(request, tokens[row, -count:].tolist(), int(lengths[row]), limit)
                    drafts[row, : len(kept)] = kept
            except Exception:
                self._log_error()
                # Its text may lack tokens now.
                self._close(name)
                self._requests[name] = None

    def _sampled(self, slots: Tensor, num_sampled: Tensor) -> tuple[npt.NDArray[Any], ...]:
        """Copy the ends of texts from the device, which waits for it.

        Returns:
            [requests] how many tokens are new, [requests] the lengths of the texts, and
            [requests, 1 + draft tokens] their last tokens.
        """
        lengths = self._states.total_len.gpu[slots][:, None]
        places = (lengths - self._back).clamp_(min=0)
        tokens = self._states.all_token_ids.gpu[slots[:, None], places]
        copied = torch.cat([num_sampled[:, None], lengths, tokens], dim=1).cpu().numpy()
        return copied[:, 0], copied[:, 1], copied[:, 2:]

    def _request(self, name: str, slot: int, length: int) -> Request | None:
        """Return a request whose text had ``length`` before this pass; None if it is not drafted for."""
        known = self._requests.get(name)
        # After an error in an earlier pass the lengths differ.
        if slot in self._new or (known is not None and known.length != length):
            self._new.discard(slot)
            self._close(name)
            self._requests[name] = self._read(name, slot, length)
        return self._requests.get(name)

    def _read(self, name: str, slot: int, length: int) -> Request | None:
        """Open the text of a request, which is copied from the device."""
        if name.startswith(WARM_UP):
            return None
        text = self._states.all_token_ids.gpu[slot, :length].cpu().numpy()
        return self._open(name, text, int(self._states.max_seq_len[slot]), self._parameters[slot], None)


def _refuse(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    reasons = {
        # Each process would draft for itself, and they must not differ.
        "tensor or prefill context parallelism": max(
            parallel.tensor_parallel_size, parallel.prefill_context_parallel_size
        )
        > 1,
        # The interface does not show which adapter or which embeddings a request has.
        "LoRA adapters": vllm_config.lora_config is not None,
        "prompt embeddings": vllm_config.model_config.enable_prompt_embeds,
    }
    refused = [name for name, is_set in reasons.items() if is_set]
    if refused:
        raise EngineError(
            f"additional_config.reason_spec.newer_runner does not work with {', '.join(refused)}: turn that "
            "off, or unset VLLM_USE_V2_MODEL_RUNNER and use the proposer of the older model runner"
        )
