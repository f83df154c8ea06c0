"""One invented study for all tests of figures."""

import pytest

from slb_autotune.analysis.result import StudyResult
from tests.report.figures.runs import invented_epochs, invented_runs
from tests.report.invented import invented_result


@pytest.fixture(scope="session")
def result() -> StudyResult:
    """Forty trials: uniform allocations, the paper's schedule, stopped and failed ones."""
    runs = invented_runs()
    return invented_result(runs, invented_epochs(runs))
