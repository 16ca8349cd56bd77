import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.redact import STARS, Redactor, of_environment, place

PLACES = [
    ("https://user:pass@chat.example:8443/hook/T0/x?key=y#z", "https://chat.example:8443"),
    ("http://127.0.0.1:9093", "http://127.0.0.1:9093"),
    ("http://[::1]:9093/a", "http://[::1]:9093"),
    ("slack://TokenA/TokenB/TokenC", STARS),
    ("https://user:pass", STARS),
    ("http://host:port/", STARS),
    ("http://[::1", STARS),
    ("no url", STARS),
    ("", STARS),
]


@pytest.mark.parametrize(("url", "shown"), PLACES)
def test_of_a_url_its_host_is_shown(url: str, shown: str) -> None:
    assert place(url) == shown


SECRETS = [
    ("s3cret", "token=s3cret.", "token=***."),
    ("s3cr et/1", "s3cr%20et%2F1 s3cr%20et/1", "*** ***"),
    (
        "https://us3r:pa55word@h/hook/T0AAAA/xyzzy?key=q1234",
        "us3r pa55word T0AAAA xyzzy q1234 h",
        "*** *** *** *** *** h",
    ),
    ("https://us3r:pa55@h/", "Basic dXMzcjpwYTU1", "Basic ***"),
    ("slack://TokenA/TokenB", "tokens TokenA, TokenB", "tokens ***, ***"),
    ("longer-secret", "longer-secret-er", "***-er"),
    ("abc", "abc is too short to be a secret", "abc is too short to be a secret"),
    ("", "nothing", "nothing"),
]


@pytest.mark.parametrize(("secret", "text", "shown"), SECRETS)
def test_secrets_and_the_parts_of_secret_urls_are_stars(secret: str, text: str, shown: str) -> None:
    assert Redactor([secret])(text) == shown


def test_a_secret_within_another_does_not_save_the_rest_of_it() -> None:
    assert Redactor(["key-12", "key-1234-key"])("key-1234-key") == STARS


ALPHABET = st.characters(exclude_characters="*\0")


@given(st.lists(st.text(ALPHABET, min_size=4, max_size=12), max_size=4), st.text(ALPHABET, max_size=20))
def test_no_secret_is_left_in_any_text(secrets: list[str], between: str) -> None:
    redact = Redactor(secrets)
    # A byte 0 keeps what stands between from becoming a part of a secret.
    shown = redact("".join(f"\0{between}\0{secret}" for secret in secrets))
    assert not any(secret in shown for secret in secrets)


def test_secrets_of_the_environment_are_known_by_their_names_and_in_addresses() -> None:
    environment = {
        "SPECWATCH_ADMIN_TOKEN": "topsecret-1",
        "AWS_SECRET_ACCESS_KEY": "topsecret-2",
        "SPECWATCH_DATABASE_URL": "postgresql://specwatch:topsecret-3@db/specwatch",
        "TOKENIZERS_PARALLELISM": "sometimes",
        "API_KEY": "false",
        "SPECWATCH_UPSTREAM": "http://127.0.0.1:8200",
        "ODD": "http://[@",
        "HOME": "/root",
    }
    redact = Redactor(of_environment(environment))
    shown = redact("\n".join(f"{name}={value}" for name, value in environment.items()))
    assert shown.splitlines() == [
        "SPECWATCH_ADMIN_TOKEN=***",
        "AWS_SECRET_ACCESS_KEY=***",
        "SPECWATCH_DATABASE_URL=postgresql://specwatch:***@db/specwatch",
        *[f"{name}={environment[name]}" for name in list(environment)[3:]],
    ]
