"""The OpenAI-compatible endpoint: HTTP around ``reason_spec.chat``."""
