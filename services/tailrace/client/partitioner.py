"""Which partition a record goes to. Pure.

A partitioner gets the topic, the key and the number of partitions, and says which one, or None for
"wherever it suits": such records stay with one partition until its batch is full or sent, so that
batches fill up under load and partitions take turns otherwise.

Keys are hashed with CRC-32 unless told otherwise, as librdkafka (and so confluent-kafka) does by
default; `murmur2` puts them where the Java client would.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final
from zlib import crc32

from tailrace.errors import InvalidConfig

Partitioner = Callable[[str, bytes | None, int], int | None]
"""(topic, key, number of partitions) → partition, or None."""

MURMUR2_SEED: Final = 0x9747B28C


def by_key(topic: str, key: bytes | None, partitions: int) -> int | None:
    """CRC-32 of the key."""
    del topic
    return None if key is None else crc32(key) % partitions


def by_murmur2(topic: str, key: bytes | None, partitions: int) -> int | None:
    """The key's place under Kafka's Java client. Slow in Python: some 10 µs for a short key."""
    del topic
    return None if key is None else (murmur2(key) & 0x7FFF_FFFF) % partitions


def round_robin() -> Partitioner:
    """Each record to the next partition, whatever its key."""
    turns: dict[str, count[int]] = {}

    def choose(topic: str, key: bytes | None, partitions: int) -> int:
        del key
        return next(turns.setdefault(topic, count())) % partitions

    return choose


def sticky(topic: str, key: bytes | None, partitions: int) -> None:
    """Wherever it suits, whatever its key."""
    del topic, key, partitions


def partitioner_for(choice: str | Partitioner | None) -> Partitioner:
    """A function is taken as it is; "crc32" (the default), "murmur2", "round_robin", "sticky"."""
    if choice is None:
        return by_key
    if callable(choice):
        return choice
    named: dict[str, Partitioner] = {
        "crc32": by_key,
        "murmur2": by_murmur2,
        "sticky": sticky,
        "round_robin": round_robin(),
    }
    if choice not in named:
        raise InvalidConfig(
            f"partitioner={choice!r} must be one of {', '.join(sorted(named))}, or a function"
        )
    return named[choice]


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed that Kafka uses."""
    multiplier, mask = 0x5BD1E995, 0xFFFF_FFFF
    length = len(data)
    hashed = MURMUR2_SEED ^ length
    tail = length & ~3
    for at in range(0, tail, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = (hashed * multiplier & mask) ^ word
    if tail < length:
        hashed = (hashed ^ int.from_bytes(data[tail:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15
