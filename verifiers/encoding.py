"""What verifiers with an encoder of their own share: its life, its threshold, equal texts."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier


class Encoder(Protocol):
    """A model that is loaded by ``start`` and freed by ``close``."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


E = TypeVar("E", bound=Encoder)


class EncodingVerifier(Verifier, Generic[E]):
    """A verifier with an encoder and a threshold. Equal texts are accepted; ``_compare`` compares others."""

    def __init__(self, encoder: E, threshold: float, deadline_seconds: float = 2.0) -> None:
        super().__init__(deadline_seconds)
        self.threshold: float = self.checked_threshold(threshold)
        self._encoder = encoder

    async def start(self) -> None:
        await self._encoder.start()

    async def close(self) -> None:
        await self._encoder.close()

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        if drafted.text == target.text:
            return Verdict("accept", 1.0, reason="same text")
        return await self._compare(context, drafted.text, target.text)

    @abstractmethod
    async def _compare(self, context: VerificationContext, drafted: str, target: str) -> Verdict:
        """Return the verdict on two different texts."""
