"""A bundle comes over the API, from the folder alone and through the verb, and triage judges it as the daemon does."""

import pytest
from seeded import TOKEN, fill_folder, served

from lensd.api.client import Client
from lensd.api.local import LocalReader
from lensd.cli.main import run
from lensd.config import Config
from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.errors import IncidentNotFoundError, RequestNotFoundError
from lensd.timeline.limits import Limits

BOOKS = load()


def triaged(tmp_path, packed):
    (tmp_path / "b.zip").write_bytes(packed)
    return triage([tmp_path / "b.zip"], BOOKS, {}, Limits())


def test_the_daemon_gives_a_request_and_an_incident(tmp_path):
    with served() as url:
        daemon = Client(url, TOKEN)
        packed, incident = daemon.request_bundle("wrong-key-1"), daemon.incident_bundle("inc-000000000002")
        live = daemon.diagnosis("wrong-key-1")
        with pytest.raises(RequestNotFoundError):
            daemon.request_bundle("nobody")
        with pytest.raises(IncidentNotFoundError):
            daemon.incident_bundle("inc-none")
    found = triaged(tmp_path, packed)
    assert (found.verdict, found.subject, found.timeline) == (live.verdict, live.subject, live.timeline)
    assert found.verdict.label == "auth-wrong-key"
    assert triaged(tmp_path, incident).verdict.label == "engine-crash"


def test_an_id_with_a_slash_has_a_bundle_too():
    with served() as url:
        assert Client(url, TOKEN).request_bundle("svc/7")[:2] == b"PK"


def test_the_folder_gives_the_same(tmp_path):
    fill_folder(tmp_path / "store")
    reader = LocalReader.open(tmp_path / "store", Config())
    try:
        live = reader.diagnosis("wrong-key-1")
        packed, incident = reader.request_bundle("wrong-key-1"), reader.incident_bundle("inc-000000000002")
    finally:
        reader.shut()
    assert triaged(tmp_path, packed).verdict == live.verdict
    assert triaged(tmp_path, incident).verdict.label == "engine-crash"


def test_the_verb_writes_a_file_that_triage_takes(tmp_path, monkeypatch, capsys):
    fill_folder(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    assert run(["bundle", "wrong-key-1", "--store", "store"]) == 0
    assert capsys.readouterr().out == "lensd-wrong-key-1.zip\n"
    assert run(["triage", "lensd-wrong-key-1.zip", "-q"]) == 3
    assert capsys.readouterr().out == "auth-wrong-key\n"
    assert run(["bundle", "inc-000000000002", "--store", "store", "-o", "i.zip"]) == 0
    assert run(["triage", "i.zip", "-q"]) == 3
    assert capsys.readouterr().out == "i.zip\nengine-crash\n"
    assert run(["bundle", "svc/7", "--store", "store"]) == 0
    assert capsys.readouterr().out == "lensd-svc-7.zip\n"
    assert run(["bundle", "nobody", "--store", "store"]) == 4
    assert run(["bundle", "ok-1", "--store", "store", "-o", "none/b.zip"]) == 2
    assert "cannot write none/b.zip: No such file or directory" in capsys.readouterr().err
