"""The pipe to a worker: all arrives whole and in order, and nobody waits for who does not read."""

from __future__ import annotations

import asyncio
import socket
from multiprocessing.connection import Connection
from typing import Any

from reason_spec.engines.worker.channel import Channel

SIZES = (0, 1, 1000, 3_000_000, 5, 700_000)


def joined() -> tuple[Channel, Connection]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Connection(theirs.detach())


async def test_messages_of_all_sizes_arrive_whole_and_in_order() -> None:
    channel, worker = joined()
    for size in SIZES:
        channel.send(("there", b"x" * size))
    received = [await asyncio.to_thread(worker.recv) for _ in SIZES]
    assert received == [("there", b"x" * size) for size in SIZES]

    def answer() -> None:
        for size in SIZES:
            worker.send(("back", b"y" * size))
        worker.close()

    answering = asyncio.create_task(asyncio.to_thread(answer))
    returned: list[Any] = []
    while (messages := channel.receive()) is not None:
        returned += messages
        await asyncio.sleep(0)
    await answering
    assert returned == [("back", b"y" * size) for size in SIZES]
    channel.detach()
    channel.close()


async def test_sending_waits_for_nobody_and_outlives_the_other_end() -> None:
    channel, worker = joined()
    for _ in range(20):
        channel.send(b"x" * 1_000_000)
    assert await asyncio.to_thread(worker.recv) == b"x" * 1_000_000
    worker.close()
    await asyncio.sleep(0.05)
    channel.send("nobody is there")
    while channel.receive() is not None:  # noqa: ASYNC110 - what is left there is read to its end
        await asyncio.sleep(0)
    channel.detach()
    channel.close()


async def test_a_part_of_a_message_waits_for_the_rest() -> None:
    ours, theirs = socket.socketpair()
    channel, (sender, reader) = Channel(ours), socket.socketpair()
    Connection(sender.detach()).send("a message")
    frame = reader.recv(1000)
    for place in range(len(frame) - 1):
        theirs.send(frame[place : place + 1])
        assert channel.receive() == []
    theirs.send(frame[-1:])
    assert channel.receive() == ["a message"]
    reader.close()
    theirs.close()
    channel.close()
