"""What is private in a text, replaced by what it was: `[email]`, `[card]`. Best effort: it knows shapes, not meanings.

Names, addresses, and secrets that look like words stay. All patterns take time in proportion to the text, as none of
them reads far on from each of many places; those of the setting `redact` are their author's.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from string import ascii_uppercase
from typing import NamedTuple


class _Kind(NamedTuple):
    name: str
    #: A group is the secret, where the pattern has one; what stands around it shows what it is.
    pattern: re.Pattern[str]
    #: How many characters of what was found are one, 0: none.
    measure: Callable[[str], int] = len
    #: It is looked for in small letters: several times as fast as (?i).
    small: bool = False


class Redactor:
    """`redactor(text)` is the text without what is private in it."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        """`more`: regular expressions of what else is. Raises re.error."""
        own = [_Kind("redacted", re.compile(pattern)) for pattern in more]
        self._kinds = (*own, *_KINDS)

    def __call__(self, text: str) -> str:
        for kind in self._kinds:
            text = "".join(_replaced(kind, text))
        return text


_SMALL = {ord(each): each.lower() for each in ascii_uppercase}


def _replaced(kind: _Kind, text: str) -> Iterator[str]:
    searched = _small(text) if kind.small else text
    written = at = 0
    while at <= len(text) and (match := kind.pattern.search(searched, at)) is not None:
        start, end = match.span(match.lastindex or 0)
        size = kind.measure(text[start:end])
        if size:
            yield text[written:start]
            yield f"[{kind.name}]"
            written = at = start + size
        else:
            # What begins later may be one.
            at = match.start() + 1
    yield text[written:]


def _small(text: str) -> str:
    """Of the same length, as few letters are not (İ)."""
    small = text.lower()
    return small if len(small) == len(text) else text.translate(_SMALL)


# ---- whether they are


def _if(is_one: Callable[[str], bool]) -> Callable[[str], int]:
    return lambda text: len(text) if is_one(text) else 0


def _digits(text: str) -> list[int]:
    return [int(each) for each in text if each.isdecimal()]


def _is_card(text: str) -> bool:
    """ISO/IEC 7812: digits of an issuer, and a check digit (Luhn)."""
    number = _digits(text)
    if not (number[0] in (3, 4, 5, 6) or 2221 <= int("".join(map(str, number[:4]))) <= 2720):
        return False
    doubled = [2 * each - 9 * (each > 4) for each in number[-2::-2]]
    return (sum(doubled) + sum(number[-1::-2])) % 10 == 0 and len(set(number)) > 1


#: Characters by country, of the IBAN registry (SWIFT, ISO 13616).
_IBANS = {
    each[:2]: int(each[2:])
    for each in re.findall(
        r"\w+",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
        "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
        "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
        "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
        "YE30",
    )
}


def _iban(text: str) -> int:
    """As long as its country's are, and of remainder 1 by 97."""
    places = [at for at, each in enumerate(text) if each.isalnum()]
    size = _IBANS.get(text[:2].upper(), 0)
    if not size or len(places) < size:
        return 0
    plain = "".join(text[at] for at in places[:size])
    return places[size - 1] + 1 if int("".join(str(int(each, 36)) for each in plain[4:] + plain[:4])) % 97 == 1 else 0


def _is_resident(text: str) -> bool:
    """GB 11643: a Chinese resident's number holds a day of birth, and a check digit (ISO 7064 MOD 11-2)."""
    try:
        date(int(text[6:10]), int(text[10:12]), int(text[12:14]))
    except ValueError:
        return False
    check = sum(each * pow(2, 17 - at, 11) for at, each in enumerate(_digits(text[:17]))) % 11
    return "10X98765432"[check] == text[17].upper()


def _is_ssn(text: str) -> bool:
    """A social security number of the USA; some are never given."""
    area, group, serial = text[:3], text[4:6], text[7:]
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_phone(text: str) -> bool:
    """7 to 15 digits (E.164), and no date."""
    return 7 <= len(_digits(text)) <= 15 and not _DATE.match(text)


def _is_address(text: str) -> bool:
    """An IP address that names a machine. Two words alone, as `fe::a` in code, need a digit to be one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    named = not (address.is_loopback or address.is_unspecified)
    return named and (address.version == 4 or text.count(":") > 2 or any(map(str.isdigit, text)))


def _is_password(text: str) -> bool:
    """No placeholder, no type and no call, which stand there in code."""
    return not text.startswith(("[", "<", "{", "$", "%")) and not _CODE.fullmatch(text)


_DATE = re.compile(r"\d{1,2}[-/. ]\d{1,2}[-/. ](?:19|20)\d\d")
_CODE = re.compile(r"(?i:null|none|true|false|str|string|int|bool|bytes|secretstr|optional.*)|[A-Za-z_.]+\(.*")

# ---- what they look like

# Neither end may lie within a word: so the digits of hashes and of git's ids are left alone.
_LETTER = "0-9A-Za-z_"
_BEGIN, _END = rf"(?<![{_LETTER}])", rf"(?![{_LETTER}])"
# Of scripts that are written with spaces, so that no sentence is taken for a name.
_ALPHABETS = "A-Za-z\u00c0-\u052f"
_LOCAL, _HOST = rf"0-9{_ALPHABETS}._+-", rf"0-9{_ALPHABETS}-"
_CHARACTER = r"[0-9A-Za-z_/+=.~-]"
# What stands after the latter may as well be a word.
_STRONG = (
    "password|passwd|passphrase|passcode|pwd|passwort|kennwort|contrase\u00f1a|mot de passe|\u5bc6\u7801|\u53e3\u4ee4"
)
_WEAK = "secret|api[_ -]?key|access[_ -]?key|account[_ -]?key|private[_ -]?key|token"
# JSON may be a text within JSON.
_IS = r"(?:\\{0,3}[\"'`])?[ \t]{0,8}(?:[:=\uff1a]|=>)[ \t]{0,8}"
_VALUE = (
    r"(?:\\{1,3}\"([^\"\\\n]{1,500})|\"([^\"\n]{1,500})|'([^'\n]{1,500})|`([^`\n]{1,500})|([^\s\"'`,;)}\]]{1,500}))"
)
_KEYS = (
    r"(?:sk|pk|rk)[-_](?=[\w-]{0,100}\d)[\w-]{16,}+"  # OpenAI, Anthropic, Stripe
    r"|gh[oprsu]_\w{20,}+|github_pat_\w{20,}+|glpat-[\w-]{16,}+"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}|AIza[\w-]{30,}+|ya29\.[\w-]{20,}+"
    r"|xox[a-z]-[\w-]{10,}+|xapp-[\w-]{10,}+"
    r"|hf_[0-9A-Za-z]{20,}+|npm_[0-9A-Za-z]{30,}+|pypi-[\w-]{30,}+|SG\.[\w-]{16,}+\.[\w-]{16,}+"
    r"|GOCSPX-[\w-]{20,}+|whsec_[\w+/=]{16,}+|AGE-SECRET-KEY-1[0-9A-Z]{40,}+"
    r"|nvapi-[\w-]{20,}+|gsk_\w{20,}+|xai-\w{20,}+|dop_v1_\w{20,}+"
    r"|eyJ[\w-]{6,}+\.[\w-]{6,}+(?:\.[\w-]++){0,3}"  # JWT
)
_KINDS = (
    _Kind(
        "private key",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
        ),
    ),
    # A user's name and a password before a host.
    _Kind("password", re.compile(r"://([^\s/@:]{0,200}:[^\s/@]{1,200})@")),
    _Kind("key", re.compile(rf"(?<![{_LETTER}-])(?:{_KEYS})", re.ASCII)),
    _Kind("key", re.compile(r"hooks\.slack\.com/[a-z]{1,20}/([\w/-]{16,}+)", re.ASCII)),
    _Kind("key", re.compile(rf"bearer[ \t]{{1,8}}(?={_CHARACTER}{{0,200}}\d)({_CHARACTER}{{8,}}+)"), small=True),
    _Kind(
        "key",
        re.compile(rf"authorization[\"']?[ \t]*[:=][ \t]*[\"']?[a-z]{{1,20}}[ \t]{{1,8}}({_CHARACTER}{{6,}}+)"),
        small=True,
    ),
    _Kind(
        "password",
        re.compile(rf"(?:(?:{_STRONG}){_IS}|(?:{_WEAK}){_IS}(?=\S{{0,60}}\d)){_VALUE}"),
        _if(_is_password),
        small=True,
    ),
    # Of a command line, and of XML.
    _Kind(
        "password",
        re.compile(rf"--(?:{_STRONG}|{_WEAK})[ \t]{{1,8}}[\"']?(?=\S{{0,60}}\d)([^\s\"'`]{{1,500}})"),
        small=True,
    ),
    _Kind("password", re.compile(rf"<(?:{_STRONG}|{_WEAK})>([^<\n]{{1,500}})"), small=True),
    _Kind(
        "password",
        re.compile(r"(?:pass(?:word|phrase|code)|pin|token) is +[\"'`]?(?=\S{0,40}\d)([^\s\"'`,;]{1,500})"),
        small=True,
    ),
    _Kind(
        "email",
        re.compile(rf"(?<![%{_LOCAL}])(?:[{_LOCAL}]|%(?!40))++(?:@|%40)[{_HOST}]++(?:\.[{_HOST}]++)++"),
    ),
    _Kind("iban", re.compile(rf"{_BEGIN}[A-Za-z]{{2}}\d\d(?:[ -]?[0-9A-Za-z]){{11,32}}+", re.ASCII), _iban),
    # Of 16 to 19 digits in groups of four; 13 to 15.
    *(
        _Kind("card", re.compile(rf"{_BEGIN}{pattern}(?!\d)"), _if(_is_card))
        for pattern in (
            r"(?:\d{4}[ -]?){3}\d{4}[ -]?\d{1,3}",
            r"(?:\d{4}[ -]?){3}\d{4}",
            r"\d{4}[ -]?\d{6}[ -]?\d{3,5}",
        )
    ),
    _Kind("id", re.compile(rf"{_BEGIN}[1-9]\d{{16}}[\dXx]{_END}"), _if(_is_resident)),
    _Kind("id", re.compile(rf"(?<![{_LETTER}-])\d{{3}}-\d\d-\d{{4}}(?![{_LETTER}-])"), _if(_is_ssn)),
    # With the country's code; as in North America; with the 0 that many countries have; of Chinese mobiles.
    *(
        _Kind("phone", re.compile(pattern), _if(_is_phone))
        for pattern in (
            rf"(?<![{_LETTER}+])(?:\+|00[1-9])\(?\d(?:[ \u00a0./()-]{{0,3}}\d){{5,14}}(?!\d)",
            rf"(?<![{_LETTER}.-])(?:\(\d{{3}}\) ?|\d{{3}}[ .-])\d{{3}}[ .-]\d{{4}}(?!\d|[.-]\d)",
            rf"(?<![{_LETTER}.:/-])(?:\(0\d{{1,5}}\)|0\d{{1,5}})[ /-](?:[ ./-]?\d){{5,11}}(?![\d:]|[.-]\d)",
            rf"(?<![{_LETTER}.-])1[3-9]\d(?:[ -]?\d{{4}}){{2}}(?![{_LETTER}]|[.-]\d)",
        )
    ),
    *(
        _Kind("ip", re.compile(pattern, re.ASCII), _if(_is_address))
        for pattern in (
            r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)",
            r"(?<![\w:.])[0-9A-Fa-f:]{3,39}(?:(?<=:)\d{1,3}(?:\.\d{1,3}){3})?(?![\w:])",
        )
    ),
)
