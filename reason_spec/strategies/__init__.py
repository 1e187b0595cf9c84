"""The step-level layer: who writes the next step, and how far ahead."""
