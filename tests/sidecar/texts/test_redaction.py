"""What is redacted, whatever stands around it, and what is left alone; in time that grows with the text alone."""

import base64
import ipaddress
import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sidecar.texts.process import MOST_CHARACTERS
from sidecar.texts.redaction import Redactor

redact = Redactor()

SECRETS = [
    ("email", "bob@example.com"),
    ("email", "josé.o-neill+x@mail.example.co.uk"),
    ("email", "bob%40example.com"),
    ("email", "иван@пример.рф"),
    ("phone", "+49 30 901820"),
    ("phone", "+1 (555) 123-4567"),
    ("phone", "0049 171 1234567"),
    ("phone", "(555) 123-4567"),
    ("phone", "555-123-4567"),
    ("phone", "030/901820"),
    ("phone", "020 7946 0958"),
    ("phone", "06 12 34 56 78"),
    ("phone", "13812345678"),
    ("phone", "138-1234-5678"),
    ("card", "4111 1111 1111 1111"),
    ("card", "4111-1111-1111-1111"),
    ("card", "5555555555554444"),
    ("card", "378282246310005"),
    ("card", "3782 822463 10005"),
    ("card", "2223003122003222"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB29NWBK60161331926819"),
    ("iban", "NO9386011117947"),
    ("ip", "192.168.3.4"),
    ("ip", "2001:db8::1"),
    ("ip", "fe80::1ff:fe23:4567:890a"),
    ("id", "123-45-6789"),
    ("id", "11010519491231002X"),
    ("key", "sk-proj-abcdefghijklmnop1234567890"),
    ("key", "sk-ant-api03-Abc_def-1234567890"),
    ("key", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    ("key", "github_pat_11ABCDEFG0aBcDeFgHiJkL"),
    ("key", "glpat-abcdefghij0123456789"),
    ("key", "AKIAIOSFODNN7EXAMPLE"),
    ("key", "xoxb-123456789012-abcdefghij"),
    ("key", "AIzaSyA1234567890abcdefghijklmnopqrstuv"),
    ("key", "hf_abcdefghijklmnopqrstuvwxyz"),
    ("key", "SG.abcdefghijklmnop1234.abcdefghijklmnop1234"),
    ("key", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"),
    ("key", "GOCSPX-abcdefghijklmnopqrstuvwx1234"),
    ("key", "whsec_abcdefghijklmnopqrstuvwx1234"),
    ("key", "AGE-SECRET-KEY-1" + "QPZRY9X8" * 7),
    ("private key", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----"),
    ("private key", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----"),
]


@pytest.mark.parametrize(("name", "secret"), SECRETS)
@pytest.mark.parametrize("around", ["{}", "call {}.", '{{"to": "{}"}}', "请看{}谢谢", "({}), and", "«{}»"])
def test_private_things(name: str, secret: str, around: str) -> None:
    assert redact(around.format(secret)) == around.format(f"[{name}]")


def test_a_private_key_without_its_end() -> None:
    assert redact('{"key": "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3Bl') == '{"key": "[private key]'


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("password: hunter2", "password: [password]"),
        ('{"password": "hun ter2", "x": 1}', '{"password": "[password]", "x": 1}'),
        ("DB_PASSWORD='a b' run", "DB_PASSWORD='[password]' run"),
        ("export API_TOKEN=abc123", "export API_TOKEN=[password]"),
        ("api-key = 12ab", "api-key = [password]"),
        ("My PASSWORD is hunter2!", "My PASSWORD is [password]"),
        ("密码：秘密123", "密码：[password]"),
        ("Passwort: geheim", "Passwort: [password]"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer [key]"),
        ('"authorization": "Basic dXNlcjpwYXNz"', '"authorization": "Basic [key]"'),
        ("bearer abc.def-123", "bearer [key]"),
        ("postgresql://me:geheim@db:5432/x", "postgresql://[password]@db:5432/x"),
        ("https://x.example/?a=1&token=abc123&b=2", "https://x.example/?a=1&token=[password]"),
        ("İ password: hunter2", "İ password: [password]"),
        (r'{"a": "{\"password\": \"hunter2\", \"b\": 1}"}', r'{"a": "{\"password\": \"[password]\", \"b\": 1}"}'),
        (r"\\\"api_key\\\": \\\"abc123\\\"", r"\\\"api_key\\\": \\\"[password]\\\""),
        ("AccountName=a;AccountKey=Eby8vdM0/K1SZFPT==;x", "AccountName=a;AccountKey=[password];x"),
        ("mysql --password hunter2 -h db", "mysql --password [password] -h db"),
        ("<password>hunter</password>", "<password>[password]</password>"),
        ("https://hooks.slack.com/services/T0000/B0000/XXXXXXXX", "https://hooks.slack.com/services/[key]"),
    ],
)
def test_what_is_named(text: str, redacted: str) -> None:
    assert redact(text) == redacted


LEFT_ALONE = [
    "Tokens of the draft: 5 of 7 were accepted, p = 0.714285714285714.",
    "def login(password: str = None, token: str | None = None) -> bool:",
    "password = getpass.getpass(); token = os.environ['TOKEN']",
    "the password is wrong, and the token is invalid",
    "the option --password is none; use --token FILE, or <token>",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 (HEAD)",
    "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "550e8400-e29b-41d4-a716-446655440000",
    "2024-01-02T10:30:00.123456+00:00, 01-02-2024 10:30, 4/5/2023",
    "1700000000 and 1700000000000 and 1234567890123456",
    "std::vector<a::b> x; fe::a; 12:34:56; aa:bb:cc:dd:ee:ff",
    "127.0.0.1, ::1, v1.2.3.4, 1.2.3, 999.1.1.1",
    "for (int i = 0; i < 100000; i++) x[i] += 3.14159265358979;",
    "user@host, @decorator, a @ b, x@1",
    "a basic understanding of bearer instruments; pass: the rest",
    "pk_users_organization_id, sk-learn, risk-adjusted",
    "π = 3,141592653589793; 12 345 678; 1_000_000",
    "ISBN 978-3-16-148410-0; 4111 1111 1111 1112; 666-12-3456, 123-00-4567",
    "你好，世界。今天是2024年1月2日，温度是25度。",
]


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


# ---- laws

#: Text that does not stick to a secret: nothing of words, digits and their signs next to it.
NEUTRAL = st.characters(exclude_categories=("Cs", "L", "N", "Pc", "Pd"), exclude_characters=string.punctuation + "\n")
contexts = st.tuples(st.text(), NEUTRAL, NEUTRAL, st.text())


def luhn(body: str) -> str:
    return next(body + check for check in string.digits if _sum(body + check) % 10 == 0)


def _sum(number: str) -> int:
    return sum(sum(divmod(int(each) * (1 + at % 2), 10)) for at, each in enumerate(reversed(number)))


def grouped(number: str, separator: str) -> str:
    return separator.join(number[at : at + 4] for at in range(0, len(number), 4))


def iban(body: str) -> str:
    plain = body + "DE00"
    check = 98 - int("".join(str(int(each, 36)) for each in plain)) % 97
    return f"DE{check:02d}{body}"


digits = st.text(string.digits, min_size=14, max_size=14)
words = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40)
gaps = st.sampled_from(("", " ", "-"))
cards = st.builds(lambda first, body, gap: grouped(luhn(first + body), gap), st.sampled_from("3456"), digits, gaps)
accounts = st.text(string.digits, min_size=18, max_size=18)
ibans = st.builds(lambda body, gap: grouped(iban(body), gap), accounts, gaps)
secrets = st.one_of(
    st.emails(domains=st.from_regex(r"[a-z][a-z0-9-]{0,20}\.(com|org|de)", fullmatch=True)).filter(
        lambda each: not set(each) & set("!#$&'*/=?^`{|}~")
    ),
    cards.filter(lambda each: len(set(each) & set(string.digits)) > 1),
    ibans,
    st.ip_addresses(v=4).filter(lambda each: not each.is_loopback and not each.is_unspecified).map(str),
    st.ip_addresses(v=6).map(str).filter(lambda each: each.count(":") > 2),
    st.builds("{}{}".format, st.sampled_from(("ghp_", "hf_", "sk-0", "xoxb-", "glpat-")), words),
    words.map(lambda each: "eyJ" + base64.urlsafe_b64encode(each.encode()).decode().rstrip("=") + "." + each),
    words.map(lambda each: f"-----BEGIN PRIVATE KEY-----\n{each}\n-----END PRIVATE KEY-----"),
    words.map(lambda each: f"password: {each}"),
)


@given(secrets, contexts)
def test_a_secret_does_not_survive_in_any_context(secret: str, context: tuple[str, str, str, str]) -> None:
    before, left, right, after = context
    hidden = secret.removeprefix("password: ")
    assume(hidden not in before + after)
    assert hidden not in redact(before + left + secret + right + after)


@given(st.text())
def test_any_text_is_redacted_once_and_for_all(text: str) -> None:
    """What is left has nothing that would be found again, but for what was put together by the redaction."""
    once = redact(text)
    assert redact(once) == redact(redact(once))


PIECES = ["the", "draft", "says", "of", "x", "=", "7", "(", ")", "if", "return", "你好", ",", ":", "0x1F", "a.b", "//"]


@given(st.lists(st.sampled_from(PIECES)))
def test_words_and_code_are_left_alone(parts: list[str]) -> None:
    text = " ".join(parts)
    assert redact(text) == text


def test_patterns_of_ones_own() -> None:
    own = Redactor([r"\bACME-\d+\b", "[一-龥]{2}先生", "Q*"])
    assert own("ACME-17 for 王明先生 and bob@example.com") == "[redacted] for [redacted] and [email]"


# ---- hostile texts

_MOST = MOST_CHARACTERS + 4096
HOSTILE = [
    *("a", "a@", "eyJ-", "1", "1 ", "4111 ", "-----BEGIN PRIVATE KEY-----", ":", "a1:", "password:", "password:[ "),
    *("DE89", "DE89 ", "+1 ", "sk-", "://a:", "1.1.", "bearer ", "authorization: ", "00", "01 2", "(0", " ", "é"),
    *("a@b.", "password is ", "token=", "SG.aaaaaaaaaaaaaaaaaaaa", "authorization" + " " * 999, "-----BEGIN "),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_no_longer_than_other_text_many_times_as_long(piece: str) -> None:
    began = time.process_time()
    redact(piece * (_MOST // len(piece)))
    # Measured: 0.1 s, and 1 s for the worst; what is quadratic takes minutes.
    assert time.process_time() - began < 15


def test_addresses_are_those_of_the_library() -> None:
    assert redact(str(ipaddress.ip_address(2**127 + 1))) == "[ip]"
