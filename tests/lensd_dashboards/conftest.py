"""A daemon with canned documents, and pages that read from it through the real client."""

from collections.abc import Callable, Iterator
from pathlib import Path

import fake_api
import lensd_dashboards
import pytest
from lensd_dashboards import data, links
from streamlit.testing.v1 import AppTest

ENTRY = Path(lensd_dashboards.__file__ or "").parent / "entry" / "main.py"

Open = Callable[..., AppTest]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_api.FakeApi]:
    with fake_api.running(token="s3cret-token") as server:
        monkeypatch.setattr(data, "_client", data._client)  # put back afterwards
        data.use(server.url, "s3cret-token")
        yield server


@pytest.fixture
def open_page(api: fake_api.FakeApi) -> Open:
    """`open_page("request", id=...)`: the page as the whole app shows it, after its first run."""

    def opened(page: str, **query: str) -> AppTest:
        app = AppTest.from_file(str(ENTRY), default_timeout=20)
        app.switch_page(links.page_file(page))
        for name, value in query.items():
            app.query_params[name] = value
        return app.run()

    return opened
