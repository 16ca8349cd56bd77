"""Which scenarios may begin with speculation: those that the certificate of `specwatch qualify` names as certified.

A certificate is of one engine: of its models' content, its k, its version, its device. It holds until its date, while
the engine is as it was; what either side does not know is not compared, and that is said. Where it does not hold,
nothing is certified. What comes of that, circuits decide: they begin without speculation, and probe.

The same rule of the sum is in `engine/lab/qualify/certificate.py`; processes share JSON.
"""

import hashlib
import json
import logging
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

_log = logging.getLogger(__name__)

VERSION = 1
MARK = "specwatch_certificate"
REMEDY = "qualify anew with `specwatch qualify`"
SIGN = "sign it with `specwatch qualify --sign-off NAME --resume DIR`"

#: Verdicts under which scenarios are certified at all.
_GOOD = ("qualified", "qualified in part")
#: Longest file that is read, bytes: some 10,000 scenarios.
_MOST_BYTES = 4_194_304
#: How long the first look at the file may keep the proxy from starting, s.
_START_S = 2.0
#: Whoever wants it to certify nothing takes the file away. That a disk cannot be read says nothing of it.
_TAKEN_AWAY = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
#: Characters of a text of the certificate's in a sentence, and differences that are told.
_LONGEST, _MOST_TOLD = 300, 3
#: What an engine is known by, in words.
FIELDS = {
    "vllm": "vLLM's version",
    "method": "the speculative method",
    "k": "the number of draft tokens a step (k)",
    "device": "the device",
    "target_digest": "the content of the target model",
    "draft_digest": "the content of the draft model",
    "target": "the target model",
    "draft": "the draft model",
}
#: Names say nothing more where contents are known, which may lie in other folders.
_CONTENT_OF = {"target": "target_digest", "draft": "draft_digest"}

#: What an engine tells, by FIELDS: a value of each of its cores that differ in it; none: not told.
Told = Mapping[str, Sequence[str | int]]


class CertificateError(Exception):
    """It cannot be used: what is wrong, and the remedy."""


class Scenario(msgspec.Struct, frozen=True):
    """Of requests of one scenario; `why` is a sentence."""

    certified: bool
    why: str = ""


class Certificate(msgspec.Struct, frozen=True):
    """As `specwatch qualify` wrote it, less what is for people alone."""

    issued_at: datetime
    expires_at: datetime
    signed_off_by: str | None
    verdict: str
    fingerprint: dict[str, str | int | None]
    scenarios: dict[str, Scenario]
    run: str
    sha256: str


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of its UTF-8 JSON with sorted keys and no spaces, without the field `sha256`.

    Raises ValueError where it holds NaN, or half a pair of surrogates.
    """
    rest = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read(content: bytes) -> Certificate:
    """Raises CertificateError where it is none, was changed since it was written, or nobody has signed it."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise CertificateError("is no JSON: name the certificate that `specwatch qualify` wrote") from None
    if not isinstance(document, dict) or MARK not in document:
        raise CertificateError(f"has no {MARK}: name the certificate that `specwatch qualify` wrote")
    if document[MARK] != VERSION or isinstance(document[MARK], bool):
        raise CertificateError(f"is of version {_short(repr(document[MARK]))}, and only {VERSION} is known: {REMEDY}")
    try:
        same = document.get("sha256") == digest(document)
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise CertificateError(f"sha256: was changed after it was written: {REMEDY}")
    try:
        found = msgspec.convert(document, Certificate)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CertificateError(f"{error}: {REMEDY}") from None
    for name in ("issued_at", "expires_at"):
        at: datetime = getattr(found, name)
        if at.tzinfo is None:
            raise CertificateError(f"{name}: has no time zone: {REMEDY}")
        try:
            at.astimezone(UTC)
        except OverflowError:
            raise CertificateError(f"{name}: is beyond all years: {REMEDY}") from None
    if not (found.signed_off_by or "").strip():
        raise CertificateError(f"nobody has signed it off: {SIGN}")
    return found


class Validity(StrEnum):
    """How a certificate stands to what runs now."""

    VALID = "valid"
    #: The engine has not told yet what it is; until then it is taken to be as it was.
    PENDING = "pending"
    UNUSABLE = "unusable"
    EXPIRED = "expired"
    OTHER_ENGINE = "other_engine"


@dataclass(frozen=True, slots=True)
class Standing:
    """How things are at a moment. `words` are a sentence, with the remedy where it does not hold."""

    validity: Validity
    words: str
    certificate: Certificate | None = None
    #: Of FIELDS, those that only one side knows, or none.
    not_compared: tuple[str, ...] = ()
    #: What the engine is, in short; None: not told.
    engine: str | None = None

    @property
    def holds(self) -> bool:
        return self.validity in (Validity.VALID, Validity.PENDING)

    @property
    def of(self) -> tuple[str, str]:
        """Alike as long as the same is certified, for the same reason."""
        return self.validity.value, self.words if self.certificate is None else self.certificate.sha256

    def refusal(self, scenario: str) -> str | None:
        """Why requests of that scenario are not to begin with speculation; None: they may."""
        certificate = self.certificate
        if certificate is None or not self.holds:
            return f"not certified: {self.words}"
        if certificate.verdict not in _GOOD:
            return f"not certified: the verdict of {_short(certificate.run)} is {_short(certificate.verdict)}: {REMEDY}"
        found = certificate.scenarios.get(scenario)
        if found is None:
            run = _short(certificate.run)
            return f"not certified: the certificate of {run} does not name this scenario: qualify with prompts of it"
        if found.certified:
            return None
        return f"not certified by {_short(certificate.run)}: {_short(found.why) or 'it gives no reason'}"

    def certified(self) -> list[str]:
        """Scenarios that may begin with speculation."""
        named = () if self.certificate is None else self.certificate.scenarios
        return [name for name in named if self.refusal(name) is None]


def standing(certificate: Certificate | CertificateError, told: Told | None, now: float) -> Standing:
    """`told` by the engine, None: it was not asked yet; `now` is Unix time in seconds."""
    if isinstance(certificate, CertificateError):
        return Standing(Validity.UNUSABLE, f"the certificate cannot be used: {certificate}", engine=_engine(told))
    seen = f"the certificate of {_short(certificate.run)}, signed off by {_short(certificate.signed_off_by or '')},"
    if certificate.expires_at.timestamp() <= now:
        words = f"{seen} expired on {_day(certificate.expires_at)}: {REMEDY}"
        return Standing(Validity.EXPIRED, words, certificate, engine=_engine(told))
    other, unknown = compare(certificate.fingerprint, told or {})
    if other:
        more = f"; and {len(other) - _MOST_TOLD} more" if len(other) > _MOST_TOLD else ""
        words = f"{seen} is of another engine: {'; '.join(other[:_MOST_TOLD])}{more}: {REMEDY}"
        return Standing(Validity.OTHER_ENGINE, words, certificate, unknown, _engine(told))
    good = sum(each.certified for each in certificate.scenarios.values()) if certificate.verdict in _GOOD else 0
    words = f"{seen} certifies {good} of {len(certificate.scenarios)} scenarios until {_day(certificate.expires_at)}"
    if told is None:
        return Standing(Validity.PENDING, f"{words}; the engine has not told yet what it is", certificate)
    if unknown:
        words += f"; not compared, as it is not known of both: {', '.join(FIELDS[each] for each in unknown)}"
    return Standing(Validity.VALID, words, certificate, unknown, _engine(told))


class Compared(NamedTuple):
    """Sentences of what differs, and which of FIELDS could not be compared."""

    other: list[str]
    unknown: tuple[str, ...]


def compare(certified: Mapping[str, str | int | None], told: Told) -> Compared:
    """An engine with that of a certificate, field by field."""
    other: list[str] = []
    unknown: list[str] = []
    for field, words in FIELDS.items():
        content = _CONTENT_OF.get(field, field)
        if content != field and certified.get(content) is not None and told.get(content):
            continue
        was, values = certified.get(field), told.get(field, ())
        if was is None and not values and field in ("draft", "draft_digest"):
            continue  # it drafts without a model
        if was is None or not values:
            unknown.append(field)
        elif any(_plain(field, value) != _plain(field, was) for value in values):
            now = " and ".join(str(value) for value in values)
            other.append(f"{words} is {_short(now)}, and was {_short(str(was))}")
    return Compared(other, tuple(unknown))


def _plain(field: str, value: str | int) -> str:
    # A model is in another folder on another machine.
    return PurePath(str(value)).name if field in _CONTENT_OF else str(value)


def _engine(told: Told | None) -> str | None:
    """What it is, alike as long as all is alike that it tells."""
    named = {field: " and ".join(map(str, values)) for field, values in (told or {}).items() if values}
    kept = [
        f"{field} {value}"
        for field, value in named.items()
        if field not in _CONTENT_OF or _CONTENT_OF[field] not in named
    ]
    return ", ".join(kept) or None


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d}"


def _short(text: str) -> str:
    """Some of a text that is a file's: one line without control characters."""
    plain = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"


class Admission:
    """The file, read again where it was changed. `look` may be called on another thread, `standing` costs little."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._seen: tuple[int, ...] | None = None
        self._found: Certificate | CertificateError = CertificateError(f"{file}: was not read yet")
        self._complaint = ""
        # A disk that does not answer must not keep the proxy from starting.
        first = threading.Thread(target=self.look, name="specwatch-certificate", daemon=True)
        first.start()
        first.join(_START_S)

    def look(self) -> None:
        """Read it if it is another than it was. Never raises. Blocks as long as its disk does."""
        try:
            self._look()
            self._complaint = ""
        except OSError as error:
            self._seen = None
            words = f"{self.file}: {error.strerror or error}: {REMEDY}"
            if isinstance(self._found, CertificateError) or isinstance(error, _TAKEN_AWAY):
                self._found = CertificateError(words)
            elif words != self._complaint:
                _log.warning("the certificate cannot be read, and holds as it was read before: %s", words)
                self._complaint = words
        except CertificateError as error:
            self._found = CertificateError(f"{self.file}: {error}")

    def _look(self) -> None:
        about = self.file.stat()
        seen = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
        if seen == self._seen:
            return
        self._seen = seen
        if about.st_size > _MOST_BYTES:
            raise CertificateError(f"has {about.st_size} bytes, which no certificate has")
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            # Of a pipe or a device nothing may ever come, or no end.
            raise CertificateError("is no file")
        self._found = read(self.file.read_bytes())

    def standing(self, told: Told | None, now: float) -> Standing:
        return standing(self._found, told, now)
