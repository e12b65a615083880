"""Writes orders whose totals are known; given to a Python in a pod by its standard input."""

from __future__ import annotations

import json
import sys

from tailrace import Producer

CUSTOMERS = 20
# All within one window of an hour.
BEGAN_MS = 1_800_000_000_000 - 1_800_000_000_000 % 3_600_000


def main(bootstrap: str, topic: str, count: str) -> None:
    totals: dict[str, list[int]] = {}
    with Producer(bootstrap) as producer:
        for number in range(int(count)):
            customer, amount = f"c{number % CUSTOMERS}", number * 7 % 101
            total = totals.setdefault(customer, [0, 0])
            total[0] += 1
            total[1] += amount
            value = json.dumps({"customer": customer, "amount": amount}).encode()
            at_ms = BEGAN_MS + number % 3_000_000
            producer.send(topic, value, customer.encode(), timestamp_ms=at_ms)
    print(json.dumps(totals))


main(*sys.argv[1:])
