"""The durability tests borrow the daemon's process and the rows of the store's tests, and run in a short and in a long form."""

import os

import pytest
from checkout import ROOT, load_by_path

for name in ("daemon_process", "store/store_rows", "store/killed", "store/faulty_disk"):
    load_by_path(name.rpartition("/")[2], ROOT / "tests" / "lensd" / f"{name}.py")

LONG_KILLS = 300  # from here on it is the long form


@pytest.fixture(scope="session")
def kills() -> int:
    """How many kills of a writer: LENSD_KILLS, which `make test-durability` sets, else a few."""
    return int(os.environ.get("LENSD_KILLS", "5"))


@pytest.fixture(scope="session")
def is_long(kills: int) -> bool:
    return kills >= LONG_KILLS


@pytest.fixture
def long_only(is_long: bool) -> None:
    if not is_long:
        pytest.skip("takes long: make test-durability")
