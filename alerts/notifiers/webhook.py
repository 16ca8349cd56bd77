"""Alertmanager's webhook: one POST for each notification."""

from ..config import Webhook
from ..message import Notification, webhook_bytes
from .http import Http


class WebhookNotifier:
    def __init__(self, config: Webhook) -> None:
        self._http = Http(config.url, config.timeout_s, config.headers, config.token)

    async def send(self, notification: Notification) -> None:
        await self._http.send("POST", body=webhook_bytes(notification))

    async def close(self) -> None:
        await self._http.close()
