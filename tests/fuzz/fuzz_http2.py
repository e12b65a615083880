"""Fuzz both ends of our HTTP/2.

`PYTHONPATH=services:tests .venv/bin/python tests/fuzz/fuzz_http2.py --seconds 60`

Each seed is a conversation that might be real, of which some frames are broken, sent in random
pieces to a server of ours and, as answers, to a client. Whatever comes: nothing is logged, nobody
waits for ever, what is kept in memory stays within the limits, every call ends in an answer or in
an error of ours, and whoever keeps to the rules is served meanwhile. A seed that fails is printed:
mend the bug, then add it to FAILED, which the unit tests replay.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import hpack

from simulation.transport_contract import COUNT, ECHO, TALK, Talk
from tailrace.errors import InvariantViolation, TailraceError
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.connection import UNREAD_BYTES_MAX, Connection
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.http2.server import Http2Server
from tailrace.transport.http2.stream import STREAM_WINDOW_BYTES
from tailrace.transport.limits import ServerLimits
from tailrace.transport.rpc import MESSAGE_BYTES_MAX, Method

FAILED: Final[tuple[int, ...]] = ()
LIMITS: Final = ServerLimits(request_bytes_max=100_000, streams_per_connection_max=16)
STREAMS: Final = 12
TURNS_MAX: Final = 60
A_WHILE_S: Final = 60.0
CALL_MS: Final = 60_000
INTERESTING: Final = (0, 1, 2, 5, 9, 127, 128, 255, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**32 - 1)


def exercise(seed: int) -> None:
    """One conversation with a server and one with a client."""
    for talk in (_with_server, _with_client):
        with _nothing_logged(seed):
            asyncio.run(talk(random.Random(seed)))


# ------------------------------------------------------------------------------------ conversations


class Speaker:
    """Makes up frames, most of which keep to the rules."""

    def __init__(self, rng: random.Random, *, is_server: bool) -> None:
        self._rng = rng
        self._is_server = is_server
        self._encoder = hpack.Encoder()
        self._last = -1

    def talk(self) -> bytes:
        """A whole conversation, whose frames are broken here and there."""
        hello = b"" if self._is_server else h2.PREFACE
        said = [hello + h2.settings(self._settings())]
        kinds: list[Callable[[], bytes]] = [
            *[self._headers] * 6,
            *[self._data] * 8,
            *(self._window, self._reset, self._ping, self._change, self._odd, self._leave),
        ]
        said += [self._rng.choice(kinds)() for _ in range(self._rng.randrange(TURNS_MAX))]
        share = self._rng.choice((0.0, 0.02, 0.1, 0.5))
        return b"".join(self._broken(each) if self._rng.random() < share else each for each in said)

    def _stream(self) -> int:
        return 2 * self._rng.randrange(STREAMS) + 1

    def _settings(self) -> list[tuple[int, int]]:
        rng = self._rng
        size = rng.randrange(4)
        return [(rng.randrange(1, 9), rng.choice((*INTERESTING, 20_000))) for _ in range(size)]

    def _headers(self) -> bytes:
        rng = self._rng
        if self._is_server:
            number = self._stream()
            fields = [(":status", rng.choice(("200", "200", "404"))), ("content-type", "x")]
            if is_last := rng.random() < 0.5:
                fields += [("grpc-status", str(rng.randrange(18))), ("grpc-message", "%41%")]
        else:
            self._last += 2
            number, is_last = self._last, rng.random() < 0.1
            path = rng.choice((ECHO.name, TALK.name, COUNT.name, "/no/where"))
            fields = [(":method", "POST"), (":path", path), ("content-type", "application/grpc")]
            if rng.random() < 0.3:
                fields.append(("grpc-timeout", rng.choice(("10m", "1H", "0n", "?"))))
        if rng.random() < 0.5:
            block = h2.header_block(fields)
        else:
            block = self._encoder.encode(fields, huffman=rng.random() < 0.5)
        end = h2.END_STREAM if is_last else 0
        if rng.random() < 0.8:
            return h2.frame(h2.HEADERS, h2.END_HEADERS | end, number, block)
        cut = rng.randrange(len(block))
        first = h2.frame(h2.HEADERS, end, number, block[:cut])
        return first + h2.frame(h2.CONTINUATION, h2.END_HEADERS, number, block[cut:])

    def _data(self) -> bytes:
        rng = self._rng
        size = rng.choice((0, 1, 10, 1_000, 60_000))
        payload = h2.MESSAGE_HEAD.pack(0, size) + rng.choice((b"7", b"x")) * size
        if rng.random() < 0.2:
            payload = payload[: rng.randrange(len(payload))]
        flags = h2.END_STREAM if rng.random() < 0.3 else 0
        if rng.random() < 0.2:
            padding = rng.randrange(256)
            payload = bytes((padding,)) + payload + bytes(padding)
            flags |= h2.PADDED
        return h2.frame(h2.DATA, flags, self._stream(), payload)

    def _window(self) -> bytes:
        size = self._rng.choice((1, 10, 65_535, 1 << 20))
        return h2.window_update(self._rng.choice((0, self._stream())), size)

    def _reset(self) -> bytes:
        return h2.reset(self._stream(), self._rng.randrange(14))

    def _ping(self) -> bytes:
        return h2.frame(h2.PING, self._rng.choice((0, h2.ACK)), 0, b"fuzzfuzz")

    def _change(self) -> bytes:
        return h2.settings(self._settings())

    def _odd(self) -> bytes:
        rng = self._rng
        kind, size = rng.randrange(20), rng.choice((0, 4, 5, 8, 100))
        return h2.frame(kind, rng.randrange(256), rng.choice((0, self._stream())), bytes(size))

    def _leave(self) -> bytes:
        if self._rng.random() < 0.8:
            return b""
        return h2.go_away(self._stream(), self._rng.choice((0, 11)), "had enough")

    def _broken(self, data: bytes) -> bytes:
        rng = self._rng
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            if not out:
                break
            at = rng.randrange(min(len(out), rng.choice((9, 40, 1 << 20))))
            way = rng.randrange(5)
            if way == 0:
                out[at] ^= 1 << rng.randrange(8)
            elif way == 1:
                size = rng.choice((1, 3, 4))
                number = rng.choice(INTERESTING) % (1 << 8 * size)
                out[at : at + size] = number.to_bytes(size, "big")
            elif way == 2:
                del out[at : at + rng.choice((1, 9, 1_000))]
            elif way == 3:
                out[at:at] = rng.randbytes(rng.choice((1, 9, 100)))
            else:
                out += out[: rng.randrange(200)]
        return bytes(out)


# ------------------------------------------------------------------------------------------ talking


async def _with_server(rng: random.Random) -> None:
    server = await Http2Network(LIMITS).serve(
        "127.0.0.1:0", {ECHO: _echo, TALK: _talk, COUNT: _count}
    )
    network = Http2Network()
    good = network.channel(server.address)
    await good.call(ECHO, b"good", timeout_ms=CALL_MS)
    host, _, port = server.address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    await _say(sock, rng, Speaker(rng, is_server=False).talk(), lambda: _check_all(server))
    if await good.call(ECHO, b"good", timeout_ms=CALL_MS) != b"good":
        raise InvariantViolation("others are not served well")
    sock.close()
    await _until(lambda: len(server._open) == 1 and not server._running)
    await network.close()
    await server.stop(grace_ms=0)


def _check_all(server: Http2Server) -> None:
    for each in server._open:
        _check(each, LIMITS.message_bytes_max)
    if len(server._running) > 20 * LIMITS.streams_per_connection_max:
        raise InvariantViolation(f"{len(server._running)} handlers run")


async def _with_client(rng: random.Random) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        network = Http2Network()
        channel = network.channel("{}:{}".format(*listening.getsockname()))
        asked = [asyncio.ensure_future(_ask(channel, n)) for n in range(STREAMS)]
        loop = asyncio.get_running_loop()
        sock, _ = await loop.sock_accept(listening)
        shared = network._shared[channel.address]

        def check() -> None:
            for each in shared._connections:
                _check(each, MESSAGE_BYTES_MAX)

        await _say(sock, rng, Speaker(rng, is_server=True).talk(), check)
        # Those who connect again find nobody.
        listening.close()
        sock.close()
        async with asyncio.timeout(A_WHILE_S):
            await asyncio.gather(*asked)
        if channel._open:
            raise InvariantViolation("calls are left that have ended")
        await network.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(A_WHILE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def _ask(channel: Any, number: int) -> None:
    method: Method[bytes, bytes] = (ECHO, TALK, COUNT)[number % 3]
    with suppress(TailraceError):
        if method is ECHO:
            await channel.call(ECHO, b"x" * 10_000 * number, timeout_ms=CALL_MS)
            return
        stream = channel.open(method, b"5" if method is COUNT else None)
        if method is TALK:
            await stream.send(bytes(number))
        while await stream.recv() is not None:
            pass


async def _say(
    sock: socket.socket, rng: random.Random, said: bytes, check: Callable[[], None]
) -> None:
    """In pieces, reading what comes back or not, until all is said or nobody listens."""
    loop = asyncio.get_running_loop()
    reads = rng.random() < 0.8
    piece = rng.choice((1 << 20, 5_000, 500)) if len(said) > 5_000 else rng.choice((1_000, 10, 1))
    try:
        async with asyncio.timeout(A_WHILE_S):
            for at in range(0, len(said), piece):
                await loop.sock_sendall(sock, said[at : at + piece])
                if reads:
                    with suppress(BlockingIOError):
                        sock.recv(1 << 16)
                await asyncio.sleep(0)
                check()
            for _ in range(20):
                await asyncio.sleep(0)
                check()
    except ConnectionError:
        # It was hung up on, as is fair.
        return


def _check(connection: Connection, message_bytes_max: int) -> None:
    """What is kept of a connection stays within its limits."""
    if connection._unsent > UNREAD_BYTES_MAX + (1 << 20):
        raise InvariantViolation(f"{connection._unsent} bytes wait to be sent")
    if len(connection._block or b"") > h2.HEADER_LIST_BYTES_MAX:
        raise InvariantViolation("headers without an end are kept")
    for stream in connection.streams.values():
        if stream.credit.unread > STREAM_WINDOW_BYTES + message_bytes_max:
            raise InvariantViolation(f"{stream.credit.unread} bytes wait to be read")


async def _echo(asked: bytes) -> bytes:
    return bytes(asked)


async def _talk(stream: Talk) -> None:
    while (heard := await stream.recv()) is not None:
        await stream.send(bytes(heard))


async def _count(asked: bytes, stream: Talk) -> None:
    for number in range(len(asked) % 10):
        await stream.send(b"%d" % number)


@contextmanager
def _nothing_logged(seed: int) -> Iterator[None]:
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    ear = Ear(logging.WARNING)
    logging.getLogger().addHandler(ear)
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        logging.getLogger().removeHandler(ear)
    if said:
        raise InvariantViolation(f"seed {seed}: it was logged: {said[0]}")


def main() -> None:
    """One seed after the other, for a while."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args()
    loop = asyncio.new_event_loop()
    until_s, seed = loop.time() + options.seconds, options.seed
    while loop.time() < until_s:
        exercise(seed)
        seed += 1
    loop.close()
    print(f"seeds {options.seed} to {seed - 1}: nothing found")


if __name__ == "__main__":
    main()
