"""Counts the numbers in a topic; given to a Python in a pod by its standard input."""

from __future__ import annotations

import json
import sys

from tailrace import Consumer, TopicPartition

PARTITIONS = 6


def main(bootstrap: str, topic: str) -> None:
    found: list[int] = []
    wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(wanted)
        left = sum(consumer.end_offsets(wanted).values())
        while len(found) < left:
            found += [int(record.value) for record in consumer.poll(timeout=5)]
    missing = set(range(max(found, default=-1) + 1)).difference(found)
    told = {"records": len(found), "distinct": len(set(found)), "missing": len(missing)}
    print(json.dumps(told))


main(*sys.argv[1:])
