"""Evaluation over several machines with Ray."""
