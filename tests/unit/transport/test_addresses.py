"""Addresses are taken apart and put together again; what cannot be is told."""

from __future__ import annotations

import errno
import socket

import pytest

from tailrace.errors import AddressInUse, InvalidConfig
from tailrace.transport.addresses import (
    bind_error,
    join_address,
    listening_socket,
    resolve,
    split_address,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("localhost:9092", "localhost", 9_092), ("[::1]:1", "::1", 1), ("10.0.0.1:0", "10.0.0.1", 0)],
)
def test_good_addresses(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address",
    ["", ":", "host", "host:", ":9092", "host:x", "host:65536", "::1:9092", "h:-1", "h:²"],
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(InvalidConfig):
        split_address(address)


async def test_one_process_listens() -> None:
    sock = await listening_socket("127.0.0.1:0")
    try:
        address = join_address("127.0.0.1", sock.getsockname()[1])
        with pytest.raises(AddressInUse, match=address):
            await listening_socket(address)
    finally:
        sock.close()
    (await listening_socket(address)).close()


async def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(InvalidConfig, match=r"cannot listen on 192\.0\.2\.1:0"):
        await listening_socket("192.0.2.1:0")
    with pytest.raises(InvalidConfig):
        await listening_socket("no.such.host.invalid:0")


async def test_names_are_looked_up() -> None:
    ways = await resolve("127.0.0.1:80")
    assert [(way.family, way.target) for way in ways] == [(socket.AF_INET, ("127.0.0.1", 80))]


def test_reasons_not_to_listen() -> None:
    assert isinstance(bind_error("h:1", OSError(errno.EADDRINUSE, "in use")), AddressInUse)
    assert "denied" in str(bind_error("h:1", OSError(errno.EACCES, "denied")))
