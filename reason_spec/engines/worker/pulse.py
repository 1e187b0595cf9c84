"""Whether a worker process lives or hangs: by its heartbeats, and by what it confirms."""

from __future__ import annotations

TICK_SECONDS = 0.5
"""A worker sends a heartbeat so often, and so often is looked whether it came."""
_SILENT_SHARE = 1 / 3
"""Of ``hang_timeout``: after that a worker counts as one that may hang."""
_CONFIRM_SECONDS = 5.0
"""For a worker without heartbeats to confirm a cancellation."""
_STUCK_SECONDS = 600.0
"""The same for one with heartbeats: one pass may take minutes, and so may a kernel that it compiles."""


class Pulse:
    """Follows one worker.

    A thread of the worker sends heartbeats while its step loop is in a long pass, so only a process that is
    stopped, or has one long call that holds Python's lock, sends none. Time is counted in ticks of our own
    event loop: where that stood still, with the machine perhaps, no worker is taken for hung.

    Args:
        hang_timeout: seconds without a heartbeat after which a worker is to be killed.
    """

    def __init__(self, hang_timeout: float) -> None:
        self._hang_timeout = hang_timeout
        self._silence = 0.0
        self.lived = 0.0
        """Seconds that it was followed."""
        self._unconfirmed: dict[int, float] = {}

    def heard(self) -> None:
        """Take a sign of life: any message."""
        self._silence = 0.0

    def cancelled(self, number: int) -> None:
        """Note that a request was cancelled."""
        self._unconfirmed.setdefault(number, 0.0)

    def confirmed(self, number: int) -> None:
        """Note that the worker holds nothing of a request any more."""
        self._unconfirmed.pop(number, None)

    @property
    def silence(self) -> float | None:
        """Seconds without a sign of life; None where these are too few to mean anything."""
        return self._silence if self._silence > self._hang_timeout * _SILENT_SHARE else None

    def tick(self) -> str | None:
        """Count `TICK_SECONDS`; return why the worker is to be killed, None where it is not."""
        self._silence += TICK_SECONDS
        self.lived += TICK_SECONDS
        for number in self._unconfirmed:
            self._unconfirmed[number] += TICK_SECONDS
        longest = max(self._unconfirmed.values(), default=0.0)
        is_silent = self.silence is not None
        if self._silence > self._hang_timeout or (is_silent and longest > _CONFIRM_SECONDS):
            return f"it hung: it gave no sign of life for {self._silence:.0f} seconds and was killed"
        if longest > _STUCK_SECONDS:
            return f"it hung: it confirmed no cancellation for {longest:.0f} seconds and was killed"
        return None
