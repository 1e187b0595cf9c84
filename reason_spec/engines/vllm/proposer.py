"""Drafts inside vLLM: what another layer expects of a request, what followed in earlier texts, or in its own.

vLLM makes a `HintProposer` from its ``speculative_config`` and asks it for drafts after every pass. It is
not told which requests it drafts for; the `WorkerExtension` hands it the model runner, which knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy.typing as npt

from reason_spec.engines.base import Hint, TokenDrafterName
from reason_spec.speculation.drafters import HintDrafter, PromptLookupDrafter
from reason_spec.speculation.earlier_texts import EarlierTexts

EXTRA_ARGUMENT = "reason_spec"
"""The name in ``SamplingParams.extra_args`` under which a request says how it is to be drafted for."""


class HintProposer:
    """The proposer that vLLM calls. Rows of a batch move between passes, so all state is by request."""

    def __init__(self, vllm_config: Any) -> None:
        self._max_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._runner: Any = None
        self._earlier: EarlierTexts | None = None
        self._drafts: dict[str, RequestDrafts] = {}

    def load_model(self, *_: Any, **__: Any) -> None:
        """Load nothing; the CPU runner calls this for every proposer."""

    def bind(self, runner: Any, earlier: EarlierTexts | None = None) -> None:
        """Take the model runner, whose requests are drafted for, and the texts they go on from."""
        self._runner = runner
        self._earlier = earlier

    def offer(self, request_id: str, hint: Hint) -> None:
        """Take a hint for a request, which may not have run yet."""
        self._drafts_of(request_id).offer(hint)

    def forget(self, request_id: str) -> None:
        self._drafts.pop(request_id, None)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[Any],
        **_: Any,
    ) -> list[list[int]]:
        """Return drafts for each row; none where its prompt is not through, or there is no guess."""
        if self._runner is None:
            return [[] for _ in sampled_token_ids]
        proposals: list[list[int]] = []
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            room = min(self._max_tokens, self._max_length - length - 1)
            if not sampled or room < 1:
                proposals.append([])
                continue
            request_id = self._runner.input_batch.req_ids[row]
            drafts = self._drafts_of(request_id)
            if not drafts.started:
                request = self._runner.requests[request_id]
                options = (request.sampling_params.extra_args or {}).get(EXTRA_ARGUMENT) or {}
                drafts.start(int(request.num_prompt_tokens), **options)
            proposals.append(drafts.propose(token_ids_cpu[row, :length], room))
        return proposals

    def _drafts_of(self, request_id: str) -> RequestDrafts:
        if request_id not in self._drafts:
            self._drafts[request_id] = RequestDrafts(self._earlier)
        return self._drafts[request_id]


class RequestDrafts:
    """What is drafted for one request."""

    def __init__(self, earlier: EarlierTexts | None = None) -> None:
        self.started = False
        self._earlier = earlier
        self._text: int | None = None
        self._to_end = True
        self._hints: dict[int, HintDrafter] = {}
        self._lookup: PromptLookupDrafter | None = None
        self._num_prompt = 0
        self._num_taken = 0
        self._max_tokens = 0
        self._generated: list[int] = []

    def start(
        self,
        num_prompt_tokens: int,
        num_draft_tokens: int = 0,
        token_drafter: TokenDrafterName = "none",
        hint: Sequence[int] = (),
        text: int | None = None,
        to_end: bool = True,
    ) -> None:
        self.started = True
        self._text, self._to_end = text, to_end
        self._num_prompt = self._num_taken = num_prompt_tokens
        self._max_tokens = num_draft_tokens
        if token_drafter == "prompt_lookup":
            self._lookup = PromptLookupDrafter()
        if hint and 0 not in self._hints:
            self.offer(Hint(tuple(hint)))

    def offer(self, hint: Hint) -> None:
        if hint.index not in self._hints:
            self._hints[hint.index] = HintDrafter(generated=self._generated)
        self._hints[hint.index].offer(hint.tokens, hint.start)

    def propose(self, text: npt.NDArray[Any], room: int) -> list[int]:
        """Draft what may follow ``text``, prompt and answer so far."""
        if self._max_tokens == 0:
            return []
        if self._lookup is not None:
            self._lookup.extend(text[self._lookup.length :].tolist())
        new = text[self._num_taken :].tolist()
        self._num_taken = len(text)
        self._generated += new
        for drafter in self._hints.values():
            drafter.extend(new)
        budget = min(room, self._max_tokens)
        hinted = next((path for hint in self._hints.values() if (path := hint.propose(budget))), [])
        # What is hinted of a step ends with the step.
        room = 0 if hinted and not self._to_end else budget - len(hinted)
        if room > 0 and self._earlier is not None and self._text is not None:
            found = self._earlier.propose(
                self._text, cast("Sequence[int]", text), room, tree=False, final=self._to_end, drafted=hinted
            )
            hinted += found.tokens
        if hinted or self._lookup is None:
            return hinted
        return self._lookup.propose(budget)


class WorkerExtension:
    """Methods that vLLM adds to its workers, called through ``collective_rpc``."""

    model_runner: Any

    def reason_spec_bind(self, earlier: EarlierTexts | None = None) -> None:
        self._proposer.bind(self.model_runner, earlier)

    def reason_spec_offer(self, request_id: str, tokens: Sequence[int], start: int, index: int) -> None:
        self._proposer.offer(request_id, Hint(tuple(tokens), start, index))

    def reason_spec_forget(self, request_id: str) -> None:
        self._proposer.forget(request_id)

    @property
    def _proposer(self) -> HintProposer:
        proposer = self.model_runner.drafter
        assert isinstance(proposer, HintProposer)
        return proposer
