"""Drafts for requests of vLLM, from all texts that the server has read and generated.

They come from the suffix cache, which also holds the request's own text. `proposer` asks for them on vLLM's
older model runner, `speculator` on the newer one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from reason_spec.settings import SuffixSettings
from reason_spec.settings.base import Section
from reason_spec.speculation.draft_calibration import DraftCalibration
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.base import Proposal
from reason_spec.suffix.cache import warm_up
from reason_spec.suffix.scopes import StoredCache, SuffixCaches
from reason_spec.suffix.session import least_chance
from reason_spec.vllm_plugin import logger

SECTION: Final = "reason_spec"
"""The key of our settings in vLLM's ``--additional-config``; its ``--speculative-config`` refuses ours."""
OWNER: Final = "reason_spec_owner"
"""The key in a request's ``vllm_xargs`` that names the owner of its text."""
DRAFT_TOKENS: Final = "reason_spec_draft_tokens"
"""The key in a request's ``vllm_xargs`` that limits its draft tokens; 0 keeps its text unlearnt, too."""
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
        default=64,
        ge=1,
        description="caches of owners and adapters, each of max_bytes; the least recently used goes first",
    )
    min_chance: float | None = Field(
        default=None, ge=0, le=1, description="minimum probability of a draft token; null: 0.05 to 0.1"
    )
    limit_drafts: bool = Field(
        default=True, description="draft fewer tokens if many requests make passes long, by measured times"
    )
    newer_runner: bool = Field(
        default=False,
        description="draft in place of the method ngram_gpu on vLLM's newer model runner, if "
        "VLLM_USE_V2_MODEL_RUNNER=1; untested on devices",
    )


def plugin_settings(vllm_config: Any) -> PluginSettings:
    """Return our section of vLLM's ``--additional-config``.

    Raises:
        pydantic.ValidationError: a key or a value of it is wrong.
    """
    additional = vllm_config.additional_config
    own = additional.get(SECTION, {}) if isinstance(additional, dict) else {}
    return PluginSettings.model_validate(own)


class TextCaches:
    """The suffix caches, by name; the least recently used one without an open text is dropped first."""

    def __init__(self, settings: PluginSettings) -> None:
        warm_up()
        own = SuffixSettings(max_bytes=settings.max_bytes, min_chance=settings.min_chance)
        self.earlier = EarlierTexts(SuffixCaches(lambda _: StoredCache(own, None, saves=False)))
        self._max_caches = settings.max_caches
        self._num_open: dict[str, int] = {}
        self._num_private = 0
        self._cache_of: dict[int, str] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._num_open)

    def open(self, cache: str, prompt: Tokens, *, private: bool) -> int:
        """Learn a prompt; return the number of its text. A ``private`` cache is of this text alone."""
        number = next(self._numbers)
        self._num_open[cache] = self._num_open.pop(cache, 0) + 1
        self._num_private += private
        self._cache_of[number] = cache
        unused = [name for name, count in self._num_open.items() if not count]
        self._drop(unused, self._max_caches + self._num_private)
        self.earlier.begin(number, cache, cache, [("prompt", cast("Sequence[int]", prompt))])
        return number

    def close(self, number: int, *, private: bool) -> None:
        """End a text; a ``private`` cache is dropped with it."""
        cache = self._cache_of.pop(number)
        self.earlier.close(number)
        self._num_open[cache] -= 1
        self._num_private -= private
        if private:
            self._drop([cache], 0)

    def _drop(self, unused: Iterable[str], max_caches: int) -> None:
        for cache in unused:
            if len(self._num_open) > max_caches:
                del self._num_open[cache]
                self.earlier.forget(cache)


@dataclass(slots=True)
class Request:
    """A request that is drafted for.

    ``length`` is that of its text now, and ``end`` at ``max_tokens``; ``ended``: a token came that stops it.
    """

    text: int
    private: bool
    max_drafts: int
    end: int
    stops: frozenset[int]
    length: int
    found: Proposal = _NOTHING
    ended: bool = False


class Drafter:
    """Learns the texts of requests, and drafts their next tokens. All state is kept by the name of a request.

    Raises:
        pydantic.ValidationError: a key or a value of ``additional_config.reason_spec`` is wrong.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._settings = plugin_settings(vllm_config)
        self._max_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._caches = TextCaches(self._settings)
        self._requests: dict[str, Request | None] = {}
        """None: a request without drafts."""
        self._num_errors, self._next_logged = 0, 1

    def _open(
        self, name: str, prompt: Tokens, end: int, parameters: Any, adapter: str | None
    ) -> Request | None:
        """Open the text of a request; None if it is not drafted for.

        Args:
            end: the length of its text at ``max_tokens``.
            parameters: vLLM's ``SamplingParams``.
            adapter: the name of its LoRA adapter.
        """
        options = parameters.extra_args or {}
        try:
            max_drafts = int(options.get(DRAFT_TOKENS, self._max_tokens))
        except (TypeError, ValueError, OverflowError):
            # A client's mistake must not end the pass for the other requests.
            return None
        if max_drafts < 1 or (prompt < 0).any():
            return None
        cache, private = self._cache_for(name, options.get(OWNER), adapter)
        # The stop ids of the request itself hold even then.
        stops = frozenset(
            parameters.stop_token_ids or () if parameters.ignore_eos else parameters.all_stop_token_ids
        )
        number = self._caches.open(cache, prompt.astype(np.int32), private=private)
        return Request(number, private, max_drafts, end, stops, len(prompt))

    def _cache_for(self, name: str, owner: object, adapter: str | None) -> tuple[str, bool]:
        """Return the name of the cache of a request, and whether it is of this request alone."""
        share = self._settings.share
        if share == "request" or (share == "owner" and owner is None):
            return json.dumps(["request", name]), True
        return json.dumps(["owner", None if owner is None else str(owner), adapter]), False

    def _draft(self, request: Request, came: list[int], length: int, limit: int) -> list[int]:
        """Learn the tokens that came, with which the text has ``length``; draft up to ``limit`` next ones."""
        earlier = self._caches.earlier
        found, request.found, request.length = request.found, _NOTHING, length
        if request.ended or (calibration := earlier.calibration(request.text)) is None:
            return []
        calibration.learn(found, came)
        stop = next((place for place, token in enumerate(came) if token in request.stops), None)
        request.ended = stop is not None
        earlier.extend(request.text, came if stop is None else came[: stop + 1])
        room = min(self._max_length, request.end) - length - 1
        budget = min(self._max_tokens, request.max_drafts, room)
        if request.ended or budget < 1:
            return []
        # The whole text is learned by now, so of it only the length is read.
        request.found = earlier.propose(request.text, range(length), budget, tree=False)
        return self._kept(request, calibration, budget)[:limit]

    def _kept(self, request: Request, calibration: DraftCalibration, budget: int) -> list[int]:
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

    def _log_error(self) -> None:
        """Log the present exception if it is the first, the tenth, the hundredth, and so on."""
        self._num_errors += 1
        if self._num_errors == self._next_logged:
            self._next_logged *= 10
            logger.exception("reason-spec drafts less in this pass; errors until now: %d", self._num_errors)

    def _close(self, name: str) -> None:
        request = self._requests.pop(name, None)
        if request is not None:
            self._caches.close(request.text, private=request.private)

    def _close_ended(self, running: Container[str]) -> None:
        for name in [name for name in self._requests if name not in running]:
            self._close(name)
