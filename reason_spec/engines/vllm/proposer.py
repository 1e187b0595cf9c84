"""Drafts inside vLLM, from hints, earlier texts or prompt lookup.

vLLM makes a `HintProposer` from its ``speculative_config`` and asks it for drafts after every pass. The call
does not name the requests, so the `WorkerExtension` gives the proposer the model runner, which knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy.typing as npt

from reason_spec.engines.generation import Hint
from reason_spec.engines.text_updates import TextUpdate, apply_update
from reason_spec.engines.worker.loop import open_earlier_texts
from reason_spec.engines.worker.messages import Start
from reason_spec.engines.worker.pass_times import FULL_DRAFT_INTERVAL
from reason_spec.speculation.draft_calibration import HintRate, LookupRate, entry_of
from reason_spec.speculation.drafters import HintDrafter, look_up
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.goodput import (
    ASSUMED_RATE,
    BatchTime,
    Demand,
    draft_limits,
    mean_rate,
    uniform_limit,
)
from reason_spec.types import TokenDrafterName

EXTRA_ARGUMENT = "reason_spec"
"""The key of a request's drafting options in ``SamplingParams.extra_args``."""


class Rates:
    """Acceptance rates over all requests of one cache key."""

    def __init__(self) -> None:
        self.hinted = HintRate()
        self.looked_up = LookupRate()


class HintProposer:
    """The proposer that vLLM calls. Rows of a batch move between passes, so all state is kept by request."""

    def __init__(self, vllm_config: Any) -> None:
        self._max_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._runner: Any = None
        self._earlier: EarlierTexts | None = None
        self._time: BatchTime | None = None
        self._least_chance = 0.0
        self._num_passes = 0
        self._rates: dict[str, Rates] = {}
        self._drafts: dict[str, RequestDrafts] = {}

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing; vLLM's CPU runner calls this for every proposer."""

    def bind(self, runner: Any, earlier: EarlierTexts | None = None) -> None:
        """Set the model runner and the earlier texts to draft from."""
        self._runner = runner
        self._earlier = earlier

    def update_text(self, update: TextUpdate) -> None:
        if self._earlier is not None:
            apply_update(self._earlier, update)

    def set_pass_time(self, time: BatchTime, least_chance: float = 0.0) -> None:
        """Take the times of passes, and the chance below which a drafted token costs more than it saves."""
        self._time = time
        self._least_chance = least_chance

    def offer_hint(self, request_id: str, hint: Hint) -> None:
        """Take a hint for a request, which may not have run yet."""
        self._drafts_of(request_id).offer_hint(hint)

    def forget(self, request_id: str) -> None:
        self._drafts.pop(request_id, None)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[Any],
        **_: Any,
    ) -> list[list[int]]:
        """Return drafts for each row; none while its prompt is prefilled."""
        if self._runner is None:
            return [[] for _ in sampled_token_ids]
        self._drop_ended()
        self._num_passes += 1
        least_chance = 0.0 if self._num_passes % FULL_DRAFT_INTERVAL == 0 else self._least_chance
        proposals: list[list[int]] = [[] for _ in sampled_token_ids]
        drafting: dict[int, RequestDrafts] = {}
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            room = min(self._max_tokens, self._max_length - length - 1)
            if not sampled or room < 1:
                continue
            if (drafts := self._started(self._runner.input_batch.req_ids[row])) is None:
                continue
            proposals[row] = drafts.propose(token_ids_cpu[row, :length], room, least_chance)
            drafting[row] = drafts
        for row, limit in self._limits(drafting, len(sampled_token_ids)).items():
            proposals[row] = drafting[row].keep(limit)
        return proposals

    def _started(self, request_id: str) -> RequestDrafts | None:
        """Return the drafter of a running request; None for requests without drafts, such as scores."""
        drafts = self._drafts.get(request_id)
        if drafts is None or not drafts.started:
            request = self._runner.requests[request_id]
            options = (request.sampling_params.extra_args or {}).get(EXTRA_ARGUMENT)
            if options is None:
                return None
            drafts = self._drafts_of(request_id)
            rates = entry_of(self._rates, options.get("cache_key", ""), Rates)
            own = {name: value for name, value in options.items() if name != "cache_key"}
            drafts.start(int(request.num_prompt_tokens), rates, **own)
        return drafts

    def _drop_ended(self) -> None:
        """Drop the drafters of requests that ended during their last pass."""
        running = self._runner.requests
        ended = [name for name, drafts in self._drafts.items() if drafts.started and name not in running]
        for name in ended:
            del self._drafts[name]

    def _limits(self, drafting: dict[int, RequestDrafts], num_requests: int) -> dict[int, int]:
        """Return the number of drafts with the best throughput, for the rows that may be limited."""
        limited = [row for row, drafts in drafting.items() if drafts.limited]
        time = self._time
        if not limited or num_requests < 2 or time is None:
            return {}
        demands = [drafts.demand for drafts in drafting.values()]
        demands += [Demand(0.0, 0)] * (num_requests - len(demands))
        limits = dict(zip(drafting, draft_limits(demands, time), strict=False))
        for row in limited:
            if drafting[row].reads_earlier:
                # A tenant's drafts may depend on the number of other requests, not on their texts.
                limits[row] = uniform_limit(num_requests, self._max_tokens, ASSUMED_RATE, time)
        return {row: limits[row] for row in limited}

    def _drafts_of(self, request_id: str) -> RequestDrafts:
        if request_id not in self._drafts:
            self._drafts[request_id] = RequestDrafts(self._earlier)
        return self._drafts[request_id]


class RequestDrafts:
    """Drafts the tokens of one request."""

    def __init__(self, earlier: EarlierTexts | None = None) -> None:
        self.started = False
        self.limited = False
        """Whether the request may get fewer drafts for the throughput of the batch."""
        self._earlier = earlier
        self._looked_up = LookupRate()
        self._hinted = HintRate()
        self._drafted: list[int] = []
        """All that was found for the last pass; its first ``_num_worthwhile`` tokens were drafted."""
        self._num_worthwhile = 0
        self._is_lookup = False
        """Whether ``_drafted`` is by prompt lookup."""
        self._text: int | None = None
        self._to_end = self._is_final = True
        self._hints: dict[int, HintDrafter] = {}
        self._looks_up = False
        self._num_prompt = 0
        self._num_taken = 0
        self._max_tokens = 0
        self._generated: list[int] = []

    def start(
        self,
        num_prompt_tokens: int,
        rates: Rates,
        *,
        num_draft_tokens: int = 0,
        token_drafter: TokenDrafterName = "none",
        text: int | None = None,
        to_end: bool = True,
        may_be_cut: bool = False,
        limit_drafts: bool = False,
    ) -> None:
        self.started = True
        self._looked_up, self._hinted = rates.looked_up, HintRate(rates.hinted)
        self.limited = limit_drafts
        self._text, self._to_end = text, to_end
        self._is_final = to_end and not may_be_cut
        self._num_prompt = self._num_taken = num_prompt_tokens
        self._max_tokens = num_draft_tokens
        self._looks_up = token_drafter != "none"

    def offer_hint(self, hint: Hint) -> None:
        if hint.index not in self._hints:
            self._hints[hint.index] = HintDrafter(generated=self._generated)
        self._hints[hint.index].offer(hint.tokens, hint.start)

    @property
    def reads_earlier(self) -> bool:
        """Whether drafts may come from earlier texts."""
        return self._earlier is not None and self._text is not None

    @property
    def demand(self) -> Demand:
        """The number of tokens that could be drafted, and their acceptance rate.

        Where earlier texts are read it says nothing of what they hold: other requests see their share shrink.
        """
        if self.reads_earlier:
            return Demand(ASSUMED_RATE, self._max_tokens)
        chances = [self._rate.chance(number) for number in range(1, len(self._drafted) + 1)]
        return Demand(mean_rate(chances), len(chances))

    def keep(self, limit: int) -> list[int]:
        """Return the draft, of at most ``limit`` tokens."""
        return self._drafted[: min(limit, self._num_worthwhile)]

    def propose(self, text: npt.NDArray[Any], room: int, least_chance: float = 0.0) -> list[int]:
        """Learn the outcome of the last draft, and draft the next tokens of ``text``, prompt included.

        Args:
            least_chance: the chance below which a token costs more time than it saves; the first one is
                drafted in any case. It does not apply where earlier texts are read: a tenant's drafts must
                not depend on the speed that others leave.
        """
        if self._drafted:
            # A token that was left out is judged, too, where the pass generated one for its position.
            self._rate.learn(self._drafted, text[self._num_taken :].tolist())
        self._drafted = self._propose(text, room)
        self._num_worthwhile = len(self._drafted)
        if self._drafted and not self.reads_earlier:
            places = range(1, len(self._drafted) + 1)
            self._num_worthwhile = max(1, sum(self._rate.chance(place) >= least_chance for place in places))
        return self.keep(self._num_worthwhile)

    @property
    def _rate(self) -> HintRate | LookupRate:
        return self._looked_up if self._is_lookup else self._hinted

    def _propose(self, text: npt.NDArray[Any], room: int) -> list[int]:
        self._is_lookup = False
        if self._max_tokens == 0:
            return []
        new = text[self._num_taken :].tolist()
        self._num_taken = len(text)
        self._generated += new
        for drafter in self._hints.values():
            drafter.extend(new)
        budget = min(room, self._max_tokens)
        hinted = next((path for hint in self._hints.values() if (path := hint.propose(budget))), [])
        # The hint of a step ends with the step.
        room = 0 if hinted and not self._to_end else budget - len(hinted)
        if room > 0 and self._earlier is not None and self._text is not None:
            found = self._earlier.propose(
                self._text,
                cast("Sequence[int]", text),
                room,
                tree=False,
                final=self._is_final,
                drafted=hinted,
            )
            hinted += found.tokens
        self._is_lookup = self._looks_up and not hinted
        return look_up(text, budget) if self._is_lookup else hinted


class WorkerExtension:
    """Methods that vLLM adds to its workers, called through ``collective_rpc``.

    With ``tensor_parallel_size`` above 1 each worker is a process, so arguments are pickled copies.
    """

    model_runner: Any

    def reason_spec_bind(self, start: Start, tokenizer_id: str) -> None:
        """Open the earlier texts that ``start`` names, and enable drafts."""
        earlier = open_earlier_texts(start, tokenizer_id, lambda _: None)
        self._proposer.bind(self.model_runner, earlier)

    def reason_spec_update_text(self, update: TextUpdate) -> None:
        self._proposer.update_text(update)

    def reason_spec_set_pass_time(self, time: BatchTime, least_chance: float) -> None:
        self._proposer.set_pass_time(time, least_chance)

    def reason_spec_offer_hint(self, request_id: str, hint: Hint) -> None:
        self._proposer.offer_hint(request_id, hint)

    def reason_spec_forget(self, request_id: str) -> None:
        self._proposer.forget(request_id)

    @property
    def _proposer(self) -> HintProposer:
        proposer = self.model_runner.drafter
        assert isinstance(proposer, HintProposer)
        return proposer
