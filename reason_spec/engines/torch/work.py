"""What one request does in one pass, as the chains of tokens that the layout is made of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reason_spec.engines.torch.layout import Chain
from reason_spec.engines.torch.sequence import Sequence
from reason_spec.speculation.tree import ROOT, TokenTree


@dataclass(slots=True)
class Work:
    """What one request does in this pass: certain tokens, then drafts.

    ``completes_text``: the last of the certain tokens is the last of the text so far. ``chains`` are
    the paths through the drafts; each begins with the certain tokens.
    """

    sequence: Sequence
    num_certain: int
    completes_text: bool
    chains: list[Chain]
    drafts: TokenTree = field(default_factory=TokenTree)

    @property
    def num_tokens(self) -> int:
        return self.num_certain + len(self.drafts)

    def add_drafts(self, drafts: TokenTree) -> None:
        (certain,) = self.chains
        self.drafts = drafts
        self.chains = [
            replace(
                certain,
                tokens=[*certain.tokens, *(drafts.tokens[node] for node in path)],
                num_logits=certain.num_logits + len(path),
                entries=[],
            )
            for path in drafts.paths()
        ]

    @property
    def wanted_entries(self) -> list[int]:
        """The entries whose predictions this request needs."""
        wanted = [chain.entries[len(chain.entries) - chain.num_logits :] for chain in self.chains]
        return list(dict.fromkeys(entry for entries in wanted for entry in entries))

    def entry_behind(self) -> dict[int, int]:
        """Return the entry of each drafted node, and for `ROOT` that of the last certain token."""
        entries = {ROOT: self.chains[0].entries[self.num_certain - 1]}
        if self.drafts:
            for path, chain in zip(self.drafts.paths(), self.chains, strict=True):
                entries.update(zip(path, chain.entries[self.num_certain :], strict=True))
        return entries
