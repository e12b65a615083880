"""A process that has Spark and Tailrace imported, and becomes the planner of each stream by fork.

Spark forks the processes that run tasks, but starts the one that plans a stream anew for each
query: it imports for longer than it works. Here the first one of a session leaves a fork of itself
behind. The next ones only connect to that, hand over what makes up a process (environment, folder,
standard files) and wait; what is forked for them does their work.

The one that stays is bound to Spark's JVM: it ends with it, when the JVM's own folder goes (there
its socket is), or when nobody came for `IDLE_S`. It takes nobody but processes of the same user.
Whenever something is not as it should be, a planner starts as Spark would start it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn
from zlib import crc32

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""What Spark runs to plan a stream."""

IDLE_S: Final = 600
"""How long the process stays for another query."""

LOOK_S: Final = 2.0
"""How often it looks whether its folder is still there."""

ANSWER_S: Final = 2.0
"""How long a planner waits for the process that shall do its work."""

BACKLOG: Final = 64
# Linux allows 108 with the zero at the end.
SOCKET_PATH_MAX: Final = 107
MESSAGE_BYTES_MAX: Final = 4 << 20
# Modules of which a planner needs most.
_WARM: Final = ("tailrace_spark.source", "tailrace_spark.cluster", "tailrace_spark.progress")
_LENGTH: Final = struct.Struct("!I")
_CREDENTIALS: Final = struct.Struct("3i")
_GO: Final = b"g"
# Stays open until this process ends: its end is what the other one waits for.
_callers: Final[list[socket.socket]] = []


def was_handed_over() -> bool:
    """Whether another process did the work of this one, to its end; else it is this one's to do.

    In the process that stays, and in those that it forks, this does not return before they are to
    run the module.
    """
    path = socket_path(os.environ)
    if not path:
        return False
    if _hand_over(path):
        return True
    _leave_behind(path)
    return False


def socket_path(environment: Any) -> str:
    """Where the process of this JVM listens; empty where there can be none."""
    folder = environment.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not folder or not hasattr(os, "pidfd_open"):
        return ""
    # What decides which modules are imported, and how.
    kind = [sys.executable, os.getcwd(), *sys.path]
    path = os.path.join(folder, f"tailrace-planner-{crc32(repr(kind).encode()):08x}")
    return path if len(os.fsencode(path)) <= SOCKET_PATH_MAX else ""


def _hand_over(path: str) -> bool:
    """Let the process that listens there do the work; False when it does not take it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(path)
            if not _is_ours(connection):
                return False
            told = json.dumps([dict(os.environ), os.getcwd(), sys.argv]).encode()
            socket.send_fds(connection, [_LENGTH.pack(len(told))], [0, 1, 2])
            connection.sendall(told)
            pid = _LENGTH.unpack(_received(connection, _LENGTH.size))[0]
            # Who ends this process means the other one.
            signal.signal(signal.SIGTERM, lambda *_: _end_both(pid))
            connection.sendall(_GO)
        except ConnectionRefusedError:
            # Whoever listened there has died: the next one takes its place.
            with suppress(OSError):
                os.unlink(path)
            return False
        except (OSError, EOFError, ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return False
        connection.settimeout(None)
        with suppress(OSError):
            connection.recv(1)
        return True


def _end_both(pid: int) -> NoReturn:
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)


def _leave_behind(path: str) -> None:
    """Import what a planner needs, and fork the process that stays for the next ones."""
    import importlib  # noqa: PLC0415 - a process that only hands over does without.

    try:
        jvm = os.pidfd_open(os.getppid())
    except OSError:
        return
    # Before the fork, since this one needs it as well. It is run as a program later, and by then it
    # must not be there; what it imports stays.
    importlib.import_module(RUNNER)
    del sys.modules[RUNNER]
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child:
        os.close(jvm)
        return
    try:
        taken = _stay(path, jvm)
    except BaseException:  # noqa: BLE001 - nobody is there to tell.
        os._exit(1)
    if taken is None:
        os._exit(0)
    # From here on this is a planner like any other: its caller runs the module.


def _stay(path: str, jvm: int) -> socket.socket | None:
    """In the process that stays: None at its end; in one that it forked, whom that works for."""
    import gc  # noqa: PLC0415 - as above.
    import importlib  # noqa: PLC0415 - as above.

    _give_up_files()
    for each in _WARM:
        importlib.import_module(each)
    # What is there now is shared by all forks as long as nobody writes to it.
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            ours = _listen(listener, path)
        except OSError:
            # Another one was sooner, or the JVM is about to end.
            return None
        # Forks that ended need nobody to ask for their codes.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while connection := _next(listener, jvm, lambda: _inode(path) == ours):
            if os.fork():
                connection.close()
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(jvm)
            return _taken(connection)
        if _inode(path) == ours:
            with suppress(OSError):
                os.unlink(path)
    return None


def _listen(listener: socket.socket, path: str) -> int:
    """Listen there, in which file is told; fails where somebody does.

    The name is there only once somebody listens: who was refused would take it for a dead one's.
    """
    # Not longer than the other name.
    made = os.path.join(os.path.dirname(path), f"planner-{os.getpid()}")
    with suppress(OSError):
        # What a process of the same number left, which was killed here.
        os.unlink(made)
    listener.bind(made)
    try:
        os.chmod(made, 0o600)
        listener.listen(BACKLOG)
        os.link(made, path)
        return _inode(made)
    finally:
        os.unlink(made)


def _next(listener: socket.socket, jvm: int, is_known: Callable[[], bool]) -> socket.socket | None:
    """The next one who hands over; None when the process is to end."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    waiting.register(jvm, select.POLLIN)
    for _ in range(int(IDLE_S / LOOK_S)):
        ready = [number for number, _ in waiting.poll(LOOK_S * 1000)]
        if jvm in ready or not is_known():
            return None
        if ready:
            return listener.accept()[0]
    return None


def _taken(connection: socket.socket) -> socket.socket | None:
    """Become the process that hands over; None when it has gone away or is not ours."""
    connection.settimeout(ANSWER_S)
    if not _is_ours(connection):
        return None
    told, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    size = _LENGTH.unpack(told)[0]
    if size > MESSAGE_BYTES_MAX:
        return None
    environment, folder, arguments = json.loads(_received(connection, size))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = arguments
    connection.sendall(_LENGTH.pack(os.getpid()))
    # However long that takes: it has been told who does the work, and closes this if it is not us.
    connection.settimeout(None)
    if connection.recv(1) != _GO:
        return None
    _callers.append(connection)
    return connection


def _inode(path: str) -> int:
    """Which file is there; -1 when there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def _give_up_files() -> None:
    """Let go of the standard files, which are those of the planner that left this one behind."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


def _is_ours(connection: socket.socket) -> bool:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1]) == os.getuid()


def _received(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(left)
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
