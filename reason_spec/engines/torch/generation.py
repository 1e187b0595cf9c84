"""One request to generate: its output, and what its passes count."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from reason_spec.engines.base import Tokenizer
from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.sequence import Sequence
from reason_spec.engines.torch.sequence_drafter import DraftRates, SequenceDrafter
from reason_spec.engines.torch.texts import CachedPrefixes
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.recycling import RecycledTokens
from reason_spec.types import Usage


class GenerationSequence(Sequence):
    """A request to generate.

    Args:
        earlier: earlier texts to draft from; None for none.
        rates: acceptance rates over all requests of the same cache key.
        siblings: as in `SequenceDrafter`.
    """

    def __init__(
        self,
        number: int,
        request: EngineRequest,
        trie: PrefixTrie,
        tokenizer: Tokenizer,
        max_context: int,
        earlier: EarlierTexts | None = None,
        choice: TokenChoice | None = None,
        rates: DraftRates | None = None,
        cached: CachedPrefixes | None = None,
        siblings: RecycledTokens | None = None,
    ) -> None:
        super().__init__(number, request.prefix, trie, request.priority, cached)
        self.request = request
        self.output = RequestOutput(request, tokenizer, max_context - self.num_prefix)
        self.choice = choice or TokenChoice(request)
        self.drafter = SequenceDrafter(
            request, self.tokens, self.output, self.choice, earlier, rates or DraftRates(0), siblings
        )
        self._passes_by_accepted: list[int] = []
        self.count(num_prompt_tokens=self.num_prefix)

    @property
    def usage(self) -> Usage:
        return replace(super().usage, acceptance_histogram=tuple(self._passes_by_accepted))

    @property
    def finished(self) -> bool:
        return self.output.finish is not None or super().finished

    @property
    def ready(self) -> bool:
        ready = self.choice.ready
        self.error = self.error or self.choice.error
        return ready

    def extend(self, tokens: SequenceOf[int], logprobs: SequenceOf[float]) -> int:
        """Append generated tokens up to the end of the generation; return how many were kept."""
        self.drafter.learn(tokens)
        before = len(self.output.tokens)
        self.output.extend(tokens, logprobs)
        kept = self.output.tokens[before:]
        self.tokens.extend(kept)
        self.drafter.follow(kept)
        self.count(num_generated_tokens=len(kept), num_discarded_tokens=len(tokens) - len(kept))
        return len(kept)

    def count_drafts(self, num_drafted: int, num_accepted: int, *, is_rejected: bool) -> None:
        """Count the drafts of one pass."""
        if num_drafted:
            missing = num_accepted + 1 - len(self._passes_by_accepted)
            self._passes_by_accepted += [0] * missing
            self._passes_by_accepted[num_accepted] += 1
            self.count(num_drafted_tokens=num_drafted, num_accepted_draft_tokens=num_accepted)
        self.count(num_rejections=int(is_rejected))

    def result(self) -> GenerationResult:
        """Return the result; the path must be released by now."""
        finish = "failed" if self.error is not None else self.output.finish or "cancelled"
        return self.output.result(finish, self.usage, self.error)
