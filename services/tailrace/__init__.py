"""Tailrace, a replicated log: `from tailrace import Producer, Consumer, Admin`.

The clients here block; `tailrace.aio` has those for asyncio. Nothing is imported before it is asked
for: importing `tailrace` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tailrace.client.collecting import ClientCollector
    from tailrace.client.delivery import BatchMetadata, RecordMetadata
    from tailrace.client.group_member import OffsetAndMetadata
    from tailrace.client.records import ConsumerRecord
    from tailrace.client.sync import Admin, Producer
    from tailrace.client.sync_consumer import Consumer
    from tailrace.errors import TailraceError
    from tailrace.model import TopicPartition

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "BatchMetadata",
    "ClientCollector",
    "Consumer",
    "ConsumerRecord",
    "OffsetAndMetadata",
    "Producer",
    "RecordMetadata",
    "TailraceError",
    "TopicPartition",
]

# gRPC's handlers for forks crash the child now and then. It reads this once, when it is first used,
# be it by a module that has nothing to do with clients: so it is said before anything else.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_WHERE: Final = {
    "Admin": "tailrace.client.sync",
    "BatchMetadata": "tailrace.client.delivery",
    "ClientCollector": "tailrace.client.collecting",
    "Consumer": "tailrace.client.sync_consumer",
    "ConsumerRecord": "tailrace.client.records",
    "OffsetAndMetadata": "tailrace.client.group_member",
    "Producer": "tailrace.client.sync",
    "RecordMetadata": "tailrace.client.delivery",
    "TailraceError": "tailrace.errors",
    "TopicPartition": "tailrace.model",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
