"""Writes the numbers from 0; given to a Python in a pod by its standard input."""

from __future__ import annotations

import json
import sys

from tailrace import Producer


def main(bootstrap: str, topic: str, count: str) -> None:
    with Producer(bootstrap) as producer:
        for number in range(int(count)):
            producer.send(topic, b"%d" % number)
    print(json.dumps({"written": int(count)}))


main(*sys.argv[1:])
