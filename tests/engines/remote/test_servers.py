"""How long a server rests after failures."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from reason_spec.engines.remote.servers import ServerError, ServerPool, retry_after


async def test_a_server_that_stays_down_rests_half_a_minute_at_most() -> None:
    pool = ServerPool(["http://down"])
    (server,) = pool.servers
    for _ in range(1100):
        server.ready_at = 0.0
        with pytest.raises(ServerError):
            async with pool.use(0):
                raise ServerError("down")
    rest = server.ready_at - asyncio.get_running_loop().time()
    assert 10 < rest <= 30


async def test_requests_that_fail_together_are_one_failure() -> None:
    pool = ServerPool(["http://down"])
    for _ in range(64):
        pool.rest(pool.servers[0])
    assert pool.servers[0].num_failures == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("-1", 0.0), ("86400", 600.0), ("inf", None), ("nan", None), ("soon", None), (None, None)],
)
def test_a_wish_of_the_server_is_bounded(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_a_date_of_the_server_is_bounded_too() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(days=2), usegmt=True)
    assert retry_after(later) == 600.0
