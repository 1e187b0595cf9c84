"""The ``reason-spec`` command: one module a command group, its screens and tables beside it."""
