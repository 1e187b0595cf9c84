"""Solve one problem with both layers and watch who writes which step.

Run it with: python examples/solve.py
"""

from __future__ import annotations

import asyncio

from reason_spec.accelerator import Accelerator

QUESTION = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"


async def main() -> None:
    async with Accelerator.from_settings(strategy__depth=4, verifier__name="semantic") as accelerator:
        async for step in accelerator.solve(QUESTION):
            print(f"[{step.origin}] {step.text.strip()}")

        alone = await accelerator.answer(QUESTION, strategy="autoregressive")
        print(f"target alone: {alone.num_tokens} tokens in {alone.seconds:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
