"""Every way a push can fail is one line: the address without credentials, what was done, why, and what to do."""

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from specwatch_grafana.connection import Failure, Grafana, Target, UsageError, target
from specwatch_grafana.push import Options, Outcome, Report, push
from specwatch_grafana.shipped import NotShipped, Shipped
from support import grafana_package
from support.chain import free_ports
from support.grafana_server import ADMIN, RELEASES, Fault, GrafanaServer, serving

ALERTS = Options(prometheus_url="http://prometheus:9090", alerts=True)
PAGE = {"Content-Type": "text/html; charset=UTF-8"}
GROUP = "/api/v1/provisioning/folder/specwatch/rule-groups/acceptance"


@pytest.fixture
def server() -> Iterator[GrafanaServer]:
    with serving(RELEASES["11.6"]) as grafana:
        yield grafana


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return grafana_package.make(tmp_path / "package")


def pushed(url: str, root: Path, options: Options = ALERTS, *, token: str = ADMIN, timeout_s: float = 20) -> Report:
    grafana = Grafana(target(url, token, timeout_s=timeout_s))
    try:
        return push(grafana, Shipped(root), options)
    finally:
        grafana.close()


def line(report: Report, url: str) -> str:
    """The only failure; it is one line, names the address and tells no secret."""
    (failure,) = report.failures
    assert failure.detail.startswith(f"{url}: ")
    assert failure.detail.isprintable()
    assert "secret" not in failure.detail
    assert failure.detail.count("; ") >= 1
    return failure.detail.removeprefix(f"{url}: ")


#: Where it happens: (method, path), what is being done, what has been made by then.
PLACES = {
    "health": ("GET", "/api/health", "asking for its health", 0),
    "data source": ("POST", "/api/datasources", "making data source specwatch-prom", 0),
    "folder": ("POST", "/api/folders", "making folder specwatch", 1),
    "look": ("GET", "/api/dashboards/uid/specwatch-latency", "reading dashboard specwatch-latency", 2),
    "dashboard": ("POST", "/api/dashboards/db", "saving dashboard specwatch-latency", 2),
    "rules": ("PUT", GROUP, "saving alert rules acceptance", 4),
}
#: What is said and advised.
STATUSES = {
    400: ("refused (HTTP 400: no, *** is it)", ""),
    401: ("whoever asks is not accepted (HTTP 401: no, *** is it)", "set GRAFANA_TOKEN, or --token-file, to a service"),
    403: ("not allowed (HTTP 403: no, *** is it)", "give the token's service account a role that may"),
    409: ("in conflict with what is there (HTTP 409: no, *** is it)", ""),
    412: ("changed by someone else, or of a name that is taken (HTTP 412: no, *** is it)", ""),
    422: ("not valid for this Grafana (HTTP 422: no, *** is it)", ""),
    429: ("too many requests (HTTP 429: no, *** is it)", "wait a minute, then run the push again"),
    500: ("Grafana or a proxy in front of it failed (HTTP 500: no, *** is it)", "look into its log"),
    503: ("Grafana or a proxy in front of it failed (HTTP 503: no, *** is it)", "look into its log"),
}
OF_ONE_THING = {400, 409, 412, 422}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("status", STATUSES)
def test_a_refusal(server: GrafanaServer, root: Path, place: str, status: int) -> None:
    method, path, doing, made = PLACES[place]
    server.faults.append(Fault(method, path, status, {"message": f"no,\n {ADMIN} is it."}, times=1))
    report = pushed(server.url, root)
    why, remedy = STATUSES[status]
    assert line(report, server.url).startswith(f"{doing}: {why}; {remedy}")
    assert len(server.folders) + len(server.datasources) + len(server.dashboards) >= made
    goes_on = status in OF_ONE_THING and place in ("look", "dashboard", "rules")
    assert ("state/other" in report.not_tried) is not goes_on
    assert (server.groups.keys() >= {("specwatch", "state/other")}) is goes_on


@pytest.mark.parametrize("place", [place for place in PLACES if place != "look"])
@pytest.mark.parametrize("body", [b"<html>404 page not found", {"message": "Not found"}], ids=["page", "json"])
def test_not_found_where_something_should_be(server: GrafanaServer, root: Path, place: str, body: Any) -> None:
    method, path, doing, _ = PLACES[place]
    headers = PAGE if isinstance(body, bytes) else {}
    server.faults.append(Fault(method, path, 404, body, headers, times=1))
    assert line(pushed(server.url, root), server.url).startswith(f"{doing}: ")


@pytest.mark.parametrize("path", ["/api/folders/specwatch", "/api/dashboards/uid/specwatch-latency", GROUP])
def test_a_page_for_what_is_looked_for_does_not_mean_that_there_is_none(
    server: GrafanaServer, root: Path, path: str
) -> None:
    server.faults.append(Fault("GET", path, 404, b"<html>404 page not found", PAGE, times=1))
    assert ": not found (HTTP 404); give --url as the browser shows" in line(pushed(server.url, root), server.url)
    assert not pushed(server.url, root).failures


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"<!DOCTYPE html><title>Log in</title>", PAGE),
        (b"ok", {"Content-Type": "text/plain"}),
        (b"{", {}),
        (b"", {}),
        (b'"ok"', {}),
        (b"\xff\xfe", {}),
        (b"[]", {}),
    ],
    ids=["html", "text", "cut", "empty", "string", "bytes", "list"],
)
def test_an_answer_that_is_no_json(
    server: GrafanaServer, root: Path, place: str, body: bytes, headers: dict[str, str]
) -> None:
    method, path, doing, _ = PLACES[place]
    server.faults.append(Fault(method, path, 200, body, headers, times=1))
    said = line(pushed(server.url, root), server.url)
    assert said.startswith(
        f"{doing}: the answer is a page, not Grafana's JSON: a login page, a proxy or another server;"
    )


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("/login", "redirected to a login page (/login); give --url past the proxy that asks for a login"),
        (
            "https://sso.example/oauth2/auth?client_secret=secret&state=x",
            "redirected to a login page (https://sso.example/oauth2/auth); give --url past the proxy",
        ),
        ("https://grafana.example/api/health", "redirected to https://grafana.example/api/health; give the address it"),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_not_followed(server: GrafanaServer, root: Path, location: str, said: str, status: int) -> None:
    server.faults.append(Fault("GET", "/api/health", status, b"", {"Location": location}))
    assert line(pushed(server.url, root), server.url).startswith(f"asking for its health: {said}")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"status": "ok"}, "this is no Grafana; give --url as the browser shows Grafana's start page"),
        ({"database": "failing"}, "its database fails; look into Grafana's log"),
    ],
)
def test_a_health_that_is_none(server: GrafanaServer, root: Path, body: dict[str, str], said: str) -> None:
    server.faults.append(Fault("GET", "/api/health", 200, body))
    assert line(pushed(server.url, root), server.url).startswith(f"asking for its health: {said}")


def test_a_version_that_is_hidden_is_no_failure(server: GrafanaServer, root: Path) -> None:
    server.faults.append(Fault("GET", "/api/health", 200, {"database": "ok"}))
    report = pushed(server.url, root)
    assert not report.failures
    assert report.steps[0].detail == ""


@pytest.mark.parametrize("path", ["/grafana", "/grafana/"])
def test_a_sub_path_with_and_without_its_slash(root: Path, path: str) -> None:
    with serving(RELEASES["11.6"], root="/grafana") as server:
        base = server.url.removesuffix("/grafana")
        assert not pushed(base + path, root).failures
        for wrong in ("", "/grafan", "/grafana/api", "/grafana/login"):
            said = line(pushed(base + wrong, root), base + wrong)
            assert said.startswith("asking for its health: not found (HTTP 404); give --url as the browser shows")


def test_nothing_listens(root: Path) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    said = line(pushed(url, root), url)
    assert said == (
        "asking for its health: not reachable (Connection refused); "
        "look whether Grafana runs and the address is right (--url or GRAFANA_URL)"
    )


def test_no_such_host(root: Path) -> None:
    url = "http://grafana.invalid:3000"
    assert line(pushed(url, root), url).startswith("asking for its health: not reachable (no such host name); ")


def test_no_answer_in_time(server: GrafanaServer, root: Path) -> None:
    until = threading.Event()
    server.faults.append(Fault("GET", "/api/folders/specwatch", until=until))
    try:
        said = line(pushed(server.url, root, timeout_s=0.2), server.url)
    finally:
        until.set()
    assert said.startswith("looking for folder specwatch: no answer within 0.2 s; look whether Grafana is well")
    assert Grafana(target(server.url, ADMIN, timeout_s=0.2)).api.client.timeout == 0.2


def test_a_certificate_that_nobody_trusts(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(RELEASES["11.6"], tls=context) as server:
        said = line(pushed(server.url, root), server.url)
        assert said.startswith("asking for its health: no trust in the connection (")
        assert said.endswith(
            "; name your CA's file in REQUESTS_CA_BUNDLE, or give --url with http:// if Grafana speaks no TLS"
        )
        file = tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(str(file))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(file))
        assert not pushed(server.url, root).failures


def test_https_where_no_tls_is_spoken(server: GrafanaServer, root: Path) -> None:
    url = server.url.replace("http://", "https://")
    assert line(pushed(url, root), url).startswith("asking for its health: no trust in the connection (")


def test_a_wrong_token_and_none(server: GrafanaServer, root: Path) -> None:
    for token in ("glsa_other", ""):
        report = pushed(server.url, root, token=token)
        said = line(report, server.url)
        assert said.startswith("looking for data source specwatch-prom: whoever asks is not accepted (HTTP 401: ")
        assert report.steps[0].outcome is Outcome.OK


def test_what_was_done_before_a_failure_stays_and_the_next_push_does_the_rest(
    server: GrafanaServer, root: Path
) -> None:
    server.faults.append(Fault("POST", "/api/dashboards/db", 502, b"<html>bad gateway", PAGE, times=1))
    report = pushed(server.url, root)
    assert "(HTTP 502); look into its log, then run the push again, what is done stays" in line(report, server.url)
    assert [step.name for step in report.changed] == ["specwatch-prom", "specwatch"]
    assert report.not_tried == ["specwatch-overview", "acceptance", "state/other"]
    again = pushed(server.url, root)
    assert not again.failures
    assert [step.name for step in again.changed] == ["specwatch-latency", *report.not_tried]


def test_files_that_are_missing_or_broken_are_named(server: GrafanaServer, root: Path) -> None:
    grafana = Grafana(target(server.url, ADMIN))
    (root / "provisioning/rule-groups.json").write_text("[")
    with pytest.raises(NotShipped, match=r"^provisioning/rule-groups.json is no JSON: install specwatch again$"):
        push(grafana, Shipped(root), ALERTS)
    (root / "provisioning/rule-groups.json").unlink()
    with pytest.raises(NotShipped, match=r"^provisioning/rule-groups.json cannot be read: install specwatch again$"):
        push(grafana, Shipped(root), ALERTS)
    for path in (root / "dashboards").iterdir():
        path.unlink()
    with pytest.raises(NotShipped, match=r"^dashboards/ has no dashboards: install specwatch again$"):
        push(grafana, Shipped(root), Options())
    grafana.close()
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        (" http://grafana/ ", "http://grafana"),
        ("https://h.example/grafana/", "https://h.example/grafana"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://user:p%40ss@h:3000/g", "http://h:3000/g"),
    ],
)
def test_addresses(url: str, wanted: str) -> None:
    assert target(url, "t").url == wanted


@pytest.mark.parametrize(
    "url",
    """
    |h:3000|localhost|ftp://h|http://|http://h:port|http://h:0|http://h:99999|http://h/?orgId=1|http://h/#x|http://h h
    |http://h/a b|http://[::1|file:///etc/passwd
    """.strip().split("|"),
)
def test_addresses_that_cannot_be_meant(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--url: must be http://HOST"):
        target(url, "t")


def test_who_asks() -> None:
    assert target("http://h", " glsa_x\n").credential == "glsa_x"
    assert target("http://h", "admin:a:b").credential == ("admin", "a:b")
    assert target("http://u:p%40s@h", "").credential == ("u", "p@s")
    assert target("http://u:p@h", "glsa_x").credential == "glsa_x"
    assert target("http://h", "").credential is None
    for token in ("two lines\nof it", "with space", "ключ"):
        with pytest.raises(UsageError, match=r"^GRAFANA_TOKEN or --token-file: must be one line"):
            target("http://h", token)


@given(url=st.text() | st.from_regex(r"https?://[^/]{0,12}@?[a-z.\[\]:0-9]{0,12}/?.{0,9}"), token=st.text())
def test_any_address_and_token_are_taken_or_refused(url: str, token: str) -> None:
    try:
        made = target(url, token)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert "@" not in made.url
    assert target(made.url, token).url == made.url
    secret = made.credential[1] if isinstance(made.credential, tuple) else made.credential
    assert not secret or "credential" not in repr(made)
    Grafana(made).close()


def test_somebody_elses_words_are_short_and_without_our_secret() -> None:
    grafana = Grafana(Target("http://h", ("admin", "hunter22")))
    with pytest.raises(Failure) as told:
        raise grafana._refused("x", 400, {"message": "hunter22 " + "long\x1b[31m " * 99}, "")
    assert "hunter22" not in str(told.value)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 400
    grafana.close()
