"""A plugin of vLLM: drafts for plain ``vllm serve``, without our server.

vLLM calls `register` in each of its processes, through the entry point ``vllm.general_plugins``. It makes a
`proposer.Proposer` if ``--speculative-config`` names that class. Where its newer model runner is forced,
`speculator.Speculator` can take the place of vLLM's method ``ngram_gpu``.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.reason_spec")
"""vLLM prints what is logged below its own name."""


def register() -> None:
    """Repair sampling in vLLM's CPU build; offer our speculator if the newer runner is forced.

    Does nothing otherwise, and never raises.
    """
    try:
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            from reason_spec.engines.vllm.repairs import repair_sampling

            repair_sampling()
    except Exception as error:
        logger.warning("reason-spec repairs nothing in vLLM: %s: %s", type(error).__name__, error)
    try:
        from vllm import envs

        if envs.VLLM_USE_V2_MODEL_RUNNER:
            from reason_spec.vllm_plugin.speculator import offer_speculator

            offer_speculator()
    except Exception as error:
        logger.warning("reason-spec offers vLLM no speculator: %s: %s", type(error).__name__, error)
