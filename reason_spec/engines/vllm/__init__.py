"""vLLM as an engine: its engine core runs in a worker process of ours, and its drafts come from our hints.

``engine`` is the side that callers see, ``arguments`` turns settings into vLLM's own, ``host`` loads in
the worker, ``loop`` drives the engine core step by step, ``proposer`` drafts inside it.
"""
