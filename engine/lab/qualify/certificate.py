"""The certificate of a draft: which scenarios it may serve, for the engine it was measured in, signed by a person.

The sidecar reads it (`sidecar/admission.py`), which has the same rule of the sum; tests/support/certificate.json is
read by the tests of both.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

VERSION = 1
#: The field that tells a certificate from other JSON; its value is the version.
MARK = "specwatch_certificate"
VALID_DAYS, MOST_DAYS = 90, 3660
_FIELDS = ("issued_at", "expires_at", "signed_off_by", "verdict", "fingerprint", "p", "limits", "scenarios", "run")
_LONGEST_NAME = 200


class CertificateError(Exception):
    """It cannot be used, or not be signed: what is wrong, and the remedy."""


def make(
    *,
    run: str,
    verdict: str,
    fingerprint: Mapping[str, Any],
    p: float | None,
    limits: Mapping[str, float],
    scenarios: Mapping[str, Mapping[str, Any]],
    now: float,
    valid_days: float = VALID_DAYS,
    signed_off_by: str | None = None,
) -> dict[str, Any]:
    """Of a run that ended at `now`, Unix time in s.

    Each of `scenarios` has certified, p, low, high, requests and why. Raises CertificateError.
    """
    if not 0 < valid_days <= MOST_DAYS:
        raise CertificateError(f"--valid-days: {valid_days:g} is not between 0 and {MOST_DAYS} days")
    issued = datetime.fromtimestamp(int(now), UTC)
    document = {
        MARK: VERSION,
        "issued_at": _time(issued),
        "expires_at": _time(issued + timedelta(days=valid_days)),
        "signed_off_by": None if signed_off_by is None else check_name(signed_off_by),
        "verdict": verdict,
        "fingerprint": dict(fingerprint),
        "p": p,
        "limits": dict(limits),
        "scenarios": {name: dict(each) for name, each in scenarios.items()},
        "run": run,
    }
    return document | {"sha256": digest(document)}


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of its UTF-8 JSON with sorted keys and no spaces, without the field `sha256`."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read(text: str | bytes) -> dict[str, Any]:
    """Raises CertificateError where it is none, or was changed since it was written."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise CertificateError("the certificate is no JSON: take the file that `specwatch qualify` wrote") from None
    if not isinstance(document, dict) or MARK not in document:
        raise CertificateError(f"{MARK}: is missing, so that this is no certificate of `specwatch qualify`")
    if document[MARK] != VERSION:
        raise CertificateError(f"{MARK}: version {document[MARK]!r} is not known, only {VERSION}: qualify anew")
    missing = [field for field in (*_FIELDS, "sha256") if field not in document]
    if missing:
        raise CertificateError(f"{missing[0]}: is missing in the certificate: qualify anew")
    try:
        same = document["sha256"] == digest(document)
    except ValueError:  # NaN, or half a pair of surrogates
        same = False
    if not same:
        raise CertificateError("sha256: the certificate was changed after it was written: qualify anew")
    return document


def sign(document: Mapping[str, Any], name: str, now: float) -> dict[str, Any]:
    """The same, signed off by `name`. It expires when it would have: what it says is as old as it was.

    Raises CertificateError where it has expired by `now`, Unix time in s.
    """
    try:
        expires = datetime.fromisoformat(document["expires_at"])
    except (TypeError, ValueError):
        raise CertificateError(f"expires_at: {document['expires_at']!r} is no time: qualify anew") from None
    if expires <= datetime.fromtimestamp(now, UTC):
        raise CertificateError(f"expires_at: the certificate expired at {document['expires_at']}: qualify anew")
    signed = {key: value for key, value in document.items() if key != "sha256"} | {"signed_off_by": check_name(name)}
    return signed | {"sha256": digest(signed)}


def text(document: Mapping[str, Any]) -> str:
    """As it is written to a file."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def check_name(name: str) -> str:
    """As it is written down. Raises CertificateError."""
    told = " ".join(name.split())
    if not told or not told.isprintable() or len(told) > _LONGEST_NAME:
        raise CertificateError(f"--sign-off: wants the name of a person, of 1 to {_LONGEST_NAME} characters")
    return told


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
