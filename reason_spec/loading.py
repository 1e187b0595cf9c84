"""One model is loaded at a time: transformers changes itself while it builds one."""

from __future__ import annotations

import threading

# ``from_pretrained`` and ``from_config`` replace methods of transformers' own classes and torch's default
# dtype while they work, and put back what they found. Of two threads that load at once one finds what the
# other has put there, and it stays: every model with tied embeddings that this process loads from then on
# has an output layer of whatever was in memory. Held by all that loads a model into a process that may
# have others.
LOADING = threading.RLock()
