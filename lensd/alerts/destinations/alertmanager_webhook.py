"""Tells a receiver in the body that Prometheus' Alertmanager sends (webhook version 4), so that existing receivers work.

One incident is one group of one alert. Labels are what the incident is about and never change while it lasts: receivers
pair "firing" with "resolved" by them. Whatever moves stands in annotations.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from lensd.alerts.delivery import Failure, HttpRequest, Reason, SendError, shown_url
from lensd.errors import ConfigError
from lensd.records import Evidence, Incident

NOT_ENDED: Final = "0001-01-01T00:00:00Z"  # Alertmanager's "has no end yet"
MAX_LINES, MAX_LINE = 8, 500  # of evidence in an annotation


class Webhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One `[[alerts.webhooks]]`; the URL is a secret, so `url_file` may hold it instead."""

    name: str
    url: str = ""
    url_file: str = ""
    send_resolved: bool = True
    timeout_s: float = 10.0

    def __repr__(self) -> str:
        return f"Webhook({self.name!r}, {self.url_file or shown_url(self.url)})"


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str
    generator_url: str = msgspec.field(name="generatorURL")
    fingerprint: str


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    receiver: str
    status: str
    alerts: tuple[Alert, ...]
    group_labels: dict[str, str]
    common_labels: dict[str, str]
    common_annotations: dict[str, str]
    external_url: str = msgspec.field(name="externalURL")
    version: str = "4"
    group_key: str
    truncated_alerts: int = 0


class AlertmanagerWebhook:
    """A destination; checks its configuration when made, reads `url_file` anew for each request."""

    def __init__(self, config: Webhook, public_url: str) -> None:
        self.name = config.name
        self.send_resolved = config.send_resolved
        self._config = config
        self._public_url = public_url.rstrip("/")
        where = f"alerts.webhooks {config.name!r}"
        if not config.name:
            raise ConfigError("alerts.webhooks: a webhook has no name; deliveries are kept by it, give it one")
        if bool(config.url) == bool(config.url_file):
            raise ConfigError(f"{where}: give one of url and url_file")
        if config.url and shown_url(config.url) == shown_url(""):
            raise ConfigError(f"{where}: url is not one of the form http://host/... or https://host/...")
        if config.timeout_s <= 0:
            raise ConfigError(f"{where}: timeout_s is {config.timeout_s:g}; it must be more than 0")

    def render(self, incident: Incident, reason: Reason, delivery_id: str) -> HttpRequest:
        url, headers = self._address()
        return HttpRequest(
            url=url,
            body=msgspec.json.encode(make_body(incident, reason, self.name, self._public_url)),
            headers=(("Content-Type", "application/json"), ("User-Agent", "lensd"), *headers),
            timeout_s=self._config.timeout_s,
        )

    def _address(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The URL without its user, and the user as a header."""
        url = self._config.url
        if self._config.url_file:
            try:
                url = Path(self._config.url_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError):
                raise SendError(Failure.UNREACHABLE, f"url_file {self._config.url_file} cannot be read") from None
        if shown_url(url) == shown_url(""):
            raise SendError(Failure.CLIENT_ERROR, f"url_file {self._config.url_file} holds no http or https url")
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        bare = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        if not at:
            return bare, ()
        name, _, password = user.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}".encode()
        return bare, (("Authorization", "Basic " + base64.b64encode(pair).decode()),)


def make_body(incident: Incident, reason: Reason, receiver: str, public_url: str) -> Body:
    """The document for one incident; `public_url` without a closing slash."""
    status = "resolved" if reason is Reason.RESOLVED else "firing"
    labels, annotations = _labels(incident), _annotations(incident, public_url)
    ends_at = NOT_ENDED if reason is not Reason.RESOLVED else rfc3339(incident.resolved_at or incident.last_seen_at)
    alert = Alert(
        status=status,
        labels=labels,
        annotations=annotations,
        starts_at=rfc3339(incident.opened_at),
        ends_at=ends_at,
        generator_url=_incident_link(incident, public_url),
        fingerprint=fingerprint(labels),
    )
    return Body(
        receiver=receiver,
        status=status,
        alerts=(alert,),
        group_labels=labels,
        common_labels=labels,
        common_annotations=annotations,
        external_url=public_url,
        group_key=group_key(labels),
    )


def fingerprint(labels: Mapping[str, str]) -> str:
    """The 64-bit FNV-1a hash by which Alertmanager names a set of labels: sorted, each name and value closed by a byte 255."""
    value = 0xCBF29CE484222325
    for name in sorted(labels):
        for byte in name.encode() + b"\xff" + labels[name].encode() + b"\xff":
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def group_key(labels: Mapping[str, str]) -> str:
    """Identity of a group as Alertmanager writes it: the route (always the root here), then the labels."""
    inside = ", ".join(f"{name}={_quoted(labels[name])}" for name in sorted(labels))
    return "{}:{" + inside + "}"


def rfc3339(instant: int) -> str:
    """Microseconds since the epoch as Alertmanager writes an instant: UTC, no more decimals than needed."""
    seconds, micros = divmod(instant, 1_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return whole + (f".{micros:06d}".rstrip("0") if micros else "") + "Z"


def _quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()


def _labels(incident: Incident) -> dict[str, str]:
    about = {
        "alertname": incident.label,
        "severity": incident.severity.value,
        "stage": incident.stage,
        "engine": incident.engine,
        "model": incident.model,
        "gpu": incident.gpu,
        "key_id": incident.key_id,
    }
    return {name: value for name, value in about.items() if value}


def _annotations(incident: Incident, public_url: str) -> dict[str, str]:
    subject = incident.engine or incident.model or incident.gpu or incident.key_id
    annotations = {
        "summary": f"{incident.label} on {subject}" if subject else incident.label,
        "cause": incident.cause,
        "fix": incident.fix,
        "confidence": incident.confidence.value,
        "evidence": "\n".join(_line(line) for line in incident.evidence[:MAX_LINES]),
        "requests_hit": str(incident.requests_hit) if incident.requests_hit else "",
        "runbook_url": f"{public_url}/runbook/{quote(incident.label, safe='')}",
        "dashboard_url": _incident_link(incident, public_url),
        "incident_id": incident.incident_id,
    }
    return {name: value for name, value in annotations.items() if value}


def _line(evidence: Evidence) -> str:
    text = evidence.text if evidence.source is None else f"{evidence.text} ({evidence.source})"
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


def _incident_link(incident: Incident, public_url: str) -> str:
    return f"{public_url}/i/{quote(incident.incident_id, safe='')}"
