"""The filter of a cut drops what it should and nothing else, run here as the kernel would."""

from __future__ import annotations

from ipaddress import IPv4Address
from random import Random

import pytest

from nemesis.network import (
    DROP,
    JUMP_EQUAL,
    JUMP_GREATER,
    LOAD_HALF,
    LOAD_WORD,
    NEXT,
    RANDOM_AT,
    RETURN,
    bytecode,
    filter_code,
)

ONE, OTHER = "10.77.0.10", "10.77.0.11"


def frame(source: str, target: str, *, ethertype: int = 0x0800) -> bytes:
    head = bytes(12) + ethertype.to_bytes(2, "big") + bytes(12)
    return head + IPv4Address(source).packed + IPv4Address(target).packed


def decide(code: list[tuple[int, int, int, int]], packet: bytes, rng: Random) -> int:
    """Run classic BPF: these five operations are all there are."""
    at = value = 0
    while True:
        operation, if_true, if_false, given = code[at]
        at += 1
        if operation == RETURN:
            return given
        if operation == LOAD_HALF:
            value = int.from_bytes(packet[given : given + 2], "big")
        elif operation == LOAD_WORD:
            random = rng.randrange(1 << 32)
            value = (
                random if given == RANDOM_AT else int.from_bytes(packet[given : given + 4], "big")
            )
        else:
            assert operation in {JUMP_EQUAL, JUMP_GREATER}
            holds = value == given if operation == JUMP_EQUAL else value >= given
            at += if_true if holds else if_false


@pytest.mark.parametrize("percent", [5, 50, 100])
def test_only_what_comes_from_the_peer_is_dropped_and_as_often_as_asked(percent: int) -> None:
    rng = Random(1)
    code = filter_code(ONE, is_incoming=True, percent=percent)
    hits = sum(decide(code, frame(ONE, OTHER), rng) == DROP for _ in range(2_000))
    assert abs(hits / 20 - percent) < 3
    for passed in (frame(OTHER, ONE), frame(ONE, OTHER, ethertype=0x0806)):
        assert {decide(code, passed, rng) for _ in range(50)} == {NEXT}


def test_what_goes_to_the_peer_is_another_direction() -> None:
    code = filter_code(ONE, is_incoming=False, percent=100)
    assert decide(code, frame(OTHER, ONE), Random(1)) == DROP
    assert decide(code, frame(ONE, OTHER), Random(1)) == NEXT


def test_the_kernel_is_given_the_length_first() -> None:
    code = filter_code(ONE, is_incoming=True, percent=100)
    first, *rest = bytecode(code).split(",")
    assert (int(first), len(rest)) == (len(code), len(code))
    assert rest[0] == "40 0 0 12"
