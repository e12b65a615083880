"""The console in a headless Chromium, during a failover: what it shows, and an empty browser log.

Needs `chromium` on the PATH, or named by TAILRACE_CHROMIUM. TAILRACE_PICTURES=DIR keeps the
pictures, light and dark: look at them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.chromium import opened
from integration.cluster_harness import connected, start, stop
from tailrace.cli.connecting import connection
from tailrace.cli.console import _serve
from tailrace.client.asynchronous import Producer
from tailrace.client.asynchronous_consumer import Consumer
from tailrace.dev.cluster import DevCluster

pytestmark = [pytest.mark.integration, pytest.mark.by_hand, pytest.mark.timeout(400)]

TOPICS = ("orders", "payments", "clicks")
GROUPS = ("billing", "fraud", "search", "mails", "audit")
VIEWS = ("map", "topics", "groups", "failovers", "drills", "tail")


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    cluster = start(tmp_path / "cluster", coordinators=1)
    yield cluster
    stop(cluster)


async def _use(bootstrap: str) -> None:
    """60 partitions with records, five groups that stand somewhere."""
    async with Producer(bootstrap) as producer:
        for number in range(600):
            await producer.send(TOPICS[number % 3], b"tea <b>%d</b>" % number, key=b"%d" % number)
    for number, group in enumerate(GROUPS):
        async with Consumer(
            TOPICS[number % 3],
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
        ) as consumer:
            while not await consumer.poll(timeout=1.0, max_records=20):
                pass
            await consumer.commit()


async def test_a_failover_is_seen_in_a_browser(dev: DevCluster, tmp_path: Path) -> None:
    binary = os.environ.get("TAILRACE_CHROMIUM") or shutil.which("chromium")
    assert binary, "there is no chromium: install it, or name it by TAILRACE_CHROMIUM"
    pictures = Path(os.environ.get("TAILRACE_PICTURES", str(tmp_path)))
    bootstrap = dev.state.bootstrap
    async with connected(dev) as cluster:
        for topic in TOPICS:
            await cluster.admin.create_topic(topic, partitions=20, replication_factor=3)
        await _use(bootstrap)
        port = dev.state.port_base + 390
        listen = f"127.0.0.1:{port}"
        serving = asyncio.ensure_future(_serve(connection(bootstrap, 30.0), listen, (), None))
        async with opened(binary, tmp_path / "browser", f"http://{listen}/?theme=light") as page:
            await page.until("document.querySelectorAll('#grid .cell.leader').length === 110")
            await page.until(f"state.groups && state.groups.length === {len(GROUPS)}")
            await cluster.kill("broker-1")
            # Pushed, not asked for: nobody touches the page.
            await page.until("document.querySelectorAll('#grid .cell.away').length === 110")
            await page.until(
                "state.story && state.story.some((each) => each.cause.includes('broker 1'))"
            )
            await page.ask("location.hash = 'tail'")
            await page.ask("at('tailtopic').value = 'orders'; at('tailsearch').value = 'LOOK'")
            await page.ask("at('tailform').requestSubmit()")
            await page.until("at('tailcount').textContent.includes('of')")
            async with Producer(bootstrap) as producer:
                for number in range(20):
                    await (await producer.send("orders", b"<i>look</i> %d" % number))
                    await (await producer.send("orders", b"away %d" % number))
            await page.until("document.querySelectorAll('#tailrecords tbody tr').length === 20")
            # What is in records is text, whatever it looks like.
            assert await page.ask("document.querySelectorAll('#tailrecords i').length") == 0
            await page.ask("stopTail()")
            for theme in ("light", "dark"):
                await page.ask(f"theme({str(theme == 'dark').lower()})")
                for view in VIEWS:
                    await page.ask(f"location.hash = '{view}'")
                    await page.until(f"!at('{view}').hidden")
                    await page.picture(pictures / f"{view}-{theme}.png")
            assert page.problems == []
        serving.cancel()
        await asyncio.wait([serving])
