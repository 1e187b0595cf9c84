"""Loads causal language models, one at a time: transformers changes itself while it builds one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

# ``from_pretrained`` and ``from_config`` replace methods of transformers' own classes and torch's default
# dtype while they work, and put back what they found. Of two threads that load at once one finds what the
# other has put there, and it stays: every model with tied embeddings that this process loads from then on
# has an output layer of whatever was in memory. Held by all that loads a model into a process that may
# have others.
LOADING = threading.RLock()


def load_causal_lm(model: str, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    """Load a model by folder or id, without a progress bar.

    Raises:
        Exception: whatever transformers raises for files that it cannot load.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with LOADING:
        loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **options)
    return loaded


def empty_causal_lm(config: PretrainedConfig, *, trust_remote_code: bool) -> PreTrainedModel:
    """Build a model without memory for its weights.

    Raises:
        Exception: whatever transformers raises for configurations that it cannot use.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with LOADING, torch.device("meta"):
        built: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return built
