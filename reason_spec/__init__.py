"""reason-spec: step-level and token-level speculation for reasoning models."""

from __future__ import annotations

__version__ = "0.1.0"
