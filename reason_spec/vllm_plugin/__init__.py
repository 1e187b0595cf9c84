"""A plugin of vLLM: drafts for plain ``vllm serve``, without our server.

vLLM calls `register` in each of its processes, through the entry point ``vllm.general_plugins``. It makes a
`proposer.Proposer` if ``--speculative-config`` names that class.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.reason_spec")
"""vLLM prints what is logged below its own name."""


def register() -> None:
    """Repair sampling with drafts in vLLM's CPU build. Does nothing on other platforms, and never raises."""
    try:
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            from reason_spec.engines.vllm.repairs import repair_sampling_with_drafts

            repair_sampling_with_drafts()
    except Exception as error:
        logger.warning("reason-spec repairs nothing in vLLM: %s: %s", type(error).__name__, error)
