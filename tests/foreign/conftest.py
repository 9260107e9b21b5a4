"""What the tests of foreign senders share: the daemon's process, and one run of everything that is sent to it."""

import pytest
from checkout import ROOT, load_by_path

load_by_path("daemon_process", ROOT / "tests" / "lensd" / "daemon_process.py")

from everything_sent import Run, run_all  # noqa: E402


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every sender's bodies, sent to a real daemon in every encoding, and all that it then holds and says."""
    return run_all(tmp_path_factory.mktemp("foreign"))
