"""Replays conversations with tools run ahead, and trains the model of the next call."""
