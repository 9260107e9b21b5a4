import pytest
from story import Story


@pytest.fixture
def story():
    return Story()
