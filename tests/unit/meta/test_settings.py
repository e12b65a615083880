from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import InvalidConfig
from tailrace.meta import settings as module
from tailrace.meta.settings import EtcdSettings, open_store


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"endpoints": ()}, "etcd.endpoints names no server"),
        ({"username": "u"}, "etcd.username needs etcd.password"),
        ({"password": "p"}, "etcd.username needs etcd.password"),
        ({"username": "u", "password": "p", "password_file": "f"}, "not both"),
        ({"ca_file": "ca", "cert_file": "c"}, "go together"),
        ({"cert_file": "c", "key_file": "k"}, "need etcd.ca.file"),
        ({"server_name": "etcd"}, "need etcd.ca.file"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        EtcdSettings(**given)


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(EtcdSettings(username="u", password="hunter2"))


async def test_files_are_read_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "password").write_bytes(b"hunter2\n")
    made: dict[str, Any] = {}
    monkeypatch.setattr(module, "EtcdStore", lambda endpoints, **given: made.update(given))
    open_store(
        EtcdSettings(
            endpoints=("a:1", "b:2"),
            username="u",
            password_file=str(tmp_path / "password"),
            ca_file=str(tmp_path / "ca"),
            cert_file=str(tmp_path / "cert"),
            key_file=str(tmp_path / "key"),
            server_name="etcd",
        )
    )
    assert made["login"].password == "hunter2"
    assert (made["tls"].authority, made["tls"].certificate) == (b"ca", b"cert")
    assert (made["tls"].key, made["tls"].server_name) == (b"key", "etcd")


async def test_without_files_there_is_neither_tls_nor_login() -> None:
    store = open_store(EtcdSettings(endpoints=("127.0.0.1:1",)))
    await store.close()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"etcd\.ca\.file: .*missing: No such file"):
        open_store(EtcdSettings(ca_file=str(tmp_path / "missing")))


def test_a_file_that_is_too_large_is_no_certificate(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (module.SECRET_BYTES_MAX + 1))
    with pytest.raises(InvalidConfig, match="is larger than"):
        open_store(EtcdSettings(ca_file=str(large)))
