"""Trains drafts for a target on its own answers."""
