"""Engines: each hosts one model and runs its step loop; ``factory.create_engine`` makes them."""
