"""Files of models, of engines' configuration, and certificates."""

import json
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...admission import Admission
from ...probes.tokenizer_check.compare import compare
from ...probes.tokenizer_check.files import read_model
from ...probes.vocabulary import NoVocabulary
from ...settings import Settings
from ..facts import CertificateFacts, EngineFacts, PairFacts, Unseen
from .limits import of_process

_DESCRIBE_S = 10.0


async def describe(file: Path) -> dict[str, Any] | Unseen:
    """What the launcher says of an engine's file; nothing is started."""
    command = (sys.executable, "-m", "specwatch_engine.launch", "-c", str(file), "--describe")
    try:
        status, out, err = await of_process(_DESCRIBE_S, *command)
    except TimeoutError:
        return Unseen(f"the launcher did not describe it in {_DESCRIBE_S:g} s", "slow")
    if status:
        words = err.decode("utf-8", "replace").strip()
        return Unseen(words[-1000:] or f"exit status {status}", "wrong" if status == 2 else "failed")
    try:
        found = json.loads(out)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else Unseen("the launcher described it in no JSON", "failed")


def pair_names(
    settings: Settings, engine: EngineFacts | None, described: Mapping[str, Any], live: Mapping[str, Any]
) -> tuple[str, str] | Unseen:
    """Target and draft, by settings, the engine's own words, its file, or what its events told (`live`)."""
    cores = engine.cores if engine is not None and not isinstance(engine.cores, Unseen) else []
    method = next((core.method for core in cores if core.method), described.get("method"))
    if method not in (None, "draft_model"):
        return Unseen(f"the method {method} has no draft model with ids of its own", "no_draft")
    root = engine.server.root if engine is not None else None
    served = next((core.target_model for core in cores if core.target_model), root)
    target = settings.target_tokenizer or live.get("target_model") or served or described.get("target_model")
    drafting = next((core.draft_model for core in cores if core.draft_model), None)
    draft = settings.draft_tokenizer or live.get("draft_model") or drafting or described.get("draft_model")
    if target is None or draft is None:
        lacks = " and ".join(name for name, value in (("target", target), ("draft", draft)) if value is None)
        return Unseen(
            f"the {lacks} model is not named by the engine, its events or the setting engine: set target_tokenizer and "
            "draft_tokenizer",
            "unnamed",
        )
    return str(target), str(draft)


def pair(names: tuple[str, str]) -> PairFacts | Unseen:
    """Blocks, for a second or two with large vocabularies."""
    target, draft = names
    try:
        return PairFacts(target, draft, compare(read_model(target), read_model(draft)))
    except NoVocabulary as error:
        return Unseen(str(error), "unread")


def certificates(settings: Settings) -> list[CertificateFacts]:
    """The chain that clients are met with, and the qualification that scenarios are served by, where they are set."""
    found = []
    if settings.tls_certificate is not None:
        found.append(_x509("tls_certificate", settings.tls_certificate))
    if settings.certificate is not None:
        found.append(_qualification(settings.certificate))
    return found


def _x509(what: str, path: Path) -> CertificateFacts:
    try:
        # Of the standard library, only this undocumented reader tells the dates of a file without a connection; its
        # answer has the form of `ssl.SSLSocket.getpeercert`.
        told = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        return CertificateFacts(what, path, float(ssl.cert_time_to_seconds(told["notAfter"])))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return CertificateFacts(what, path, None, f"it cannot be read: {error}")


def _qualification(path: Path) -> CertificateFacts:
    # At the beginning of time none has expired.
    found = Admission(path).standing(None, 0.0)
    if found.certificate is None:
        return CertificateFacts("certificate", path, None, found.words)
    return CertificateFacts("certificate", path, found.certificate.expires_at.timestamp())
