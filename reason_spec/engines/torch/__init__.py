"""The embedded engine: any plain-attention Hugging Face causal LM in a worker process of its own.

``engine`` is the side that callers see, ``worker`` the process; between them only tokens cross. In
the worker, ``scheduler`` runs the step loop, ``sequence`` is one request, ``kv`` says which slot holds
which token, ``layout`` arranges a pass, ``attention`` and ``model`` run it.
"""
