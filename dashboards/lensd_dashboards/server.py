"""Serves the dashboard in this process: Streamlit's pages and the short links, on one port, until it is stopped."""

import contextlib
import ipaddress
import socket
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st

from lensd.errors import UsageError
from lensd_dashboards import data, links

SCRIPT = Path(__file__).with_name("entry") / "main.py"

_THEME: dict[str, object] = {
    "theme.baseRadius": "0.4rem",
    "theme.headingFontWeights": [600, 600, 600, 600, 600, 600],
    "theme.headingFontSizes": ["2rem", "1.6rem", "1.25rem", "1.15rem", "1.05rem", "1rem"],
    "theme.light.primaryColor": "#1f7a8c",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f4f6f8",
    "theme.light.textColor": "#1f2933",
    "theme.light.borderColor": "#dfe4ea",
    "theme.light.codeTextColor": "#1f2933",
    "theme.light.grayTextColor": "#66727f",
    "theme.dark.primaryColor": "#58b4c4",
    "theme.dark.backgroundColor": "#12171d",
    "theme.dark.secondaryBackgroundColor": "#1b222a",
    "theme.dark.textColor": "#e6e9ed",
    "theme.dark.borderColor": "#2f3842",
    "theme.dark.codeTextColor": "#e6e9ed",
    "theme.dark.grayTextColor": "#9aa5b1",
}
_QUIET: dict[str, object] = {
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "logger.hideWelcomeMessage": True,
    "runner.magicEnabled": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxUploadSize": 1,
    "server.showEmailPrompt": False,
}


def run(
    server_url: str = data.DEFAULT_URL,
    token: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8501,
    public_url: str = "",
    *,
    allow_remote: bool = False,
) -> None:
    """Blocks until a signal ends it. Call it from the main thread.

    The token stays in this process: neither pages nor addresses hold it. The dashboard has no login of its own, so a host that
    others reach must be asked for with `allow_remote`. Raises UsageError for such a host, a taken port or a malformed URL.
    """
    if not allow_remote and not _is_loopback(host):
        raise UsageError(
            f"dashboard host {host} can be reached by others and the dashboard has no login: "
            "listen on 127.0.0.1 behind a proxy that has one, or set allow_remote = true in [dashboard]"
        )
    _check_free(host, port)
    data.use(server_url, token)
    app = st.App(SCRIPT, routes=links.routes())
    app.run(config=settings(host, port, public_url))


def settings(host: str, port: int, public_url: str) -> dict[str, object]:
    """Streamlit's configuration: nothing is sent out, and no other host name than those known is answered."""
    where: dict[str, object] = {"server.address": host, "server.port": port}
    if _is_loopback(host):
        known = ["localhost", "127.0.0.1", "::1", host, urlsplit(public_url).hostname or ""]
        where["server.allowedHosts"] = sorted({name for name in known if name})
    return _THEME | _QUIET | where


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"dashboard cannot listen on {host}:{port} ({why}): set dashboard.listen to another port") from None
