"""An incident's post-mortem by API, client, reader without a daemon and `lensd incidents show`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from judged_house import House
from night_story import AFTER, BEFORE, NIGHT, PROMPT, Told, whole
from seeded import TOKEN, served

from lensd.api.client import Client
from lensd.api.local import LocalReader
from lensd.cli.main import run
from lensd.config import Config
from lensd.errors import EvidenceError, IncidentNotFoundError


class Place(NamedTuple):
    url: str
    house: House
    incident: str
    config: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The night, stored; its daemon's API."""
    house, folder = House(), tmp_path_factory.mktemp("night")
    told = Told(house)
    told.log(whole())
    told.caller()
    house.tick(NIGHT + 15)
    [incident] = house.judge.all()
    (folder / "token").write_text(TOKEN)
    (folder / "lensd.toml").write_text(f'[serve]\ntoken_file = "{folder / "token"}"\n')
    with served(house.store) as url:
        yield Place(url, house, incident.incident_id, folder / "lensd.toml")


def test_by_the_api(place: Place) -> None:
    found = Client(place.url, TOKEN).post_mortem(place.incident)
    assert (found.engine, found.phase) == ("e0", "spike")
    assert "CUDA out of memory" in (found.said.quote or "")
    assert found.trigger is not None
    assert found.trigger.request_id == "r7"
    assert [(one.name, one.was, one.value) for one in found.changes] == [("max_model_len", str(BEFORE), str(AFTER))]


def test_a_reader_without_a_daemon_gives_the_same(place: Place) -> None:
    assert LocalReader(place.house.store, Config()).post_mortem(place.incident) == Client(place.url, TOKEN).post_mortem(place.incident)


def test_no_such_incident(place: Place) -> None:
    with pytest.raises(IncidentNotFoundError):
        Client(place.url, TOKEN).post_mortem("inc-none")


def test_an_incident_of_another_kind_says_that_it_has_none() -> None:
    with served() as url:
        client = Client(url, TOKEN)
        [incident] = [one for one in client.incidents() if one.label == "engine-crash"]
        with pytest.raises(EvidenceError, match="no memory ran out"):
            client.post_mortem(incident.incident_id)


def test_incidents_show_has_it(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    shown = ["incidents", "show", place.incident, "--server", place.url, "--config", str(place.config)]
    assert run(shown) == 0
    text = capsys.readouterr().out
    assert "\nout of memory\n" in text
    assert f"in flight: r7 ({PROMPT} prompt tokens" in text
    assert run([*shown, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["post_mortem"]["phase"] == "spike"
