"""The ground that Tailrace stands on, bare: gRPC streams of the same frames, and the disk.

Nothing here goes through Tailrace, but that the frames are those which a producer would send.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import google_crc32c
import grpc

from bench.quick.bare_server import FETCH, OPTIONS, PRODUCE
from bench.quick.measured import Flow, Waits, waits
from bench.usage import cpu_s
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest, encode_produce_request
from tailrace.transport.rpc import joined
from tailrace.v1 import broker_pb2 as pb

MIB: Final = 1 << 20
IN_FLIGHT: Final = 5
REPLICAS: Final = 3
START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0
READ_BYTES: Final = 256 * MIB


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch, and the message in which it travels; `value_bytes` of both are values."""

    batch: bytes
    message: bytes
    value_bytes: int


def frame(batch_bytes: int, values: list[bytes]) -> Frame:
    """A batch as large as a producer makes it."""
    builder = BatchBuilder()
    size = 0
    while True:
        value = values[builder.count % len(values)]
        if builder.size_bytes + len(value) + 32 > batch_bytes and builder.count:
            break
        builder.append(value, timestamp_ms=0)
        size += len(value)
    batch = builder.build(producer_id=1, producer_epoch=0, base_sequence=0)
    part = PartitionBatches(TopicPartition("bench", 0), "x" * 22, 1, batch)
    request = ProduceRequest(1, pb.ACKS_ALL, 29_000, [part])
    return Frame(batch, joined(encode_produce_request(request)), size)


class BareGrpc:
    """A channel to the server that does nothing."""

    def __init__(self, channel: Any, pid: int) -> None:
        self._channel = channel
        self._pid = pid

    async def produce(self, frame: Frame, value_bytes: int) -> Flow:
        """Frames on one stream, a few of them unanswered at a time."""
        count = max(value_bytes // frame.value_bytes, IN_FLIGHT)
        call = self._channel.stream_stream(PRODUCE)()
        server_s, client_s, began = cpu_s(self._pid), process_time(), perf_counter()
        for number in range(count):
            if number >= IN_FLIGHT:
                await call.read()
            await call.write(frame.message)
        for _ in range(IN_FLIGHT):
            await call.read()
        flow = Flow(
            count * frame.value_bytes,
            perf_counter() - began,
            cpu_s(self._pid) - server_s,
            process_time() - client_s,
        )
        await call.done_writing()
        return flow

    async def fetch(self, value_bytes: int) -> Flow:
        """A stream of megabytes."""
        count = max(value_bytes // MIB, 1)
        server_s, client_s, began = cpu_s(self._pid), process_time(), perf_counter()
        call = self._channel.unary_stream(FETCH)(b"%d %d" % (count, MIB))
        while await call.read() is not grpc.aio.EOF:
            pass
        return Flow(
            count * MIB,
            perf_counter() - began,
            cpu_s(self._pid) - server_s,
            process_time() - client_s,
        )

    async def ping(self, frame: Frame, seconds: float) -> Waits:
        """One frame at a time, each answered before the next."""
        call = self._channel.stream_stream(PRODUCE)()
        times = []
        end = perf_counter() + seconds
        while (began := perf_counter()) < end:
            await call.write(frame.message)
            await call.read()
            times.append(perf_counter() - began)
        await call.done_writing()
        return waits(times)


@asynccontextmanager
async def bare_grpc() -> AsyncIterator[BareGrpc]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.quick.bare_server"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            yield BareGrpc(channel, process.pid)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class BareDisk:
    """Checksum and write, once for each replica; read and checksum, once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, frame: Frame, value_bytes: int) -> Flow:
        paths = [self._folder / f"replica-{number}" for number in range(REPLICAS)]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        files = [os.open(path, flags) for path in paths]
        count = max(value_bytes // frame.value_bytes, 1)
        cpu, began = process_time(), perf_counter()
        for _ in range(count):
            for file in files:
                google_crc32c.value(frame.batch)
                os.write(file, frame.batch)
        seconds, cpu = perf_counter() - began, process_time() - cpu
        for file, path in zip(files, paths, strict=True):
            os.close(file)
            path.unlink()
        return Flow(count * frame.value_bytes, seconds, 0.0, cpu)

    def fill(self) -> None:
        """What `read` reads."""
        with self._path.open("wb") as file:
            for _ in range(READ_BYTES // MIB):
                file.write(bytes(MIB))

    def read(self, value_bytes: int) -> Flow:
        file = os.open(self._path, os.O_RDONLY)
        done = at = 0
        cpu, began = process_time(), perf_counter()
        while done < value_bytes:
            data = os.pread(file, MIB, at)
            google_crc32c.value(data)
            done += len(data)
            at = (at + len(data)) % READ_BYTES
        flow = Flow(done, perf_counter() - began, 0.0, process_time() - cpu)
        os.close(file)
        return flow

    @property
    def _path(self) -> Path:
        return self._folder / "readable"
