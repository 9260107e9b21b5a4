"""Every configured destination, made and checked: the one list that a new kind of destination joins."""

from lensd.alerts.config import AlertsConfig
from lensd.alerts.delivery import Destination
from lensd.alerts.destinations.alertmanager_webhook import AlertmanagerWebhook
from lensd.errors import ConfigError


def make_destinations(config: AlertsConfig, public_url: str) -> tuple[Destination, ...]:
    """Every configured destination, checked.

    Raises ConfigError for a name used twice or a URL that cannot work; the message never shows more than the URL's host.
    """
    made: list[Destination] = [AlertmanagerWebhook(webhook, public_url) for webhook in config.webhooks]
    names = [destination.name for destination in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"alerts: two destinations are named {name!r}; deliveries are kept by name, give each its own")
    return tuple(made)
