"""Verifiers decide whether a drafted step is accepted; ``base`` holds the contract."""

from __future__ import annotations

from reason_spec.verifiers.base import VerificationContext, Verifier, create_verifier, verifier_names

__all__ = ["VerificationContext", "Verifier", "create_verifier", "verifier_names"]
