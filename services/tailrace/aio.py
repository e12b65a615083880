"""Tailrace for asyncio programs: `from tailrace.aio import Producer, Admin`."""

from __future__ import annotations

from tailrace.client.asynchronous import Admin, Producer
from tailrace.client.delivery import BatchDelivery, BatchMetadata, Delivery, RecordMetadata
from tailrace.errors import TailraceError

__all__ = [
    "Admin",
    "BatchDelivery",
    "BatchMetadata",
    "Delivery",
    "Producer",
    "RecordMetadata",
    "TailraceError",
]
