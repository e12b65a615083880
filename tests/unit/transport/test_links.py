"""Replica links on sockets: frames in pieces, lies, limits, and files that change under them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.storage import SimFiles
from tailrace.errors import CorruptFrame, InvalidRequest, StorageError, Unreachable
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Files, OsFiles
from tailrace.transport import links as links_module
from tailrace.transport.links import (
    COPIED_BYTES_MAX,
    HELLO_BUFFER_BYTES,
    HELLO_BYTES_MAX,
    RECEIVE_BYTES_KEPT,
    RECEIVE_BYTES_MIN,
    SocketLink,
    SocketLinks,
)
from tailrace.transport.rpc import LINK_HEADER_BYTES_MAX, LINK_PAYLOAD_BYTES_MAX, Link


class Part(NamedTuple):
    path: str
    position: int
    size: int


class Ends:
    """A link, and the bare socket at its other end."""

    def __init__(self, files: Files) -> None:
        # TCP, not a socket pair: the options of the link are TCP's.
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.bare = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        self.cache = FileCache(files, open_files_max=1)
        self.link = SocketLink(accepted, self.cache, peer="peer")
        self.bare.setblocking(False)

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.bare, data)

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await asyncio.get_running_loop().sock_recv(self.bare, size - len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        self.link.close()
        self.bare.close()
        self.cache.close()
        assert self.cache.counters().open_files == 0


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends(OsFiles())
    yield made
    made.close()


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(header), len(payload)) + header + payload


def file_of(tmp_path: Path, size: int) -> tuple[Part, bytes]:
    path = tmp_path / f"file-{size}"
    data = os.urandom(size)
    path.write_bytes(b"before" + data + b"after")
    return Part(str(path), 6, size), data


# -------------------------------------------------------------------------------------- receiving


@settings(max_examples=60)
@given(
    frames=st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 900)), max_size=8),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=8),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # A small buffer, so that it has to be moved, to grow and to shrink all the time.
        patch.setattr(links_module, "RECEIVE_BYTES_MIN", 128)
        patch.setattr(links_module, "RECEIVE_BYTES_KEPT", 512)
        patch.setattr(links_module, "READ_AHEAD_BYTES", 16)
        _check_frames(frames, cuts)


def _check_frames(frames: list[tuple[bytes, int]], cuts: list[int]) -> None:
    expected = [(header, bytes([n % 251]) * size) for n, (header, size) in enumerate(frames)]
    stream = b"".join(frame(header, payload) for header, payload in expected)

    async def main() -> None:
        ends = Ends(OsFiles())

        async def feed() -> None:
            position, turn = 0, 0
            while position < len(stream):
                size = cuts[turn % len(cuts)]
                await ends.write(stream[position : position + size])
                await asyncio.sleep(0)
                position, turn = position + size, turn + 1
            ends.bare.shutdown(socket.SHUT_WR)

        feeding = asyncio.ensure_future(feed())
        got = []
        while (received := await ends.link.recv()) is not None:
            got.append((received.header, bytes(received.payload)))
        await feeding
        ends.close()
        assert got == expected

    asyncio.run(main())


async def test_a_payload_is_released_by_the_next_recv(ends: Ends) -> None:
    await ends.write(frame(b"1", b"abc") + frame(b"2", b"def"))
    first = await ends.link.recv()
    assert first is not None
    assert bytes(first.payload) == b"abc"
    await ends.link.recv()
    with pytest.raises(ValueError, match="released"):
        bytes(first.payload)


async def test_a_payload_that_is_still_held_is_not_overwritten(ends: Ends) -> None:
    await ends.write(frame(b"1", b"abc") + frame(b"2", b"def") + frame(b"3", b"ghi"))
    first = await ends.link.recv()
    assert first is not None
    held = pa.py_buffer(first.payload)
    for header, payload in ((b"2", b"def"), (b"3", b"ghi")):
        later = await ends.link.recv()
        assert later is not None
        assert (later.header, bytes(later.payload)) == (header, payload)
    assert held.to_pybytes() == b"abc"


async def test_the_end_between_frames_is_in_order_and_within_one_is_not(ends: Ends) -> None:
    await ends.write(frame(b"1", b"abc"))
    ends.bare.shutdown(socket.SHUT_WR)
    assert await ends.link.recv() is not None
    assert await ends.link.recv() is None
    assert await ends.link.recv() is None


@pytest.mark.parametrize("size", [1, 7, 8, 9, 11])
async def test_half_a_frame_is_a_broken_link(ends: Ends, size: int) -> None:
    receiving = asyncio.ensure_future(ends.link.recv())
    await ends.write(frame(b"1", b"abc")[:size])
    await asyncio.sleep(0.01)
    assert not receiving.done()
    ends.bare.close()
    with pytest.raises(Unreachable, match="within a frame"):
        await receiving
    with pytest.raises(Unreachable):
        await ends.link.recv()


async def test_a_reset_is_a_broken_link(ends: Ends) -> None:
    receiving = asyncio.ensure_future(ends.link.recv())
    await asyncio.sleep(0)
    ends.bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ends.bare.close()
    with pytest.raises(Unreachable, match="reset"):
        await receiving
    with pytest.raises(Unreachable, match="reset"):
        await ends.link.send(b"")


@pytest.mark.parametrize(
    ("header_bytes", "payload_bytes"),
    [
        (LINK_HEADER_BYTES_MAX + 1, 0),
        (0, LINK_PAYLOAD_BYTES_MAX + 1),
        (2**32 - 1, 2**32 - 1),
        struct.unpack("<II", b"GET / HT"),
    ],
)
@pytest.mark.parametrize("waits", [True, False])
async def test_a_lying_length_closes_the_link(
    ends: Ends, header_bytes: int, payload_bytes: int, waits: bool
) -> None:
    await ends.write(frame(b"good"))
    assert await ends.link.recv() is not None
    receiving = asyncio.ensure_future(ends.link.recv())
    if waits:
        await asyncio.sleep(0)
    await ends.write(struct.pack("<II", header_bytes, payload_bytes))
    with pytest.raises(CorruptFrame, match="announced"):
        await receiving
    with pytest.raises(CorruptFrame):
        await ends.link.send(b"")
    assert await ends.read(1) == b""


async def test_memory_grows_with_what_comes_not_with_what_was_announced(ends: Ends) -> None:
    receiving = asyncio.ensure_future(ends.link.recv())
    await ends.write(struct.pack("<II", 0, LINK_PAYLOAD_BYTES_MAX) + bytes(1_000))
    await asyncio.sleep(0.01)
    assert len(ends.link._inbox._buffer) == RECEIVE_BYTES_MIN
    receiving.cancel()


async def test_the_buffer_shrinks_after_a_giant(ends: Ends) -> None:
    size = 2 * RECEIVE_BYTES_KEPT
    feeding = asyncio.ensure_future(ends.write(frame(b"giant", bytes(size)) + frame(b"dwarf")))
    giant = await ends.link.recv()
    assert giant is not None
    assert len(giant.payload) == size
    await feeding
    dwarf = await ends.link.recv()
    assert dwarf is not None
    receiving = asyncio.ensure_future(ends.link.recv())
    await asyncio.sleep(0)
    assert len(ends.link._inbox._buffer) == RECEIVE_BYTES_MIN
    receiving.cancel()


async def test_what_nobody_asks_for_is_not_read(ends: Ends) -> None:
    receiving = asyncio.ensure_future(ends.link.recv())
    await ends.write(frame(b"1"))
    assert await receiving is not None
    sent = 0

    async def flood() -> None:
        nonlocal sent
        while True:
            await ends.write(frame(b"", bytes(1 << 20)))
            sent += 1

    flooding = asyncio.ensure_future(flood())
    await asyncio.sleep(0.2)
    assert sent < 30
    assert len(ends.link._inbox._buffer) <= RECEIVE_BYTES_MIN + (1 << 20)
    flooding.cancel()


# ---------------------------------------------------------------------------------------- sending


@pytest.mark.parametrize("size", [0, 1, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, 1_000_000])
async def test_what_is_sent_is_the_frame(ends: Ends, tmp_path: Path, size: int) -> None:
    part, data = file_of(tmp_path, size)
    sending = asyncio.ensure_future(ends.link.send(b"header", [part, part]))
    assert await ends.read(8 + 6 + 2 * size) == frame(b"header", data + data)
    await sending


async def test_files_without_a_descriptor_are_copied() -> None:
    files = SimFiles()
    data = os.urandom(100_000)
    files.open("/file", create=True).write_at(0, [data])
    ends = Ends(files)
    sending = asyncio.ensure_future(ends.link.send(b"h", [Part("/file", 10, 90_000)]))
    assert await ends.read(8 + 1 + 90_000) == frame(b"h", data[10:90_010])
    await sending
    ends.close()


async def test_where_sendfile_does_not_work_files_are_copied(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "sendfile", refuse)
    part, data = file_of(tmp_path, 100_000)
    sending = asyncio.ensure_future(ends.link.send(b"h", [part]))
    assert await ends.read(8 + 1 + 100_000) == frame(b"h", data)
    await sending


async def test_many_senders_do_not_mix_their_frames(ends: Ends, tmp_path: Path) -> None:
    part, data = file_of(tmp_path, 300_000)
    sends = [asyncio.ensure_future(ends.link.send(b"%d" % n, [part])) for n in range(10)]
    for n in range(10):
        assert await ends.read(8 + 1 + 300_000) == frame(b"%d" % n, data)
    await asyncio.gather(*sends)


async def test_a_frame_above_the_limit_is_refused_and_nothing_sent(ends: Ends) -> None:
    with pytest.raises(InvalidRequest):
        await ends.link.send(bytes(LINK_HEADER_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest):
        await ends.link.send(b"", [Part("/x", 0, LINK_PAYLOAD_BYTES_MAX + 1)])
    await ends.link.send(b"fine")
    assert await ends.read(12) == frame(b"fine")


async def test_a_file_that_was_cut_meanwhile_closes_the_link(ends: Ends, tmp_path: Path) -> None:
    part, _ = file_of(tmp_path, 1_000_000)
    longer = Part(part.path, part.position, part.size + 1_000)
    sending = asyncio.ensure_future(ends.link.send(b"h", [longer]))
    got = await ends.read(8 + 1 + longer.size)
    with pytest.raises(StorageError, match="too early"):
        await sending
    # The other side sees the end in the middle of the frame.
    assert len(got) < 8 + 1 + longer.size
    with pytest.raises(Unreachable):
        await ends.link.send(b"")


async def test_a_file_is_held_open_while_it_is_sent(ends: Ends, tmp_path: Path) -> None:
    part, data = file_of(tmp_path, 20_000_000)
    other, _ = file_of(tmp_path, 10)
    sending = asyncio.ensure_future(ends.link.send(b"h", [part]))
    await asyncio.sleep(0.05)
    assert not sending.done()
    # The cache has room for one file, and the name is gone: still it is sent to its end.
    ends.cache.use(other.path).release()
    OsFiles().remove(part.path)
    ends.cache.forget(part.path)
    assert await ends.read(8 + 1 + len(data)) == frame(b"h", data)
    await sending


async def test_a_send_that_waits_is_woken_by_a_reset(ends: Ends, tmp_path: Path) -> None:
    part, _ = file_of(tmp_path, 30_000_000)
    sending = asyncio.ensure_future(ends.link.send(b"h", [part]))
    await asyncio.sleep(0.05)
    assert not sending.done()
    ends.bare.close()
    with pytest.raises(Unreachable):
        await sending


async def test_a_cancelled_send_that_has_not_begun_does_no_harm(ends: Ends, tmp_path: Path) -> None:
    part, data = file_of(tmp_path, 20_000_000)
    first = asyncio.ensure_future(ends.link.send(b"1", [part]))
    second = asyncio.ensure_future(ends.link.send(b"2"))
    await asyncio.sleep(0.01)
    second.cancel()
    assert await ends.read(8 + 1 + len(data)) == frame(b"1", data)
    await first
    await ends.link.send(b"3")
    assert await ends.read(9) == frame(b"3")


# -------------------------------------------------------------------------------------- listening


async def test_a_failing_accept_is_logged_and_closes_its_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(link: Link) -> None:
        raise ValueError("no such luck")

    links = SocketLinks(FileCache(OsFiles(), open_files_max=1))
    server = await links.listen("127.0.0.1:0", fail)
    with caplog.at_level(logging.ERROR):
        link = await links.connect(server.address, timeout_ms=1_000)
        assert await link.recv() is None
        link.close()
        await server.stop(grace_ms=0)
    assert "link from 127.0.0.1" in caplog.text
    assert "no such luck" in caplog.text


async def greet(link: Link) -> None:
    """Answer the first frame, and stay."""
    if await link.recv() is not None:
        await link.send(b"welcome")
        await link.recv()


async def test_a10_silent_links_do_not_take_the_place_of_followers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Far more than there may be links at all, of one address; and a follower of the same one."""
    monkeypatch.setattr(links_module, "LINKS_MAX", 16)
    monkeypatch.setattr(links_module, "SILENT_LINKS_MAX", 8)
    links = SocketLinks(FileCache(OsFiles(), open_files_max=1))
    server = await links.listen("127.0.0.1:0", greet)
    host, _, port = server.address.rpartition(":")
    silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    followers: list[SocketLink] = []
    for _ in range(40):
        reader, writer = await asyncio.open_connection(host, int(port))
        silent.append((reader, writer))
        # Half a hello is as good as none.
        writer.write(bytes(3))
    for _ in range(16):
        follower = await links.connect(server.address, timeout_ms=1_000)
        await follower.send(b"hello")
        frame = await follower.recv()
        assert frame is not None
        assert frame.header == b"welcome"
        followers.append(follower)
    # As the attacker sees it: the first links are closed, the last eight wait.
    for reader, _ in silent[:32]:
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert len(server._silent) <= 8
    for _, writer in silent:
        writer.close()
    for follower in followers:
        follower.close()
    await server.stop(grace_ms=1_000)
    assert not server._timers


async def test_a10_a_silent_link_is_closed_in_time_and_has_little_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(links_module, "HELLO_TIMEOUT_S", 0.05)
    links = SocketLinks(FileCache(OsFiles(), open_files_max=1))
    server = await links.listen("127.0.0.1:0", greet)
    host, _, port = server.address.rpartition(":")
    follower = await links.connect(server.address, timeout_ms=1_000)
    await follower.send(b"hello")
    assert await follower.recv() is not None
    reader, writer = await asyncio.open_connection(host, int(port))
    await asyncio.sleep(0)
    assert all(len(each._inbox._buffer) <= HELLO_BUFFER_BYTES for each in server._silent)
    with caplog.at_level(logging.INFO):
        assert await reader.read() == b""
        await asyncio.sleep(0.01)
    assert "before it said who it is: it said nothing for 0.05 s" in caplog.text
    writer.close()
    # Who has said hello may be silent for as long as it likes.
    assert len(server._tasks) == 1
    follower.close()
    await server.stop(grace_ms=0)


async def test_a10_a_hello_that_is_a_giant_is_refused() -> None:
    links = SocketLinks(FileCache(OsFiles(), open_files_max=1))
    server = await links.listen("127.0.0.1:0", greet)
    host, _, port = server.address.rpartition(":")
    for header_bytes, payload_bytes in ((0, HELLO_BYTES_MAX + 1), (HELLO_BYTES_MAX + 1, 0)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack("<II", header_bytes, payload_bytes))
        assert await reader.read() == b""
        writer.close()
    largest = await links.connect(server.address, timeout_ms=1_000)
    await largest.send(bytes(HELLO_BYTES_MAX))
    assert await largest.recv() is not None
    largest.close()
    await server.stop(grace_ms=0)


async def test_no_more_links_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "LINKS_MAX", 2)

    links = SocketLinks(FileCache(OsFiles(), open_files_max=1))
    server = await links.listen("127.0.0.1:0", greet)
    made = []
    for _ in range(2):
        link = await links.connect(server.address, timeout_ms=1_000)
        await link.send(b"hello")
        frame = await link.recv()
        assert frame is not None
        assert frame.header == b"welcome"
        made.append(link)
    made.append(await links.connect(server.address, timeout_ms=1_000))
    assert await made[2].recv() is None
    for link in made:
        link.close()
    await server.stop(grace_ms=1_000)
    await server.stop(grace_ms=0)


async def test_a_connection_that_nobody_answers_is_given_up() -> None:
    links = SocketLinks(FileCache(OsFiles(), open_files_max=1))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = "{}:{}".format(*full.getsockname())
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        with pytest.raises(Unreachable, match="within 100 ms"):
            await links.connect(address, timeout_ms=100)
        for each in fillers:
            each.close()
    with pytest.raises(Unreachable, match=r"no\.such"):
        await links.connect("no.such.host.invalid:1", timeout_ms=1_000)
