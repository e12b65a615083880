"""Settings for all tests: how hypothesis looks for examples, and the seeds to replay a failure.

TAILRACE_HYPOTHESIS picks a profile: `ci`, the default, tries the same examples each time; `fresh`
tries new ones and prints the seed that they come from.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings

# The machine may be busy with other things: slowness is the business of pytest's timeout.
_common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", _common, derandomize=True, database=None)
settings.register_profile("fresh", _common)
PROFILE = os.environ.get("TAILRACE_HYPOTHESIS", "ci")
settings.load_profile(PROFILE)

_SIMULATION_VARIABLES = ("TAILRACE_SEED", "TAILRACE_SEEDS")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Workers of xdist are handed the options of the process that started them, this seed included.
    if PROFILE == "fresh" and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


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
