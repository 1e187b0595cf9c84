"""Distinguishes a hanging worker from a busy one, by heartbeats and confirmed cancellations."""

from __future__ import annotations

TICK_SECONDS = 0.5
"""Interval of heartbeats, and of the checks for them."""
_SILENT_SHARE = 1 / 3
"""Share of ``hang_timeout`` after which a silent worker counts as suspect."""
_CONFIRM_SECONDS = 5.0
"""Time for a suspect worker to confirm a cancellation, in seconds."""
_STUCK_SECONDS = 600.0
"""The same for a worker with heartbeats, in seconds: compiling a kernel may take minutes."""


class Pulse:
    """Follows one worker.

    Heartbeats come during long passes too; only a stopped process, or a long call that holds the GIL, sends
    none. Time is counted in ticks of this process's event loop, so a pause of the machine is not taken for a
    hang.

    Args:
        hang_timeout: seconds without a heartbeat after which a worker is killed.
    """

    def __init__(self, hang_timeout: float) -> None:
        self._hang_timeout = hang_timeout
        self._silence = 0.0
        self.lived = 0.0
        """Seconds since the worker started."""
        self._unconfirmed: dict[int, float] = {}

    def beat(self) -> None:
        """Note a message from the worker."""
        self._silence = 0.0

    def cancelled(self, number: int) -> None:
        """Note that a request was cancelled."""
        self._unconfirmed.setdefault(number, 0.0)

    def confirmed(self, number: int) -> None:
        """Note that a request has ended in the worker."""
        self._unconfirmed.pop(number, None)

    @property
    def silence(self) -> float | None:
        """Seconds without a message if the worker is suspect, else None."""
        return self._silence if self._silence > self._hang_timeout * _SILENT_SHARE else None

    def tick(self) -> str | None:
        """Advance by `TICK_SECONDS`; return the reason to kill the worker, or None."""
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
