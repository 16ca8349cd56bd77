"""The proxy: builds the parts, starts and stops them."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import ssl
import sys
import time
from collections.abc import Mapping, Sequence

import uvloop

from .faults import Formatter, in_loop, install
from .record import Arm
from .recorder import AUTOREGRESSIVE, SPECULATIVE, Recorder, StartError
from .relay.server import Relay
from .relay.upstream import Choice, Upstream
from .relay.watch import Watch
from .settings import Settings, SettingsError, split_address
from .store.engine import DatabaseUrlError, check_url
from .store.upgrade import upgrade
from .tap.tap import Tap

_log = logging.getLogger(__name__)

#: How long an upstream may take to be reached for the first time before it counts as down, s.
_LOADING_S = 900.0


class Sidecar:
    """One process: the relay on `listen`, and what records its requests."""

    def __init__(self, settings: Settings) -> None:
        """Must run inside the event loop. Raises SettingsError."""
        self.settings = settings
        urls = {SPECULATIVE: settings.upstream}
        if settings.fallback_upstream is not None:
            urls[AUTOREGRESSIVE] = settings.fallback_upstream
        self._began = time.monotonic()
        self._tls = _tls(settings)
        self.recorder = recorder = Recorder(
            settings, urls, lambda: self.relay, down=self._down, starting=self._starting
        )
        self._upstreams = {
            name: Upstream(name, url, connect_timeout_s=settings.connect_timeout_s) for name, url in urls.items()
        }
        self._choices = {apart: _choices(self._upstreams, apart=apart) for apart in (True, False)}
        self.relay = Relay(
            self._choose,
            recorder.tap.watch,
            recorder.tasks.spawn,
            idle_timeout_s=settings.idle_timeout_s,
            client_timeout_s=settings.client_timeout_s,
            abort_grace_s=settings.abort_grace_s,
            hidden=frozenset() if settings.forward_scenario_header else frozenset((recorder.tap.scenario_header,)),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises StartError if a port cannot be had."""
        settings = self.settings
        host, port = split_address(settings.listen)
        try:
            self.recorder.start()
            await self.recorder.restore()
            self.recorder.start_feed()
            self.recorder.start_admin()
            try:
                port = await self.relay.start(host, port, self._tls)
            except OSError as error:
                words = error.strerror or error
                raise StartError(f"listen: {settings.listen}: {words}; free the port or change it") from None
            for upstream in self._upstreams.values():
                self.recorder.tasks.spawn(upstream.watch(), f"watch {upstream.name}")
            # What start-up made lives as long as the process: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            _log.info("proxy on %s:%d for %s, admin on %s", host, port, settings.upstream, settings.admin)
            await stop.wait()
            cut = await self.relay.drain(settings.drain_s)
            _log.info("drained; %d replies were cut", cut)
        finally:
            for upstream in self._upstreams.values():
                upstream.close_idle()
            await self.recorder.stop()

    def _choose(self, watch: Watch | None) -> Sequence[Choice]:
        tap = watch if isinstance(watch, Tap) else None
        arm = self.recorder.controller.arm(tap, self._upstreams[SPECULATIVE].in_flight + 1)
        return self._choices[self.recorder.plain_apart][arm]

    def _down(self) -> list[str]:
        return [name for name, upstream in self._upstreams.items() if upstream.down]

    def _starting(self) -> list[str]:
        """Upstreams that may still be loading their models."""
        if time.monotonic() - self._began > _LOADING_S:
            return []
        return [name for name, upstream in self._upstreams.items() if not upstream.reached]


def _choices(upstreams: Mapping[str, Upstream], *, apart: bool) -> dict[Arm, Sequence[Choice]]:
    """Where a request of each arm goes, and where it goes if that upstream cannot be reached.

    `apart`: what is not to speculate has an upstream of its own; else the same one serves it by opt-out.
    """
    plain = upstreams.get(AUTOREGRESSIVE)
    found: dict[Arm, Sequence[Choice]] = {}
    for arm in Arm:
        speculates = arm in (Arm.SPECULATIVE, Arm.PROBE)
        own = Choice(upstreams[SPECULATIVE], arm, opt_out=not (speculates or apart))
        if plain is None:
            found[arm] = (own,)
        elif speculates or not apart:
            found[arm] = (own, Choice(plain, Arm.AUTOREGRESSIVE if speculates else arm))
        else:
            found[arm] = (Choice(plain, arm), Choice(upstreams[SPECULATIVE], Arm.SPECULATIVE))
    return found


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """What clients are met with; None: plain HTTP. Raises SettingsError."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return None
    for setting, file, kind in (("tls_certificate", certificate, "CERTIFICATE"), ("tls_key", key, "PRIVATE KEY")):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{setting}: {file}: {error.strerror}") from None
        if f"{kind}-----".encode() not in content:
            raise SettingsError(f"{setting}: {file}: holds no {kind.lower()} in PEM form")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password of our own the terminal would be asked for one.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(f"tls_key: {key} is not the key of {certificate}") from None
        reason = error.reason or "the key has a password, or is no key"
        raise SettingsError(f"tls_certificate, tls_key: {certificate}, {key}: {reason}") from None
    return context


def serve(settings: Settings) -> None:
    """Run a sidecar until SIGINT or SIGTERM, then drain. Raises SettingsError or StartError."""
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[to_stderr])
    install()
    # What these tell below a warning holds rows, and heads of replies.
    for chatty in ("httpx", "httpcore", "alembic", "sqlalchemy", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # A stream takes two sockets, and the soft limit of most systems is 1024.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    # Other threads write rows and answer queries; a token must not wait 5 ms, the default, for its turn.
    sys.setswitchinterval(0.001)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(in_loop)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await Sidecar(settings).run(stop)

    uvloop.run(main())


def upgrade_database(settings: Settings) -> str | None:
    """Bring the tables to this version's; the revision that was there. Raises SettingsError or StartError."""
    try:
        check_url(settings.database_url)
        return upgrade(settings.database_url)
    except DatabaseUrlError as error:
        raise SettingsError(str(error)) from None
    except Exception as error:
        raise StartError(f"database_url: {' '.join(str(error).split())[:300]}") from None
