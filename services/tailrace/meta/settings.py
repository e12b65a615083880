"""Where the etcd of a cluster is and how to log in there; makes the store from it.

Files named here are read when the store is opened, not before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tailrace.errors import InvalidConfig
from tailrace.meta.etcd import CALL_TIMEOUT_MS, EtcdStore, Login, Tls

SECRET_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """How a process reaches etcd. Empty texts mean: none."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    namespace: str = ""
    timeout_ms: int = CALL_TIMEOUT_MS
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    # The name in the servers' certificate, where it is not that of the endpoint.
    server_name: str = ""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidConfig("etcd.endpoints names no server: give host:port of one or more")
        if self.password and self.password_file:
            raise InvalidConfig("give etcd.password or etcd.password.file, not both")
        if bool(self.username) != bool(self.password or self.password_file):
            raise InvalidConfig(
                "etcd.username needs etcd.password or etcd.password.file, and they need it"
            )
        if bool(self.cert_file) != bool(self.key_file):
            raise InvalidConfig("etcd.cert.file and etcd.key.file go together")
        if not self.ca_file and (self.cert_file or self.server_name):
            raise InvalidConfig("etcd.cert.file and etcd.server.name need etcd.ca.file")


def open_store(settings: EtcdSettings) -> EtcdStore:
    """Make the store; InvalidConfig when a file cannot be read. Nothing connects yet."""
    return EtcdStore(
        settings.endpoints,
        tls=_tls(settings),
        login=_login(settings),
        namespace=settings.namespace,
        timeout_ms=settings.timeout_ms,
    )


def _tls(settings: EtcdSettings) -> Tls | None:
    if not settings.ca_file:
        return None
    return Tls(
        authority=_read("etcd.ca.file", settings.ca_file),
        certificate=_read("etcd.cert.file", settings.cert_file) if settings.cert_file else None,
        key=_read("etcd.key.file", settings.key_file) if settings.key_file else None,
        server_name=settings.server_name,
    )


def _login(settings: EtcdSettings) -> Login | None:
    if not settings.username:
        return None
    password = settings.password
    if settings.password_file:
        # Editors and `echo` end a file with a new line, which no password means.
        password = _read("etcd.password.file", settings.password_file).decode().rstrip("\r\n")
    return Login(user=settings.username, password=password)


def _read(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{name}: {path}: {error.strerror or error}") from error
    if len(data) > SECRET_BYTES_MAX:
        raise InvalidConfig(f"{name}: {path} is larger than {SECRET_BYTES_MAX} bytes")
    return data
