"""Whether a client may be used. (After a fork: in test_sync.)"""

from __future__ import annotations

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


def test_in_another_process_there_is_nothing_to_close() -> None:
    life = Lifetime("reader")
    lifetime._forked()
    assert life.is_over
    assert not life.end()
    with pytest.raises(ClientClosed, match="before the fork"):
        life.check()
