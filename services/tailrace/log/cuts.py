"""The note that an opening has cut a log: there until the cluster knows.

What was cut off may be what this replica has vouched for. The broker says so to the controller
before it serves the replica; but it may die before it does, and the log that is opened next is
whole again and looks as if nothing had been lost. So the note is made before the cut, is durable,
and goes only when nobody counts on what was there.
"""

from __future__ import annotations

from typing import Final

from tailrace.log.checkpoints import write_atomically
from tailrace.log.files import Files

CUT_FILE: Final = "cut"
NOTE_BYTES_MAX: Final = 1_024

_UNREADABLE: Final = "an earlier opening cut it"


def note_cut(files: Files, folder: str, why: str) -> None:
    """Durable on return. A note that is there stays: it tells of more."""
    path = f"{folder}/{CUT_FILE}"
    if not files.exists(path):
        note = why.encode("utf-8", "replace")[: NOTE_BYTES_MAX - 1]
        write_atomically(files, path, note + b"\n", durable=True)


def noted_cut(files: Files, folder: str) -> str:
    """What was noted; empty: nothing. That there is a note counts, whatever became of its text."""
    path = f"{folder}/{CUT_FILE}"
    if not files.exists(path):
        return ""
    if files.size(path) > NOTE_BYTES_MAX:
        return _UNREADABLE
    return files.read(path).decode("utf-8", "replace").strip() or _UNREADABLE


def forget_cut(files: Files, folder: str) -> None:
    """The cluster counts on nothing that was cut off; durable on return."""
    path = f"{folder}/{CUT_FILE}"
    if files.exists(path):
        files.remove(path)
        files.sync_folder(folder)
