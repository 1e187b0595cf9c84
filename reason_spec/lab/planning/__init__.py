"""Predictions of speedup: simulator, diagnosis, published figures."""
