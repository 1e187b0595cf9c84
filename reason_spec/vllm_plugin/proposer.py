"""The proposer for plain ``vllm serve``: drafts from all texts that the server has read and generated.

vLLM makes one for each engine, on its older model runner, and asks it for drafts after every pass. Drafts
come from the suffix cache, which also holds the request's own text. vLLM verifies them.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from reason_spec.engines.vllm.arguments import TESTED, installed_version, takes_hints
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.settings import SuffixSettings
from reason_spec.settings.base import Section
from reason_spec.speculation.draft_calibration import DraftCalibration
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.goodput import ASSUMED_RATE, BatchTime, uniform_limit
from reason_spec.suffix.base import Proposal
from reason_spec.suffix.cache import warm_up
from reason_spec.suffix.scopes import StoredCache, SuffixCaches
from reason_spec.suffix.session import least_chance
from reason_spec.vllm_plugin import logger, register

SECTION: Final = "reason_spec"
"""The key of our settings in vLLM's ``--additional-config``; its ``--speculative-config`` refuses ours."""
OWNER: Final = "reason_spec_owner"
"""The key in a request's ``vllm_xargs`` that names the owner of its text."""
DRAFT_TOKENS: Final = "reason_spec_draft_tokens"
"""The key in a request's ``vllm_xargs`` that limits its draft tokens; 0 keeps its text unlearnt, too."""
_OLDER_RUNNERS: Final = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.cpu_model_runner")
_NOTHING: Final = Proposal()

Tokens = npt.NDArray[np.int32]


class PluginSettings(Section):
    """The section ``reason_spec`` of vLLM's ``--additional-config``."""

    share: Literal["server", "owner", "request"] = Field(
        default="server",
        description="who drafts from a text: server: all requests without an owner share their texts; owner: "
        "only requests of the same owner; request: only the request itself",
    )
    max_bytes: int = Field(default=256 << 20, ge=1 << 16, description="memory limit of one cache")
    max_caches: int = Field(
        default=64, ge=1, description="caches of owners and LoRA adapters; the least recently used goes first"
    )
    min_chance: float | None = Field(
        default=None, ge=0, le=1, description="minimum probability of a draft token; null: 0.05 to 0.1"
    )
    limit_drafts: bool = Field(
        default=True, description="draft fewer tokens if many requests make passes long, by measured times"
    )


class TextCaches:
    """The suffix caches, by name; the least recently used one without an open text is dropped first."""

    def __init__(self, settings: PluginSettings) -> None:
        warm_up()
        own = SuffixSettings(max_bytes=settings.max_bytes, min_chance=settings.min_chance)
        self.earlier = EarlierTexts(SuffixCaches(lambda _: StoredCache(own, None, saves=False)))
        self._max_caches = settings.max_caches
        self._num_open: dict[str, int] = {}
        self._cache_of: dict[int, str] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._num_open)

    def open(self, cache: str, prompt: Tokens) -> int:
        """Learn a prompt; return the number of its text."""
        number = next(self._numbers)
        self._num_open[cache] = self._num_open.pop(cache, 0) + 1
        self._cache_of[number] = cache
        self._drop([name for name, count in self._num_open.items() if not count], self._max_caches)
        self.earlier.begin(number, cache, cache, [("prompt", cast("Sequence[int]", prompt))])
        return number

    def close(self, number: int, *, keep: bool) -> None:
        """End a text; ``keep=False`` drops its cache, too."""
        cache = self._cache_of.pop(number)
        self.earlier.close(number)
        self._num_open[cache] -= 1
        if not keep:
            self._drop([cache], 0)

    def _drop(self, unused: Iterable[str], max_caches: int) -> None:
        for cache in unused:
            if len(self._num_open) > max_caches:
                del self._num_open[cache]
                self.earlier.forget(cache)


@dataclass(slots=True)
class _Request:
    """A request that is drafted for; ``end`` is the length of its text at ``max_tokens``."""

    text: int
    private: bool
    max_drafts: int
    end: int
    stops: frozenset[int]
    length: int
    found: Proposal = _NOTHING


class Proposer:
    """The class for ``speculative_config.model``. All state is kept by request: rows of a batch move.

    Raises:
        pydantic.ValidationError: a key or a value of ``additional_config.reason_spec`` is wrong.
    """

    def __init__(self, vllm_config: Any) -> None:
        register()
        additional = vllm_config.additional_config
        own = additional.get(SECTION, {}) if isinstance(additional, dict) else {}
        self._settings = PluginSettings.model_validate(own)
        self._max_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._caches = TextCaches(self._settings)
        self._requests: dict[str, _Request | None] = {}
        """None: a request without drafts."""
        self._times = PassTimes()
        self._passed: dict[str, int] = {}
        """The tokens of each request in the coming pass."""
        self._passed_at = 0.0
        self._limits: tuple[BatchTime | None, dict[int, int]] = (None, {})
        self._runner: Any = None
        self._looked_for_runner = self._failed = False

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
            sampled_token_ids: the tokens that became certain in this pass, by row.
            num_tokens_no_spec: [rows] lengths of the texts, prompts and these tokens included.
            token_ids_cpu: [rows, max_model_len] the texts.
        """
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        try:
            if not self._find_runner():
                return nothing
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            if not self._failed:
                logger.exception("reason-spec drafts nothing in this pass; further errors are not logged")
            self._failed = True
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
        self._close_ended()
        limit = self._limit(len(names))
        proposals: list[list[int]] = []
        for name, sampled, text, length in zip(names, sampled_token_ids, texts, lengths, strict=False):
            request = self._request(name, text) if sampled else None
            proposals.append(self._draft(request, text[:length], limit) if request is not None else [])
        rows = zip(names, sampled_token_ids, proposals, strict=True)
        self._passed = {name: 1 + len(drafts) for name, sampled, drafts in rows if sampled}
        self._passed_at = time.perf_counter()
        return proposals

    def _draft(self, request: _Request, text: Tokens, limit: int) -> list[int]:
        """Learn what came, and draft the next tokens."""
        earlier = self._caches.earlier
        came: list[int] = text[request.length :].tolist()
        found, request.found, request.length = request.found, _NOTHING, len(text)
        if (calibration := earlier.calibration(request.text)) is None:
            return []
        calibration.learn(found, came)
        ended = next((place for place, token in enumerate(came) if token in request.stops), None)
        earlier.extend(request.text, came if ended is None else came[: ended + 1])
        room = min(self._max_length, request.end) - len(text) - 1
        budget = min(self._max_tokens, request.max_drafts, room)
        if ended is not None or budget < 1:
            return []
        request.found = earlier.propose(request.text, cast("Sequence[int]", text), budget, tree=False)
        return self._kept(request, calibration, budget)[:limit]

    def _kept(self, request: _Request, calibration: DraftCalibration, budget: int) -> list[int]:
        """Return the found tokens up to the first that stops the request, or that is too unlikely."""
        floor = least_chance(budget) if self._settings.min_chance is None else self._settings.min_chance
        kept: list[int] = []
        for token, chance in zip(request.found.tokens, request.found.chances, strict=True):
            if calibration.corrected(chance) < floor:
                break
            kept.append(int(token))
            if token in request.stops:
                break
        return kept

    def _request(self, name: str, text: Tokens) -> _Request | None:
        if name not in self._requests:
            self._requests[name] = self._open(name, text)
        return self._requests[name]

    def _open(self, name: str, text: Tokens) -> _Request | None:
        """Open the text of a request that runs for the first time; None if it is not drafted for."""
        state = self._runner.requests[name]
        parameters = state.sampling_params
        prompt = text[: state.num_prompt_tokens]
        # Without token ids vLLM leaves those of an earlier request in the row.
        if parameters is None or state.prompt_token_ids is None or state.prompt_embeds is not None:
            return None
        options = parameters.extra_args or {}
        max_drafts = int(options.get(DRAFT_TOKENS, self._max_tokens))
        if max_drafts < 1 or (prompt < 0).any():
            return None
        cache, private = self._cache_for(name, options.get(OWNER), state.lora_request)
        length = len(prompt)
        end = self._max_length if parameters.max_tokens is None else length + parameters.max_tokens
        stops = frozenset() if parameters.ignore_eos else frozenset(parameters.all_stop_token_ids)
        number = self._caches.open(cache, prompt.astype(np.int32))
        return _Request(number, private, max_drafts, end, stops, length)

    def _cache_for(self, name: str, owner: object, lora: Any) -> tuple[str, bool]:
        """Return the name of the cache of a request, and whether it is of this request alone."""
        adapter = None if lora is None else lora.lora_name
        share = self._settings.share
        if share == "request" or (share == "owner" and owner is None):
            return json.dumps(["request", name]), True
        return json.dumps(["owner", None if owner is None else str(owner), adapter]), False

    def _close_ended(self) -> None:
        running = self._runner.requests
        for name in [name for name in self._requests if name not in running]:
            request = self._requests.pop(name)
            if request is not None:
                self._caches.close(request.text, keep=not request.private)

    def _note_time(self, names: Sequence[str]) -> None:
        """Record the time of the pass that ended, if each of its requests had its prompt computed before."""
        seconds = time.perf_counter() - self._passed_at
        if names and all(name in self._passed for name in names):
            self._times.add_batch(sum(self._passed[name] for name in names), len(names), seconds)

    def _limit(self, num_requests: int) -> int:
        """Return how many tokens pay for each of so many requests.

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
