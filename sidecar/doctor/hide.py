"""What is taken out of all that the doctor shows (`Shown`), and of what it hands on to others (`HandedOn`)."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import SecretStr

from ..settings import Settings
from ..texts.redaction import Redactor
from ..versions import HIDDEN

#: Shorter values would be found in other words.
_LEAST = 4
_CREDENTIALS = re.compile(r"(://)[^\s/@]{1,400}@")
_BEARER = re.compile(r"(?i)(bearer\s+)\S{4,}")
#: A target's query may have a token in it; of paths in access logs nothing is lost without.
_QUERY = re.compile(r"(?<=[\w/])\?[^\s\"']+")

#: How lines of logs begin: those of vLLM, uvicorn, this sidecar and the launcher, and of torch.
_LINE = re.compile(
    r"(?:\(\w[\w -]* pid=\d+\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::| \d\d-\d\d )"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ "
    r"|engine: |engine ready |Specwatch: |specwatch: |[IWEF]\d{4} \d\d:\d\d:\d\d|\[[WE]\d+ "
)
#: Of a traceback: its head, a place, a line of source below a place, an exception.
_HEAD = re.compile(
    r"(?:\(\w[\w -]* pid=\d+\) (?:ERROR [^\]]*\] )?)?(?:Traceback \(most recent call last\):| +File \".*\", line \d+)"
)
_RAISED = re.compile(r"((?:\(\w[\w -]* pid=\d+\) )?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)): ?(.*)")
#: Where a line begins to quote a request or a reply: vLLM with --enable-log-requests, and validation errors.
_QUOTES = re.compile(
    r"(?i)(received request|generated response|\b(?:prompts?|messages?|content|texts?|inputs?|input_value|outputs?|"
    r"completion|reply|response|delta|body|arguments)\b['\"]?\s*[:=]\s*)"
)
#: Quoted words; a single one, as a path or a name, may stay. Nothing is tried twice: lines may have megabytes.
_QUOTED = re.compile(r"'[^'\s]*+\s[^'\n]*+'|\"[^\"\s]*+\s[^\"\n]*+\"")
#: A mark that may begin or end a quotation; within a word it is an apostrophe.
_MARK = re.compile(r"(?<!\w)'|'(?!\w)|\"")
#: Quoted like this, a request line is no text.
_REQUEST_LINE = re.compile(r"\"(?:GET|POST|PUT|HEAD|OPTIONS|DELETE|PATCH) \S+ HTTP/[\d.]+\"")


def secrets_of(settings: Settings) -> list[str]:
    """Values that the settings keep secret, the longest first: tokens, and the passwords of the database."""
    found = [
        value.get_secret_value()
        for name in Settings.model_fields
        if isinstance(value := getattr(settings, name), SecretStr)
    ]
    found += _passwords(settings.database_url)
    return sorted({each for each in found if len(each) >= _LEAST}, key=len, reverse=True)


def _passwords(url: str) -> Iterator[str]:
    """As they stand in the URL, and as drivers have them. A user's name alone is none, and is often the product's."""
    who = re.search(r"://([^/?#\s]*)@", url)
    if who is not None and ":" in who[1]:
        password = who[1].partition(":")[2]
        yield from (who[1], password, unquote(password))
    try:
        options = parse_qsl(urlsplit(url).query)
    except ValueError:
        return
    for name, value in options:
        if "password" in name.lower():
            yield value
            # The same without its escapes taken out.
            yield from (part.partition("=")[2] for part in url.split("?", 1)[1].split("&") if part.startswith(name))


class Shown:
    """For the person at this machine: without secrets; addresses stay."""

    def __init__(self, settings: Settings) -> None:
        self._secrets = secrets_of(settings)
        self._own = [re.compile(pattern) for pattern in settings.redact]

    def __call__(self, text: str) -> str:
        for each in self._secrets:
            text = text.replace(each, HIDDEN)
        for pattern in self._own:
            text = pattern.sub("[redacted]", text)
        return _BEARER.sub(rf"\1{HIDDEN}", _CREDENTIALS.sub(rf"\1{HIDDEN}@", text))


class HandedOn:
    """For others: without what is private by its shape as well, and of logs without all that may quote a request."""

    def __init__(self, settings: Settings) -> None:
        self._shown = Shown(settings)
        self._private = Redactor()

    def __call__(self, text: str) -> str:
        return self._private(self._shown(text))

    def log(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines of known form; what else a log holds may be a prompt of several lines, and is only counted."""
        left, source = 0, False
        for line in lines:
            told, source = _told(line, source)
            if told is None:
                left += 1
                continue
            if left:
                yield f"[{left} lines left out]"
                left = 0
            yield self(told)
        if left:
            yield f"[{left} lines left out]"


def _told(line: str, source: bool) -> tuple[str | None, bool]:
    """What may be handed on of a line, None: nothing; and whether the next one may be of source."""
    if _HEAD.match(line):
        return line, " File " in line
    if source and line.startswith("    "):
        return line, False
    if (match := _RAISED.fullmatch(line)) is not None:
        return f"{match[1]}: {_without_quotes(match[2])}", False
    return (_without_quotes(line) if _LINE.match(line) else None), False


def _without_quotes(line: str) -> str:
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(_QUERY.sub("?…", match[0]))
        return f"\0{len(kept) - 1}\0"

    line = _REQUEST_LINE.sub(keep, line.replace("\0", " "))
    if (match := _QUOTES.search(line)) is not None:
        line = line[: match.end()] + "[left out]"
    line = _QUOTED.sub("[text]", line)
    # A quotation that goes on in the next line, or holds quotation marks, ends nowhere.
    marks = list(_MARK.finditer(line))
    if any(sum(each[0] == kind for each in marks) % 2 for kind in "'\""):
        line = line[: marks[0].start()] + "[text]"
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], line)
