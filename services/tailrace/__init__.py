"""Tailrace, a replicated log: `from tailrace import Producer, Admin`.

The clients here block; `tailrace.aio` has those for asyncio. Nothing is imported before it is asked
for: importing `tailrace` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tailrace.client.delivery import BatchMetadata, RecordMetadata
    from tailrace.client.sync import Admin, Producer
    from tailrace.errors import TailraceError

__version__ = "0.1.0"

__all__ = ["Admin", "BatchMetadata", "Producer", "RecordMetadata", "TailraceError"]

_WHERE: Final = {
    "Admin": "tailrace.client.sync",
    "BatchMetadata": "tailrace.client.delivery",
    "Producer": "tailrace.client.sync",
    "RecordMetadata": "tailrace.client.delivery",
    "TailraceError": "tailrace.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
