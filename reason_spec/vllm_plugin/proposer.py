"""The proposer for plain ``vllm serve``: drafts from all texts that the server has read and generated.

vLLM makes one for each engine, on its older model runner, and asks it for drafts after every pass. vLLM
verifies them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

import numpy.typing as npt

from reason_spec.engines.vllm.arguments import TESTED, installed_version, takes_hints
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.goodput import ASSUMED_RATE, BatchTime, uniform_limit
from reason_spec.vllm_plugin import logger, register
from reason_spec.vllm_plugin.drafter import Drafter, Request, Tokens

_OLDER_RUNNERS: Final = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.cpu_model_runner")


class Proposer(Drafter):
    """The class for ``speculative_config.model``. All state is kept by request: rows of a batch move.

    Raises:
        pydantic.ValidationError: a key or a value of ``additional_config.reason_spec`` is wrong.
    """

    def __init__(self, vllm_config: Any) -> None:
        register()
        super().__init__(vllm_config)
        self._times = PassTimes()
        self._passed: dict[str, int] = {}
        """The tokens of each request in the coming pass."""
        self._passed_at = 0.0
        self._limits: tuple[BatchTime | None, dict[int, int]] = (None, {})
        self._runner: Any = None
        self._looked_for_runner = False

    def load_model(self, *_: Any, **__: Any) -> None:
        """Find the model runner; there is no model to load."""
        self._find_runner()

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[Any],
        **_: Any,
    ) -> list[list[int]]:
        """Return the drafts of each row; none while its prompt is prefilled. Never raises.

        Args:
            sampled_token_ids: the tokens generated in this pass, by row.
            num_tokens_no_spec: [rows] lengths of the texts, prompts and these tokens included.
            token_ids_cpu: [rows, max_model_len] the texts.
        """
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        try:
            if not self._find_runner():
                return nothing
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            self._log_error()
            # The next pass is not timed: its beginning is unknown.
            self._passed = {}
            return nothing

    def _find_runner(self) -> bool:
        """Find the model runner, which knows the requests, on the call stack: vLLM does not pass it on."""
        if self._runner is not None or self._looked_for_runner:
            return self._runner is not None
        self._looked_for_runner = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._runner is None:
            caller = frame.f_locals.get("self")
            if getattr(caller, "__dict__", {}).get("drafter") is self:
                self._runner = caller
            frame = frame.f_back
        _, version = installed_version() or ("", "unknown")
        if self._runner is None:
            logger.warning("reason-spec found no model runner in vLLM %s, so it drafts nothing", version)
            return False
        if not takes_hints(version):
            logger.warning(
                "reason-spec's proposer was not tested with vLLM %s, but with %s", version, ", ".join(TESTED)
            )
        kind = type(self._runner)
        logger.info(
            "reason-spec drafts up to %d tokens a pass with vLLM %s on %s model runner, %s.%s; %s",
            self._max_tokens,
            version,
            "the older (V1)" if kind.__module__ in _OLDER_RUNNERS else "an unknown",
            kind.__module__,
            kind.__qualname__,
            self._settings,
        )
        return True

    def _propose(
        self, sampled_token_ids: Sequence[Sequence[int]], lengths: npt.NDArray[Any], texts: npt.NDArray[Any]
    ) -> list[list[int]]:
        names: list[str] = self._runner.input_batch.req_ids[: len(sampled_token_ids)]
        self._note_time(names)
        self._close_ended(self._runner.requests)
        limit = self._limit(len(names))
        proposals: list[list[int]] = []
        for name, sampled, text, length in zip(names, sampled_token_ids, texts, lengths, strict=False):
            request = self._request(name, text) if sampled else None
            if request is None:
                proposals.append([])
                continue
            came = text[request.length : length].tolist()
            proposals.append(self._draft(request, came, int(length), limit))
        rows = zip(names, sampled_token_ids, proposals, strict=True)
        self._passed = {name: 1 + len(drafts) for name, sampled, drafts in rows if sampled}
        self._passed_at = time.perf_counter()
        return proposals

    def _request(self, name: str, text: Tokens) -> Request | None:
        if name not in self._requests:
            self._requests[name] = self._first(name, text)
        return self._requests[name]

    def _first(self, name: str, text: Tokens) -> Request | None:
        """Open the text of a request that runs for the first time; None if it is not drafted for."""
        state = self._runner.requests[name]
        parameters = state.sampling_params
        prompt = text[: state.num_prompt_tokens]
        # Without token ids vLLM leaves those of an earlier request in the row.
        if parameters is None or state.prompt_token_ids is None or state.prompt_embeds is not None:
            return None
        end = self._max_length if parameters.max_tokens is None else len(prompt) + parameters.max_tokens
        adapter = None if state.lora_request is None else state.lora_request.lora_name
        return self._open(name, prompt, end, parameters, adapter)

    def _note_time(self, names: Sequence[str]) -> None:
        """Record the time of the pass that ended, if each of its requests had its prompt computed before."""
        seconds = time.perf_counter() - self._passed_at
        if names and all(name in self._passed for name in names):
            self._times.add_batch(sum(self._passed[name] for name in names), len(names), seconds)

    def _limit(self, num_requests: int) -> int:
        """Return how many draft tokens pay for each of ``num_requests``.

        It depends on the number of requests alone, not on the texts of other owners.
        """
        if num_requests < 2 or not self._settings.limit_drafts:
            return self._max_tokens
        fitted = self._times.batch_time
        if self._limits[0] is not fitted:
            self._limits = fitted, {}
        limits = self._limits[1]
        if num_requests not in limits:
            limits[num_requests] = uniform_limit(num_requests, self._max_tokens, ASSUMED_RATE, fitted)
        return limits[num_requests]
