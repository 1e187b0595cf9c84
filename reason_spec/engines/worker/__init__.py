"""Engines whose model runs in a worker process: both ends of the pipe, and the messages between them.

``engine`` is the callers' side, ``supervisor`` and ``process`` start and end the worker. ``main`` runs in the
worker and drives a `loop.EngineLoop`: the scheduler of the torch engine, or vLLM's engine core.
"""
