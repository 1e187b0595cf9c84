"""Conversations as agents hold them: thinking, tools, bound output, on top of the accelerator."""
