"""Whether a client may be used: not closed, not failed, and in the process that made it.

A connection does not survive a fork: both processes would read from and write to the same socket.
So a client belongs to the process that made it, and every call in another one is refused at once.
Nor does gRPC: in the child of a process that has used it, new connections hang or crash. So a child
of a process that made a client can make none.

gRPC's own handlers for forks can crash the child (grpc/grpc#32992) and would not help: a client is
not used there. They are off unless the environment says otherwise; gRPC reads that when it is first
imported, so the package itself says so before anything of ours imports it.
"""

from __future__ import annotations

import os
from typing import Final
from weakref import WeakSet

from tailrace.errors import ClientClosed, TailraceError


class Lifetime:
    """What every public call of a client asks first: `if lifetime.is_over: lifetime.check()`."""

    def __init__(self, what: str) -> None:
        self._what = what
        if _FORKS.has_spoilt:
            raise ClientClosed(
                f"no {what} can be made here: this process was forked from one that had made a "
                "client, which gRPC does not survive. Start processes by 'spawn' or 'forkserver' "
                "(multiprocessing.get_context), or make clients in the children alone"
            )
        _FORKS.has_clients = True
        self._error: TailraceError | None = None
        self.is_closed = False
        self.is_over = False
        """Whether `check` raises. A plain attribute: this is asked for every record."""
        self.is_here = True
        """Whether this is the process that made the client."""
        _ALIVE.add(self)

    def check(self) -> None:
        """ClientClosed after the end or in another process; the error that ended it, if any."""
        if not self.is_here:
            raise ClientClosed(
                f"this {self._what} belongs to the process before the fork: use it there"
            )
        if self._error is not None:
            raise self._error
        if self.is_closed:
            raise ClientClosed(f"the {self._what} is closed")

    @property
    def error(self) -> TailraceError | None:
        """What ended it for good."""
        return self._error

    def end(self) -> bool:
        """Close it; whether there is anything to do for that, here and now."""
        was_open, self.is_closed = not self.is_closed, True
        self.is_over = True
        return was_open and self.is_here

    def fail(self, reason: TailraceError | str) -> TailraceError:
        """It can never be used again; the first reason stays."""
        if self._error is None:
            self._error = reason if isinstance(reason, TailraceError) else ClientClosed(reason)
        self.is_over = True
        return self._error


class _Forks:
    """What forks mean for this process."""

    def __init__(self) -> None:
        self.has_clients = False
        self.has_spoilt = False


_ALIVE: Final[WeakSet[Lifetime]] = WeakSet()
_FORKS: Final = _Forks()


def _forked() -> None:
    _FORKS.has_spoilt = _FORKS.has_clients
    for lifetime in list(_ALIVE):
        lifetime.is_here = False
        lifetime.is_over = True


os.register_at_fork(after_in_child=_forked)
