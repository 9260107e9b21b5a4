"""A judge with everything around it, for whoever tests what it makes of what came in."""

from collections.abc import Iterator

import pytest
from judged_house import House


@pytest.fixture
def house() -> Iterator[House]:
    """Without a destination for alerts; `House(url)` has one."""
    made = House()
    yield made
    made.store.close()
