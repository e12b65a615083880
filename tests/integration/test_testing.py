"""A program's own tests get a real cluster from `tailrace.testing`, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CONFTEST = "from tailrace.testing import cluster, topic\n"
TEST = """
from pathlib import Path

from tailrace import Consumer, Producer


def test_orders_are_served(cluster, topic):
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"tea").result(timeout=60)
    cluster.kill(cluster.brokers[0])
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"cake").result(timeout=60)
    cluster.start(cluster.brokers[0])
    with Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        found = []
        while len(found) < 2:
            found += [record.value for record in consumer.poll(60)]
    assert sorted(found) == [b"cake", b"tea"]
    Path("folder").write_text(str(cluster._dev.folder))


def test_a_topic_is_one_tests_alone(cluster, topic):
    assert topic.startswith("test_a_topic_is_one_tests_alone-")
    other = cluster.create_topic(partitions=1)
    assert other != cluster.create_topic(partitions=1)
"""


def test_a_program_tests_itself_against_a_real_cluster(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_orders.py").write_text(TEST)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
    assert not Path((tmp_path / "folder").read_text()).exists(), "the cluster is gone"
