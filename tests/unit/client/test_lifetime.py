"""Whether a client may be used. (After a fork: in test_sync.)"""

from __future__ import annotations

from weakref import WeakSet

import pytest

from tailrace.client import lifetime
from tailrace.client.lifetime import Lifetime
from tailrace.errors import ClientClosed, NotLeader


def test_from_the_beginning_to_the_end() -> None:
    life = Lifetime("reader")
    before = life.is_over
    life.check()
    assert life.end()
    assert (before, life.is_over) == (False, True)
    assert not life.end()
    with pytest.raises(ClientClosed, match="the reader is closed"):
        life.check()


def test_the_first_reason_stays() -> None:
    life = Lifetime("reader")
    first = life.fail(NotLeader("first"))
    assert life.fail("second") is first is life.error
    with pytest.raises(NotLeader, match="first"):
        life.check()
    assert isinstance(Lifetime("x").fail("words"), ClientClosed)


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> lifetime._Forks:
    """What a test says of forks is not true of this process."""
    forks = lifetime._Forks()
    monkeypatch.setattr(lifetime, "_FORKS", forks)
    return forks


def test_a_child_of_who_made_a_client_can_make_none() -> None:
    Lifetime("reader")
    lifetime._forked()
    with pytest.raises(ClientClosed, match=r"no producer can be made here: .* 'spawn'"):
        Lifetime("producer")


def test_a_child_of_who_made_none_can() -> None:
    lifetime._forked()
    Lifetime("producer").check()


def test_in_another_process_there_is_nothing_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Lifetime("reader")
    monkeypatch.setattr(lifetime, "_ALIVE", WeakSet([life]))
    lifetime._forked()
    assert life.is_over
    assert not life.end()
    with pytest.raises(ClientClosed, match="before the fork"):
        life.check()
