"""A member of a group, as a process: it processes records, commits, and writes down both.

Lines of its diary, in the order in which things happened: `P partition offset sent_ns now_ns` for a
record that was processed, `C partition position` for a commit that was acknowledged, `F` for one
that was refused or of which nothing is known, `A count` after partitions came or went, and before
it `R partition` for each one that went. SIGTERM ends it in order.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from tailrace import Consumer, TopicPartition
from tailrace.errors import CommitFailed, RequestTimedOut, WokenUp

POLL_RECORDS = 50


class Diary:
    """What a member did, on disk before anything else happens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1 << 16)

    def write(self, *lines: str) -> None:
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()


class Changes:
    """Notes how many partitions there are."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary
        self.mine: set[TopicPartition] = set()

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.mine |= set(partitions)
        self.diary.write(f"A {len(self.mine)}")

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.mine -= set(partitions)
        gone = [f"R {each.partition}" for each in partitions]
        self.diary.write(*gone, f"A {len(self.mine)}")

    on_lost = on_revoked


def main() -> int:
    bootstrap, topic, group, path, strategy, session_ms = sys.argv[1:7]
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=int(session_ms) // 6,
        max_poll_interval_ms=30_000,
        max_poll_records=POLL_RECORDS,
        partition_assignment_strategy=strategy,
    )
    diary = Diary(Path(path))
    signal.signal(signal.SIGTERM, lambda *_: consumer.wakeup())
    consumer.subscribe(topic, listener=Changes(diary))
    try:
        while True:
            work(consumer, diary)
    except WokenUp:
        consumer.close()
    return 0


def work(consumer: Consumer, diary: Diary) -> None:
    records = consumer.poll(1.0)
    if not records:
        return
    now_ns = time.time_ns()
    diary.write(
        *(f"P {each.partition} {each.offset} {int(each.value)} {now_ns}" for each in records)
    )
    positions: dict[int, int] = {each.partition: each.offset + 1 for each in records}
    try:
        consumer.commit(timeout=20)
    except (CommitFailed, RequestTimedOut):
        # Refused; or, after a long sleep in the middle of it, nobody knows.
        diary.write("F")
        return
    diary.write(*(f"C {partition} {position}" for partition, position in positions.items()))


if __name__ == "__main__":
    sys.exit(main())
