"""What is known of a log besides its own files."""

from tailrace.log.checkpoints import CleanPartition
from tailrace.log.facts import NO_FACTS, LogFacts, known_start
from tailrace.model import RETENTION, LogStartCause, Offset


def test_f43_l3_the_highest_log_start_that_any_file_knows_counts() -> None:
    clean = CleanPartition(Offset(7), Offset(20), Offset(10), 100)
    caused = LogFacts(start_cause=LogStartCause(RETENTION, 3, 9))

    assert known_start(0, None, NO_FACTS) == 0
    assert known_start(5, None, NO_FACTS) == 5
    assert known_start(5, clean, NO_FACTS) == 7
    assert known_start(5, clean, caused) == 9
    assert known_start(12, clean, caused) == 12
