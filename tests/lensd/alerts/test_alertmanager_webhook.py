import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lensd.alerts.delivery import Reason, SendError
from lensd.alerts.destinations.alertmanager_webhook import (
    MAX_LINE,
    AlertmanagerWebhook,
    Webhook,
    fingerprint,
    group_key,
    make_body,
    rfc3339,
)
from lensd.errors import ConfigError
from lensd.records import Confidence, Evidence, Incident, Severity

CAPTURES = Path(__file__).parents[2] / "captures" / "alertmanager"
BODIES = [json.loads(line)["body"] for path in sorted(CAPTURES.glob("*.jsonl")) for line in path.read_text().splitlines()]
PUBLIC = "https://lensd.example"
INCIDENT = Incident(
    incident_id="inc-1",
    revision=3,
    label="engine-crash",
    state="resolved",
    severity=Severity.CRITICAL,
    stage="engine",
    engine="gpu-3:8000",
    confidence=Confidence.CERTAIN,
    cause="the engine process ended by signal 9",
    fix="restart it",
    opened_at=1_795_964_130_216_355,
    last_seen_at=1_795_964_190_000_000,
    resolved_at=1_795_964_200_000_000,
    requests_hit=2,
    evidence=(Evidence(text="process 7 ended", source="log:h/engine"), Evidence(text="x" * 2000)),
)


def body(reason: Reason, **changes: Any) -> Any:
    made = make_body(msgspec.structs.replace(INCIDENT, **changes), reason, "ops", PUBLIC)
    return json.loads(msgspec.json.encode(made))


def shape(value: Any) -> Any:
    """Keys and kinds; the free ones (labels, annotations) as kinds alone."""
    if isinstance(value, dict):
        free = {"labels", "annotations", "groupLabels", "commonLabels", "commonAnnotations"}
        return {
            key: "strings" if key in free and all(isinstance(v, str) for v in inner.values()) else shape(inner)
            for key, inner in value.items()
        }
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("real", BODIES)
def test_body_has_the_shape_of_a_real_one(real: Any) -> None:
    assert shape(body(Reason(real["status"].replace("firing", "opened")))) == shape(real)


@pytest.mark.parametrize("real", BODIES)
def test_fingerprint_and_group_key_are_alertmanagers(real: Any) -> None:
    assert fingerprint(real["alerts"][0]["labels"]) == real["alerts"][0]["fingerprint"]
    assert group_key(real["groupLabels"]) == real["groupKey"]


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (1_795_964_130_216_355, "2026-11-29T14:55:30.216355Z"),
        (1_795_964_130_632_000, "2026-11-29T14:55:30.632Z"),
        (0, "1970-01-01T00:00:00Z"),
    ],
)
def test_instants_read_as_alertmanagers(instant: int, text: str) -> None:
    assert rfc3339(instant) == text


def test_firing_and_resolved_are_the_same_alert() -> None:
    firing = body(Reason.OPENED, state="open", revision=1, resolved_at=None, requests_hit=0, evidence=(), cause="other words")
    resolved = body(Reason.RESOLVED)
    for name in ("groupKey", "groupLabels", "commonLabels", "receiver"):
        assert firing[name] == resolved[name]
    for name in ("fingerprint", "startsAt", "labels", "generatorURL"):
        assert firing["alerts"][0][name] == resolved["alerts"][0][name]
    assert (firing["status"], firing["alerts"][0]["endsAt"]) == ("firing", "0001-01-01T00:00:00Z")
    assert (resolved["status"], resolved["alerts"][0]["endsAt"]) == ("resolved", "2026-11-29T14:56:40Z")


def test_what_is_said() -> None:
    alert = body(Reason.OPENED)["alerts"][0]
    assert alert["labels"] == {"alertname": "engine-crash", "severity": "critical", "stage": "engine", "engine": "gpu-3:8000"}
    said = alert["annotations"]
    assert said["summary"] == "engine-crash on gpu-3:8000"
    assert said["cause"] == "the engine process ended by signal 9"
    assert said["fix"] == "restart it"
    assert said["runbook_url"] == f"{PUBLIC}/runbook/engine-crash"
    assert said["dashboard_url"] == alert["generatorURL"] == f"{PUBLIC}/i/inc-1"
    first, second = said["evidence"].splitlines()
    assert first == "process 7 ended (log:h/engine)"
    assert len(second) == MAX_LINE


def test_two_subjects_are_two_groups() -> None:
    assert body(Reason.OPENED)["groupKey"] != body(Reason.OPENED, engine="gpu-4:8000")["groupKey"]


def test_user_in_the_url_becomes_a_header(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("https://me:p%40ss@hooks.example:8443/a?b=c\n")
    request = AlertmanagerWebhook(Webhook(name="ops", url_file=str(file)), PUBLIC).render(INCIDENT, Reason.OPENED, "d")
    assert request.url == "https://hooks.example:8443/a?b=c"
    assert dict(request.headers)["Authorization"] == "Basic bWU6cEBzcw=="
    assert dict(request.headers)["Content-Type"] == "application/json"


def test_url_file_that_is_gone_is_a_failure_to_retry(tmp_path: Path) -> None:
    destination = AlertmanagerWebhook(Webhook(name="ops", url_file=str(tmp_path / "none")), PUBLIC)
    with pytest.raises(SendError, match="cannot be read"):
        destination.render(INCIDENT, Reason.OPENED, "d")


@pytest.mark.parametrize(
    "config",
    [
        Webhook(name="ops"),
        Webhook(name="ops", url="https://h/x", url_file="f"),
        Webhook(name="", url="https://h/x"),
        Webhook(name="ops", url="hooks.example/secret-path"),
        Webhook(name="ops", url="ftp://h/secret-path"),
        Webhook(name="ops", url="https://[::1/secret-path"),
        Webhook(name="ops", url="https://h/secret-path", timeout_s=0),
    ],
)
def test_configuration_that_cannot_work_is_refused_without_its_secret(config: Webhook) -> None:
    with pytest.raises(ConfigError) as caught:
        AlertmanagerWebhook(config, PUBLIC)
    assert "secret-path" not in str(caught.value) + repr(config)
