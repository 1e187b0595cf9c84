"""Work for a client that went away is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client closed its connection before its answer was complete."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncGenerator[None]:
    """Cancel the block, once, when the client goes away; the request's body must be read by now.

    Raises:
        ClientGoneError: it went away; what the block began has ended by then.
    """
    # Not a cancel scope of anyio: it would cancel the clean-up in the block again and again.
    task = asyncio.current_task()
    assert task is not None
    watching = asyncio.create_task(_disconnect(receive))
    is_gone = False

    def cancel(watched: asyncio.Task[None]) -> None:
        nonlocal is_gone
        if not watched.cancelled():
            is_gone = True
            task.cancel()

    watching.add_done_callback(cancel)
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        watching.remove_done_callback(cancel)
        watching.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
