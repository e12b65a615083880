"""The console in a headless Chromium, during a failover: what it shows, and an empty browser log.

Needs `chromium` on the PATH, or named by TAILRACE_CHROMIUM. TAILRACE_PICTURES=DIR keeps the
pictures, light and dark: look at them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from integration.chromium import Page, opened
from integration.cluster_harness import Cluster, connected, start, stop
from tailrace.cli.connecting import connection
from tailrace.cli.console import _serve
from tailrace.client.asynchronous import Producer
from tailrace.client.asynchronous_consumer import Consumer
from tailrace.client.group_admin import ResetTo
from tailrace.dev.cluster import DevCluster
from tailrace.transport.addresses import split_address
from tailrace_operator.drills import Report, Verdict
from tailrace_operator.ledger import Figures

pytestmark = [pytest.mark.integration, pytest.mark.by_hand, pytest.mark.timeout(400)]

TOPICS = ("orders", "payments", "clicks")
GROUPS = ("billing", "fraud", "search", "mails", "audit")
# 20 partitions of each topic, and the 50 in which groups are kept.
CELLS = 110
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
        async with _consumer(bootstrap, number, group) as consumer:
            while not await consumer.poll(timeout=1.0, max_records=20 * (number + 1)):
                pass
            await consumer.commit()


def _consumer(bootstrap: str, number: int, group: str) -> Consumer:
    return Consumer(
        TOPICS[number % 3],
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=f"{group}-{number}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


def _drills(path: Path) -> Path:
    """What `kubectl get drills.tailrace.dev -o json` gives, of two drills."""
    fared = {
        "kill-leader": Figures(acknowledged=2_987, unavailable_ms=640, counted=True),
        "kill-broker-and-wipe": Figures(
            acknowledged=3_041, unavailable_ms=21_050, lost=2, counted=True
        ),
    }
    items = []
    for kind, figures in fared.items():
        report = Report(
            verdict=Verdict.FAILED if figures.lost else Verdict.PASSED,
            message=f"of {figures.acknowledged} acknowledged {figures.lost} are lost",
            figures=figures,
            isr_recovery_ms=14_200,
            took_ms=61_300,
            timeline=((0, "began"),),
        )
        status = {
            "phase": report.verdict.value,
            "message": report.message,
            "endedAt": "2026-01-02T03:00:41Z",
            "report": report.as_dict(),
        }
        about = {"kind": kind, "cluster": "demo"}
        items.append({"metadata": {"name": f"nightly-{kind}"}, "spec": about, "status": status})
    path.write_text(json.dumps({"items": items}), encoding="utf-8")
    return path


async def _look(page: Page, pictures: Path, when: str, views: Sequence[str] = VIEWS) -> None:
    """Every view in light and dark: a picture, and nothing that goes beyond the window."""
    for theme in ("light", "dark"):
        await page.ask(f"theme({str(theme == 'dark').lower()})")
        for view in views:
            await page.ask(f"location.hash = '{view}'")
            await page.until(f"!at('{view}').hidden")
            await page.until(f"at('{view}').childElementCount > 0")
            wide, width = await page.ask("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= width, f"{view} {when}: {wide} of {width}"
            await page.picture(pictures / f"{when}-{view}-{theme}.png")


async def test_a_failover_is_seen_in_a_browser(dev: DevCluster, tmp_path: Path) -> None:
    binary = os.environ.get("TAILRACE_CHROMIUM") or shutil.which("chromium")
    assert binary, "there is no chromium: install it, or name it by TAILRACE_CHROMIUM"
    pictures = Path(os.environ.get("TAILRACE_PICTURES", str(tmp_path)))
    bootstrap = dev.state.bootstrap
    async with connected(dev) as cluster, AsyncExitStack() as stack:
        for topic in TOPICS:
            await cluster.admin.create_topic(topic, partitions=20, replication_factor=3)
        await _use(bootstrap)
        listen = f"127.0.0.1:{dev.state.port_base + 390}"
        served = _serve(connection(bootstrap, 30.0), listen, (), _drills(tmp_path / "drills.json"))
        serving = asyncio.ensure_future(served)
        # One group has a member, which stays and reads nothing more.
        member = await stack.enter_async_context(_consumer(bootstrap, 1, GROUPS[1]))
        await member.poll(timeout=1.0, max_records=1)
        async with opened(binary, tmp_path / "browser", f"http://{listen}/?theme=light") as page:
            await page.until(f"{_cells('leader')} === {CELLS}")
            await page.until(f"state.groups && state.groups.length === {len(GROUPS)}")
            await page.until("state.groups.some((each) => each.state === 'Stable')")
            await cluster.kill("broker-1")
            # Pushed, not asked for: nobody touches the page.
            await page.until(f"{_cells('away')} === {CELLS}")
            await page.until(
                "state.story && state.story.some((each) => each.cause.includes('broker 1'))"
            )
            await _unfolded(page)
            await _tail(page, bootstrap)
            await _look(page, pictures, "one-away")
            await page.resize(480, 900)
            await _look(page, pictures, "narrow")
            await page.resize(1400, 1000)
            await page.ask("location.hash = 'map'")
            await cluster.kill("broker-2")
            await page.until(f"{_cells('away')} === {2 * CELLS}")
            await page.until("document.querySelectorAll('.tile.bad').length > 0")
            await page.until("state.story.some((each) => each.cause.includes('broker 2'))")
            await _look(page, pictures, "two-away", ("map", "topics", "failovers"))
            await page.ask("location.hash = 'map'")
            for name in ("broker-1", "broker-2"):
                await dev.start(name)
            await page.until(f"{_cells('follower')} === {2 * CELLS}")
            await page.until("document.querySelectorAll('.tile.bad, .tile.warn').length === 0")
            # What could not be asked while the offsets' partitions took nothing can be asked again.
            await page.until("at('trouble').hidden")
            await _look(page, pictures, "well-again", ("map", "topics"))
            assert page.problems == []
        serving.cancel()
        await asyncio.wait([serving])


MANY_TOPICS = tuple(f"topic-{number:02}" for number in range(19))
MANY_GROUPS = 2_200
DEAF = 50


async def _crowd(cluster: Cluster) -> None:
    """A thousand partitions, those of groups among them, and more groups than are shown."""
    admin = cluster.admin
    for topic in MANY_TOPICS:
        await admin.create_topic(topic, partitions=50, replication_factor=3)
    async with Producer(",".join(cluster.bootstrap)) as producer:
        for number in range(2_000):
            await producer.send(MANY_TOPICS[number % 19], b"tea", key=b"%d" % number)
    left = list(range(MANY_GROUPS))

    async def stand() -> None:
        while left:
            number = left.pop()
            await admin.reset_offsets(
                f"group-{number:04}",
                ResetTo.EARLIEST,
                topics={MANY_TOPICS[number % 19]: range(5)},
                dry_run=False,
            )

    await asyncio.gather(*(stand() for _ in range(16)))


def _deaf(address: str) -> socket.socket:
    """A browser that asks and does not read."""
    host, port = split_address(address)
    made = socket.create_connection((host, port))
    made.sendall(f"GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    return made


async def test_a_large_cluster_is_usable_beside_browsers_that_do_not_read(
    dev: DevCluster, tmp_path: Path
) -> None:
    binary = os.environ.get("TAILRACE_CHROMIUM") or shutil.which("chromium")
    assert binary, "there is no chromium: install it, or name it by TAILRACE_CHROMIUM"
    pictures = Path(os.environ.get("TAILRACE_PICTURES", str(tmp_path)))
    listen = f"127.0.0.1:{dev.state.port_base + 390}"
    async with connected(dev) as cluster, AsyncExitStack() as stack:
        await _crowd(cluster)
        served = _serve(connection(dev.state.bootstrap, 30.0), listen, (), None)
        serving = asyncio.ensure_future(served)
        await asyncio.sleep(1)
        for _ in range(DEAF):
            stack.enter_context(_deaf(listen))
        async with opened(binary, tmp_path / "browser", f"http://{listen}/?theme=light") as page:
            await page.until(f"{_cells('leader')} === 1000")
            await page.until("state.groups && state.groups.length === 200")
            await _look(page, pictures, "many", ("map", "topics", "groups"))
            assert "of 2,200 groups" in await page.ask("at('groupcount').textContent")
            # The last one of all is found by its name.
            await page.ask("at('groupsearch').value = '2199'")
            await page.ask("at('groupsearch').dispatchEvent(new Event('input'))")
            await page.until("at('grouprows').textContent.includes('group-2199')")
            assert await page.ask("document.querySelectorAll('#grouprows tbody tr').length") == 1
            assert page.problems == []
        serving.cancel()
        await asyncio.wait([serving])


def _cells(kind: str) -> str:
    return f"document.querySelectorAll('#grid .cell.{kind}').length"


async def _unfolded(page: Page) -> None:
    """What somebody looks at in detail stays unfolded when something else is pushed."""
    await page.ask("location.hash = 'failovers'")
    await page.ask("document.querySelector('#failovers summary').click()")
    await page.until("document.querySelectorAll('#failovers details[open] tr').length > 1")
    await page.ask("state.groups = null")
    await page.until("state.groups !== null")
    assert await page.ask("document.querySelectorAll('#failovers details[open] tr').length > 1")
    # Nor does it fold up when it is told anew itself.
    await page.ask("drawFailovers()")
    await page.until("document.querySelectorAll('#failovers details[open] tr').length > 1")


async def _tail(page: Page, bootstrap: str) -> None:
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
