"""The newest result of each customer; given to a Python in a pod by its standard input."""

from __future__ import annotations

import json
import sys

from tailrace import Admin, Consumer, TopicPartition


def main(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap) as admin:
        partitions = len(admin.describe_topic(topic).partitions)
    newest: dict[str, list[int]] = {}
    read = 0
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(wanted)
        left = sum(consumer.end_offsets(wanted).values())
        while read < left:
            for record in consumer.poll(timeout=5):
                read += 1
                value = json.loads(record.value)
                newest[value["customer"]] = [value["orders"], int(value["total"])]
    print(json.dumps({"records": read, "newest": newest}))


main(*sys.argv[1:])
