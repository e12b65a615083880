"""Who may write to the topics that the cluster keeps for itself. Pure.

Clients may not. Coordinators are clients of the broker too, and nobody is asked for an identity, so
what can be known without one has to do: a batch for a shard must be under the producer's numbers of
one owner of that shard, in an epoch that the log or the metadata store knows, and all that is in it
must look like what coordinators write. Who reads the topic can learn the numbers, and can then
write in the owner's name; only identities will keep that out.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace.log.producers import ProducerStates
from tailrace.meta.shard_producers import epoch_of, producer_of
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.record.codec import Compression
from tailrace.record.header import BatchHeader, split
from tailrace.record.view import BatchView

# A list that begins with a word, in JSON of printable ASCII.
_KEY: Final = r'^\["[a-z_]{1,32}"[\x20-\x7e]*\]$'
# An object that begins with its version.
_VALUE: Final = r'^\{"version":[0-9]{1,9}[,}][\x20-\x7e]*$'
_CLOSED: Final = r"\}$"


def claimed_epoch(partition: TopicPartition, data: bytes | memoryview) -> int:
    """The epoch of the owner of the shard in whose name the batches are.

    InvalidRequest where they are nobody's who may write here; CorruptBatch for what is no batch.
    """
    if partition.topic != OFFSETS_TOPIC:
        raise _not_yours(partition)
    epochs = {_epoch_of(partition, header) for _, header in split(data)}
    epoch = epochs.pop() if len(epochs) == 1 else None
    if epoch is None:
        raise _not_yours(partition)
    return epoch


def is_known(producers: ProducerStates, partition: TopicPartition, epoch: int) -> bool:
    """Whether the log has taken something of this owner already, and nothing of a later one."""
    wanted = producer_of(partition.partition, epoch)
    return producers.epoch_of(wanted.producer_id) == wanted.producer_epoch


def check_records(partition: TopicPartition, data: bytes | memoryview) -> None:
    """Raise unless all records look like those of a coordinator."""
    source = pa.py_buffer(data)
    for position, header in split(data):
        columns = BatchView.of(source, position, header).record_batch()
        keys: Any = columns.column("key")
        values: Any = columns.column("value")
        is_good = (
            not keys.null_count
            and _all_match(keys, _KEY)
            and _all_match(values, _VALUE)
            and _all_match(values, _CLOSED)
        )
        if not is_good:
            raise InvalidRequest(f"{partition}: a batch with records that no coordinator writes")


def _all_match(column: Any, pattern: str) -> bool:
    """Whether all that is there matches; nothing is there where it is null."""
    found: Any = pc.match_substring_regex(column, pattern)
    return bool(pc.all(found, skip_nulls=True, min_count=0).as_py())


def _epoch_of(partition: TopicPartition, header: BatchHeader) -> int | None:
    if (
        header.is_control
        or header.is_transactional
        or header.has_headers
        or header.base_sequence < 0
        or header.compression is not Compression.NONE
    ):
        return None
    return epoch_of(partition.partition, header.producer_id, header.producer_epoch)


def _not_yours(partition: TopicPartition) -> InvalidRequest:
    return InvalidRequest(
        f"{partition.topic} is the cluster's own: clients read it, and do not write to it"
    )
