"""The garbage collector, which belongs to the whole process, at rest while records are made."""

from __future__ import annotations

import gc
import os
from threading import Lock, get_ident
from typing import Final


class Rest:
    """None of the records that are being made is garbage.

    To go over them again and again would take a sixth of the time. The collector belongs to the
    whole process: the first thread that begins to rest turns it off, the last that ends turns it
    on. `end` belongs into a `finally` around `begin`; a Ctrl-C that keeps it from being called is
    mended by the next one.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._wake)

    def begin(self) -> None:
        with self._lock:
            if not self._threads and gc.isenabled():
                self._is_ours = True
                gc.disable()
            self._threads.add(get_ident())

    def end(self) -> None:
        with self._lock:
            self._threads.discard(get_ident())
            if not self._threads and self._is_ours:
                self._is_ours = False
                gc.enable()

    def _forget(self) -> None:
        self._lock = Lock()
        self._threads: set[int] = set()
        self._is_ours = False

    def _wake(self) -> None:
        """Of the threads that rested, the child of a fork has none."""
        if self._is_ours:
            gc.enable()
        self._forget()


REST: Final = Rest()
