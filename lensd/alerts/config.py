"""Settings of the alerts: `[alerts]` in lensd.toml."""

import msgspec

from lensd.alerts.destinations.alertmanager_webhook import Webhook


class AlertsConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    webhooks: tuple[Webhook, ...] = ()
    first_retry_s: float = 5.0
    longest_retry_s: float = 300.0
    give_up_after_s: float = 3600.0
    max_pending: int = 1000  # letters kept for one destination; what comes over it is given up, and said so
