"""Settings that are valid, and not wise here."""

from collections.abc import Iterator

from ...settings import Settings, split_address
from ..facts import Facts
from ..findings import Check, Result, fine, note, warning
from ..looks.servers import LOOPBACK

#: Characters of a token that cannot be guessed; `openssl rand -hex 32` gives 64.
_LONG = 16
#: Certificates that end within so many days.
_SOON_DAYS = 14.0


def access(facts: Facts) -> Iterator[Result]:
    """Who may reach and order what."""
    settings, said = facts.settings, False
    if split_address(settings.admin)[0] not in LOOPBACK - {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        short = [name for name in ("admin_token", "admin_read_token") if _is_short(settings, name)]
        if short:
            said = True
            yield warning(
                "token-short",
                f"{' and '.join(short)} can be guessed, and admin is not on loopback",
                f"admin is {settings.admin}; {_LONG} characters are the least",
                cause="short tokens can be tried out",
                remedy="openssl rand -hex 32",
            )
        if settings.admin_token is None:
            said = True
            yield note(
                "no-control-token",
                "admin is not on loopback, and only admin_read_token is set: nobody may order anything",
                remedy="set admin_token, to switch and cap",
            )
    if split_address(settings.listen)[0] not in ("127.0.0.1", "::1", "localhost") and settings.tls_certificate is None:
        said = True
        yield note(
            "listen-open",
            f"clients reach {settings.listen} without TLS",
            remedy="set tls_certificate and tls_key, where nothing before the sidecar speaks TLS",
        )
    if not said:
        yield fine("access", "ports off loopback are guarded, or there are none")


def _is_short(settings: Settings, name: str) -> bool:
    token = getattr(settings, name)
    return token is not None and len(token.get_secret_value()) < _LONG


def certificates(facts: Facts) -> Iterator[Result]:
    """Of TLS, and of qualification."""
    for each in facts.certificates:
        days = None if each.expires is None else (each.expires - facts.now) / 86_400
        of_tls = each.what == "tls_certificate"
        renew = "renew it, and restart the sidecar" if of_tls else "specwatch qualify, and sign it off"
        command = f"openssl x509 -noout -dates -in {each.path}" if of_tls else f"cat {each.path}"
        if each.problem is not None:
            yield warning(
                "certificate-unread",
                f"{each.what}: {each.path} does not count",
                each.problem,
                cause="the path is wrong, or the file is of another kind",
                remedy=renew,
                command=command,
            )
        elif days is not None and days < 0:
            yield warning(
                "certificate-expired",
                f"{each.what}: {each.path} ended {-days:.0f} days ago",
                cause="it was not renewed" if of_tls else "a qualification holds for 90 days",
                remedy=renew,
                command=command,
            )
        elif days is not None and days < _SOON_DAYS:
            yield warning(
                "certificate-ends",
                f"{each.what}: {each.path} ends in {days:.0f} days",
                cause="it was not renewed yet",
                remedy=renew,
                command=command,
            )
        else:
            yield fine("certificates", f"{each.what} is valid" + (f" for {days:.0f} days" if days is not None else ""))
    if not facts.certificates:
        yield fine("certificates", "no certificate is set")


def baseline(facts: Facts) -> Iterator[Result]:
    if not facts.settings.baseline_share:
        yield note(
            "no-baseline",
            "baseline_share is 0: nothing is served without speculation to compare with",
            remedy="baseline_share: 0.02 tells whether speculation is faster",
        )
    else:
        yield fine(
            "baseline", f"{facts.settings.baseline_share:.0%} of the requests are served without speculation to compare"
        )


def notifications(facts: Facts) -> Iterator[Result]:
    if facts.settings.alerts is None:
        yield note(
            "nobody-notified",
            "no receivers are set: nobody is notified of alerts",
            remedy="set alerts to a file that names receivers, or have Prometheus notify",
        )
    else:
        yield fine("notifications", f"receivers are in {facts.settings.alerts}")


CHECKS = (
    Check("access", access),
    Check("certificates", certificates),
    Check("baseline", baseline),
    Check("notifications", notifications),
)
