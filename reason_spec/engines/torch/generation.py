"""One request to generate: its output, the choice of its tokens, and its drafts."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from reason_spec.engines.base import TIMES_IF_LIKELY, EngineRequest, GenerationResult, Hint, Tokenizer
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.torch.choice import TokenChoice
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.sequence import Sequence
from reason_spec.engines.torch.texts import Places, SharedArray
from reason_spec.speculation.draft_calibration import DraftRates, HintRate
from reason_spec.speculation.drafters import HintDrafter, look_up
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.goodput import Demand
from reason_spec.speculation.recycling import Seen
from reason_spec.speculation.tree import ROOT, TokenTree
from reason_spec.suffix.base import Proposal
from reason_spec.types import Usage

_LIKELY = 0.5
"""Drafts with at least this chance may exceed ``num_draft_tokens``."""
_NO_LIMIT = 1 << 10


class GenerationSequence(Sequence):
    """A request to generate.

    Args:
        earlier: earlier texts to draft from; None for none.
        rates: acceptance rates over all requests of the same cache key.
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
        places: Places | None = None,
    ) -> None:
        super().__init__(number, request.prefix, trie, request.priority, places)
        self.request = request
        self.output = RequestOutput(request, tokenizer, max_context - self.num_prefix)
        self.choice = choice or TokenChoice(request)
        self.drafter = SequenceDrafter(
            request, self.tokens, self.output, self.choice, earlier, rates or DraftRates()
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
        """Append certain tokens up to the end of the generation; return how many were kept."""
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


@dataclass(frozen=True, slots=True)
class _Drafted:
    """The sources of one pass's drafts.

    A hint and the proposal of earlier texts after it; or a hint, a model or recycled tokens, and what prompt
    lookup found.
    """

    hinted: tuple[int, ...] = ()
    proposal: Proposal = field(default_factory=Proposal)
    by_model: Proposal = field(default_factory=Proposal)
    looked_up: tuple[int, ...] = ()
    recycled: Proposal = field(default_factory=Proposal)


class SequenceDrafter:
    """Drafts the next tokens of one sequence from hints, earlier texts and the text itself.

    Args:
        tokens: the text so far, which grows.
        output: the generated part of it.
        choice: holds the constraint, which drafts must not break.
    """

    def __init__(
        self,
        request: EngineRequest,
        tokens: SharedArray,
        output: RequestOutput,
        choice: TokenChoice,
        earlier: EarlierTexts | None,
        rates: DraftRates,
    ) -> None:
        self._request = request
        self._tokens = tokens
        self._output = output
        self._choice = choice
        self._earlier = earlier if request.text is not None else None
        self._rates = rates
        self._hint_rate = HintRate(rates.hinted)
        self._hints: dict[int, HintDrafter] = {}
        self._by_model = Proposal()
        self._looked_up: tuple[int, list[int]] = 0, []
        """The length of the text, and what prompt lookup found for it."""
        self._recycled: tuple[int, Proposal] = 0, Proposal()
        """The length of the text, and the tree of recycled tokens after it."""
        self._drafted = _Drafted()

    def offer_hint(self, hint: Hint) -> None:
        """Replace the hint of one index; hints of all indices are followed."""
        if hint.index not in self._hints:
            self._hints[hint.index] = HintDrafter(generated=self._output.tokens)
        self._hints[hint.index].offer(hint.tokens, hint.start)

    @property
    def model_budget(self) -> int:
        """The most tokens that a model in the engine may draft for the next pass; 0 where a hint applies."""
        if self._request.token_drafter not in ("model", "model_and_prompt_lookup"):
            return 0
        return 0 if any(hint.propose(1) for hint in self._hints.values()) else max(0, self._longest)

    def gain_of_next(self, drafted: Proposal) -> float:
        """Return the expected gain of one more token in a draft of a model in the engine."""
        return self._rates.gain_of_next(drafted, len(self._look_up()))

    def offer_model_draft(self, draft: Proposal) -> None:
        """Take what a model in the engine has drafted for the next pass."""
        self._by_model = draft

    @property
    def recycles(self) -> bool:
        """Whether passes are asked for their likeliest tokens."""
        return self._request.token_drafter == "recycling"

    def recycle(self, drafts: TokenTree, seen: SequenceOf[Seen]) -> None:
        """Keep the predictions of a pass: after the last token of the text, and after each draft."""
        last, before = int(self._tokens.values[-1]), self._tokens.values[-2:-1].tolist()
        table = self._rates.recycled_tokens
        table.learn(before[0] if before else None, last, seen[0])
        for token, parent, found in zip(drafts.tokens, drafts.parents, seen[1:], strict=True):
            table.learn(last if parent == ROOT else drafts.tokens[parent], token, found)

    @property
    def reads_earlier(self) -> bool:
        """Whether drafts may come from earlier texts."""
        return self._earlier is not None

    @property
    def demand(self) -> Demand:
        """The number of tokens that could be drafted for the next pass, and their acceptance rate."""
        budget = self._request.num_draft_tokens
        most = min(budget, self._room)
        longest_hint = max((len(hint.propose(_NO_LIMIT)) for hint in self._hints.values()), default=0)
        if longest_hint > 0:
            most = min(longest_hint, TIMES_IF_LIKELY * budget, self._room)
        elif self._earlier is None:
            return self._demand_without_texts()
        return Demand(self._hint_rate.chance(1), max(0, most))

    def _demand_without_texts(self) -> Demand:
        by_model, looked_up = self._by_model, self._look_up()
        chances = [(self._rates.looked_up.chance(len(looked_up)), len(looked_up))] if looked_up else []
        if recycled := self._recycle_tree().chances:
            chances.append((recycled[0], 1))
        if by_model.tokens:
            chances.append((by_model.chances[-1], len(by_model.tokens)))
        rate = max((chance ** (1 / length) for chance, length in chances), default=0.0)
        return Demand(rate, sum(length for _, length in chances))

    def propose(self, least_chance: float = 0.0, limit: int | None = None) -> TokenTree:
        """Draft from hints first, then from earlier texts, then from the text itself.

        Args:
            least_chance: the chance below which a hinted token costs more time than it saves. It does not
                apply to earlier texts: a tenant's drafts must not depend on the speed that others leave.
            limit: the most tokens; None for as many as the request allows.
        """
        self._drafted = _Drafted()
        longest = self._longest
        if longest < 1 or limit == 0:
            return TokenTree()
        drafts = self._choice.drafts(self._propose(longest, least_chance), longest)
        return drafts if limit is None else drafts.first(limit)

    def learn(self, certain: SequenceOf[int]) -> None:
        """Update the acceptance rates by the tokens that the pass made certain."""
        hinted, proposal = self._drafted.hinted, self._drafted.proposal
        self._hint_rate.learn(hinted, certain)
        self._rates.by_model.learn(self._drafted.by_model, certain)
        self._rates.looked_up.learn(self._drafted.looked_up, certain)
        self._rates.recycled.learn(self._drafted.recycled, certain)
        if self._earlier is None or not proposal.tokens or tuple(certain[: len(hinted)]) != hinted:
            return
        assert self._request.text is not None
        if (calibration := self._earlier.calibration(self._request.text)) is not None:
            calibration.learn(proposal, certain[len(hinted) :])

    def follow(self, tokens: SequenceOf[int]) -> None:
        """Advance the hints along new tokens of the text."""
        for hint in self._hints.values():
            hint.extend(tokens)

    @property
    def _room(self) -> int:
        return self._output.max_tokens - len(self._output.tokens) - 1

    @property
    def _longest(self) -> int:
        return min(self._request.num_draft_tokens, self._room)

    def _look_up(self) -> list[int]:
        """Return what prompt lookup finds; a text is searched once at each length."""
        if self._request.token_drafter not in ("prompt_lookup", "model_and_prompt_lookup", "recycling"):
            return []
        if self._looked_up[0] != len(self._tokens):
            self._looked_up = len(self._tokens), look_up(self._tokens.values, self._longest)
        return self._looked_up[1]

    def _recycle_tree(self) -> Proposal:
        if not self.recycles:
            return Proposal()
        if self._recycled[0] != len(self._tokens):
            text = self._tokens.values
            self._recycled = len(text), self._rates.recycled_tokens.propose(text[-2:].tolist(), self._longest)
        return self._recycled[1]

    def _likely_tree(self, least_chance: float) -> Proposal:
        """Return the nodes of recycled tokens that are likely enough; the first one is always tried."""
        found = self._recycle_tree()
        kept = [ROOT]
        for node, (chance, parent) in enumerate(zip(found.chances, found.parents, strict=True)):
            likely = self._rates.recycled.corrected(chance) >= least_chance
            if parent in kept and (likely or len(kept) == 1):
                kept.append(node)
        tree = TokenTree(found.tokens, found.parents).restricted(kept[1:])
        return Proposal(tree.tokens, tree.parents, tuple(found.chances[node] for node in kept[1:]))

    def _propose(self, longest: int, least_chance: float) -> TokenTree:
        budget = self._request.num_draft_tokens
        paths = [path for hint in self._hints.values() if (path := hint.propose(TIMES_IF_LIKELY * budget))]
        if len(paths) < 2:
            hinted = self._likely_part(paths[0], least_chance) if paths else []
            self._drafted = _Drafted(tuple(hinted))
            if self._earlier is not None:
                drafts = self._from_earlier(self._earlier, hinted)
                if drafts:
                    return drafts
            by_model = Proposal() if hinted else self._by_model
            looked_up = self._likely_lookup(len(hinted), least_chance)
            recycled = Proposal() if hinted or by_model.tokens else self._likely_tree(least_chance)
            self._drafted = _Drafted(
                tuple(hinted), by_model=by_model, looked_up=tuple(looked_up), recycled=recycled
            )
            if recycled.tokens:
                tree = TokenTree(recycled.tokens, recycled.parents)
                return tree.with_path(looked_up[:longest], len(tree) + len(looked_up))
            paths = [hinted or list(by_model.tokens), looked_up]
            longest, budget = max(longest, len(hinted)), max(budget, sum(map(len, paths)))
        self._by_model = Proposal()
        return TokenTree.merge([path[:longest] for path in paths if path], max(budget, longest))

    def _likely_part(self, hinted: list[int], least_chance: float) -> list[int]:
        """Return the beginning of a hint whose tokens are likely enough to be accepted."""
        length = min(len(hinted), self._room)
        rate = self._hint_rate
        while length > self._request.num_draft_tokens and rate.chance(length) < _LIKELY:
            length -= 1
        while length > 1 and rate.chance(length) < least_chance:
            length -= 1
        return hinted[:length]

    def _likely_lookup(self, num_hinted: int, least_chance: float) -> list[int]:
        """Return the beginning of what prompt lookup finds that is likely enough to be accepted.

        Beside a hint a token gains nothing where as many hinted tokens are right. Without one the first token
        is kept, so that its rate goes on being measured.
        """
        looked_up = self._look_up()
        least = 0 if num_hinted else 1
        while len(looked_up) > least:
            length = len(looked_up)
            covered = self._hint_rate.chance(length) if length <= num_hinted else 0.0
            if self._rates.looked_up.chance(length) * (1.0 - covered) >= least_chance:
                break
            looked_up = looked_up[:-1]
        return looked_up

    def _from_earlier(self, earlier: EarlierTexts, hinted: list[int]) -> TokenTree:
        """Return a hint, if any, and the continuations of earlier texts after it.

        Likely tokens may exceed ``num_draft_tokens``: verifying one costs less than a pass of its own.
        """
        if hinted and self._output.length_to_end(hinted) is not None:
            return TokenTree()
        text = self._request.text
        assert text is not None
        if (calibration := earlier.calibration(text)) is None:
            return TokenTree()
        budget = self._request.num_draft_tokens
        room = min(TIMES_IF_LIKELY * budget, self._room) - len(hinted)
        final = self._request.boundary is None
        found = earlier.propose(text, self._tokens.values, room, tree=True, final=final, drafted=hinted)
        chance_of_hint = self._hint_rate.chance(len(hinted))
        chances: list[float] = []
        for chance, parent in zip(found.chances, found.parents, strict=True):
            of_parent = chances[parent] if parent >= 0 else 1.0
            chances.append(min(chance_of_hint * calibration.corrected(chance), of_parent))
        by_chance = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
        num_any = max(0, min(budget, self._room) - len(hinted))
        kept = sorted(
            node for rank, node in enumerate(by_chance) if rank < num_any or chances[node] >= _LIKELY
        )
        self._drafted = _Drafted(tuple(hinted), found)
        drafts = TokenTree(found.tokens, found.parents).restricted(kept).with_prefix(hinted)
        return drafts.pruned(self._output.length_to_end)
