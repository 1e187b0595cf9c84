"""Verifiers: does a drafted step stand? Import the contract from ``base``; models load on ``start``."""

from __future__ import annotations

from reason_spec.verifiers.base import VerificationContext, Verifier, create_verifier, verifier_names

__all__ = ["VerificationContext", "Verifier", "create_verifier", "verifier_names"]
