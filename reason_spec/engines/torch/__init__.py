"""The embedded engine: Hugging Face causal LMs with plain attention, in a worker process.

In the worker, ``host`` loads the model and ``scheduler`` runs the step loop: ``admission`` and ``pass_plan``
schedule, ``layout`` lays a pass out, ``model`` and ``attention`` run it, ``acceptor`` verifies its drafts.
``sequence`` and ``generation`` are one request, ``kv`` and ``texts`` its cached prefix.
"""
