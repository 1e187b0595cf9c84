"""The losses of a draft: of the target's tokens, and of its distribution (DistillSpec, arXiv 2310.08461)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from reason_spec.lab.drafts.texts import IGNORED


class Loss(NamedTuple):
    """A loss in nats, summed over the tokens that have one, and their number."""

    total: Tensor
    num_tokens: int


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """Return the cross-entropy of tokens. Those with the label `IGNORED` are left out.

    Args:
        logits: [tokens, vocabulary].
        labels: [tokens].
    """
    total = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    return Loss(total, int((labels != IGNORED).sum()))


def forward_kl(logits: Tensor, target_logits: Tensor, labels: Tensor) -> Loss:
    """Return KL(target || draft), both over the draft's vocabulary.

    Tokens with the label `IGNORED` are left out: the target writes there what the draft cannot predict.

    Args:
        logits, target_logits: [tokens, draft vocabulary].
        labels: [tokens].
    """
    wanted = labels != IGNORED
    draft, target = (part[wanted].float().log_softmax(-1) for part in (logits, target_logits))
    total = functional.kl_div(draft, target, log_target=True, reduction="sum")
    return Loss(total, int(wanted.sum()))
