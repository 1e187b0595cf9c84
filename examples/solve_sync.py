"""Solve problems from a program without an event loop, and see what an answer took.

Run it with: python examples/solve_sync.py
"""

from __future__ import annotations

from reason_spec.sync import SyncAccelerator

STREAMED = "Leo has 8 flowers. Dan has 3 flowers more than Leo does. How many flowers does Dan have?"
COUNTED = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"

with SyncAccelerator.from_settings(strategy__depth=4, verifier__name="exact") as accelerator:
    for step in accelerator.solve(STREAMED):
        print(f"[{step.origin}] {step.text.strip()}")

    solution = accelerator.answer(COUNTED)
    passes = solution.recorder.target_usage.num_passes
    print(f"{solution.num_tokens} tokens in {passes} passes of the target, {solution.seconds:.2f} s")
