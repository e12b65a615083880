"""Tailrace for asyncio programs: `from tailrace.aio import Producer, Consumer, Admin`."""

from __future__ import annotations

from tailrace.client.asynchronous import Admin, Producer
from tailrace.client.asynchronous_consumer import Consumer
from tailrace.client.delivery import BatchDelivery, BatchMetadata, Delivery, RecordMetadata
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.client.records import ConsumerRecord
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition

__all__ = [
    "Admin",
    "BatchDelivery",
    "BatchMetadata",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "OffsetAndMetadata",
    "Producer",
    "RecordMetadata",
    "TailraceError",
    "TopicPartition",
]
