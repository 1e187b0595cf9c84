"""The embedded engine: any plain-attention Hugging Face causal LM in a worker process of its own.

In the worker, ``host`` loads, ``scheduler`` runs the step loop, ``sequence`` is one request, ``kv`` says
which slot holds which token, ``layout`` arranges a pass, ``attention`` and ``model`` run it.
"""
