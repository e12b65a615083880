"""What programs import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tailrace
import tailrace.aio
from tailrace.client import asynchronous, asynchronous_consumer, delivery, sync, sync_consumer
from tailrace.errors import TailraceError


def test_the_names_lead_to_the_clients() -> None:
    assert tailrace.Producer is sync.Producer
    assert tailrace.Admin is sync.Admin
    assert tailrace.RecordMetadata is delivery.RecordMetadata
    assert tailrace.TailraceError is TailraceError
    assert tailrace.aio.Producer is asynchronous.Producer
    assert tailrace.aio.Admin is asynchronous.Admin
    assert tailrace.Consumer is sync_consumer.Consumer
    assert tailrace.aio.Consumer is asynchronous_consumer.Consumer
    for name in tailrace.__all__:
        assert getattr(tailrace, name) is not None
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = tailrace.Nonsense


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, tailrace; "
        "print([each for each in ('grpc', 'pyarrow', 'asyncio') if each in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_grpc_is_told_to_leave_forks_alone_before_anything_imports_it() -> None:
    code = (
        "import os, sys, tailrace; "
        "assert 'grpc' not in sys.modules; "
        "print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "0"
