"""Settings for all tests: how hypothesis looks for examples, and the seeds to replay a failure.

TAILRACE_HYPOTHESIS picks a profile: `ci`, the default, tries the same examples each time; `fresh`
tries new ones and prints the seed that they come from.
"""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadGroupScheduling

# Before any test imports gRPC, which reads once what this sets.
import tailrace  # noqa: F401

# The machine may be busy with other things: slowness is the business of pytest's timeout.
_common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", _common, derandomize=True, database=None)
settings.register_profile("fresh", _common)
PROFILE = os.environ.get("TAILRACE_HYPOTHESIS", "ci")
settings.load_profile(PROFILE)

SPARK_TESTS = "integration/test_spark"
_SIMULATION_VARIABLES = ("TAILRACE_SEED", "TAILRACE_SEEDS")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # In the background of a shell or under nohup. The processes that tests start would ignore
    # them as well.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Workers of xdist are handed the options of the process that started them, this seed included.
    if PROFILE == "fresh" and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


class GroupScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types.
    """The tests of Spark go to one worker, and so share one session and one cluster.

    Marks cannot say so: xdist 3.8 writes the group of a test into its id, and pytest 9.2 does not
    let it. The process that hands out the tests knows their ids alone.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return SPARK_TESTS if SPARK_TESTS in path else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what the random choices of this run come from."""
    if PROFILE == "fresh":
        seed = config.getoption("hypothesis_seed")
        again = f"replay with TAILRACE_HYPOTHESIS=fresh and --hypothesis-seed={seed}"
    else:
        again = "the same examples each time"
    lines = [f"tailrace: hypothesis profile {PROFILE}: {again}"]
    given = [f"{name}={os.environ[name]}" for name in _SIMULATION_VARIABLES if os.environ.get(name)]
    if given:
        lines.append("tailrace: simulations with " + " ".join(given))
    return lines
