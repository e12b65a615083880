"""The settings of a broker and of its clients that change while it runs.

The controller tells all that there are, again and again (`UpdateSettings`); whoever acts on one
looks it up when it needs it, or asks to be told of changes. Settings that this version does not
know, or cannot read, count as not given: the controller that stored them may be a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailrace.config import ClientConfig, LiveConfig, LogConfig, live_configs
from tailrace.errors import InvalidConfig
from tailrace.meta.keys import DEFAULT_CONFIG


class LiveSettings:
    """What is in force now. `broker` and `log_defaults` are replaced as a whole, never changed."""

    def __init__(
        self, log_defaults: LogConfig | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`log_defaults`: those that the broker was started with."""
        self._log_base = log_defaults or LogConfig()
        self._say = say
        self._observers: list[Callable[[], None]] = []
        self._told: tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]] = ({}, {})
        self._clients: dict[str, ClientConfig] = {}
        self._default_client = ClientConfig()
        self.broker = LiveConfig()
        self.log_defaults = self._log_base

    def observe(self, changed: Callable[[], None]) -> None:
        """Call it after each change, until the broker ends."""
        self._observers.append(changed)

    def client(self, client_id: str) -> ClientConfig:
        """The quotas of a client: its own, where it has some, over those of all others."""
        return self._clients.get(client_id, self._default_client)

    def update(self, broker: Mapping[str, str], clients: Mapping[str, Mapping[str, str]]) -> None:
        """Take all settings that there are now; what is the same as before is no change."""
        if self._told == (broker, clients):
            return
        self._told = (broker, clients)
        readable = self._readable(broker, lambda settings: live_configs(settings, self._log_base))
        self.broker, self.log_defaults = live_configs(readable, self._log_base)
        self._default_client = self._client({}, clients.get(DEFAULT_CONFIG, {}))
        self._clients = {
            name: self._client(clients.get(DEFAULT_CONFIG, {}), clients[name])
            for name in clients
            if name != DEFAULT_CONFIG
        }
        for changed in self._observers:
            changed()

    def _client(self, base: Mapping[str, str], own: Mapping[str, str]) -> ClientConfig:
        readable = self._readable({**base, **own}, ClientConfig.from_settings)
        return ClientConfig.from_settings(readable)

    def _readable(
        self, settings: Mapping[str, str], read: Callable[[Mapping[str, str]], object]
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, text in settings.items():
            try:
                read({name: text})
            except InvalidConfig as error:
                self._say(f"not used: {error}")
            else:
                found[name] = text
        return found
