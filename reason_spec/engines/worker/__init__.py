"""Engines whose model runs in a worker process of its own: both ends of the pipe, and what crosses it.

``engine`` is the side that callers see, ``process`` starts and ends the worker, ``main`` runs in it and
drives a `loop.StepLoop`, which the engines bring: the scheduler of the torch engine, vLLM's engine core.
"""
