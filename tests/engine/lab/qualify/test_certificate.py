import copy
import json
from pathlib import Path
from typing import Any

import pytest
import support
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.qualify import certificate
from specwatch_engine.lab.qualify.certificate import CertificateError
from support.records import NOW

FIXTURE = Path(next(iter(support.__path__))) / "certificate.json"
DAY = 86_400
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def made(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "run": "qualify-1",
        "verdict": "qualified",
        "fingerprint": {"vllm": "0.32.0", "draft": "/models/draft", "k": 4, "device": None},
        "p": 0.71,
        "limits": {"p": 0.65, "draft_step": 0.333},
        "scenarios": {"code": {"certified": True, "p": 0.7, "low": 0.68, "high": 0.72, "requests": 90, "why": "…"}},
        "now": NOW,
    }
    return certificate.make(**plain | changes)


def test_the_fixture_that_the_sidecar_reads_too_is_a_certificate() -> None:
    document = certificate.read(FIXTURE.read_bytes())
    assert document["signed_off_by"] == "Ada Lovelace"
    assert {name: each["certified"] for name, each in document["scenarios"].items()} == {
        "address_confirmation": True,
        "fault_report": False,
        "订单": False,
    }


def test_it_says_when_it_was_issued_and_ends_90_days_later() -> None:
    document = made()
    assert (document["issued_at"], document["expires_at"]) == ("2027-01-15T08:30:30Z", "2027-04-15T08:30:30Z")
    assert document["signed_off_by"] is None
    assert made(valid_days=0.5)["expires_at"] == "2027-01-15T20:30:30Z"


@pytest.mark.parametrize("days", [0, -1, 4000, float("nan"), float("inf")])
def test_days_that_are_none_are_refused(days: float) -> None:
    with pytest.raises(CertificateError, match=r"^--valid-days"):
        made(valid_days=days)


@given(
    st.dictionaries(names, st.dictionaries(names, st.none() | st.floats(0, 1) | st.integers(), max_size=3), max_size=3)
)
def test_what_is_written_is_read_as_it_was(scenarios: dict[str, Any]) -> None:
    document = made(scenarios=scenarios)
    assert certificate.read(certificate.text(document)) == document


@given(st.data())
def test_a_change_anywhere_shows(data: st.DataObject) -> None:
    document = copy.deepcopy(made())
    where: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(where)))
        if not isinstance(where[key], dict):
            break
        where = where[key]
    where[key] = data.draw(
        (st.none() | st.booleans() | st.integers(2, 9) | st.text(min_size=1)).filter(lambda new: new != where[key])
    )
    with pytest.raises(CertificateError):
        certificate.read(json.dumps(document))


@given(st.text() | st.binary() | st.recursive(st.none() | st.text(), lambda each: st.lists(each)).map(json.dumps))
def test_anything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(CertificateError):
        certificate.read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "specwatch_certificate: is missing"),
        ('{"specwatch_certificate": 2}', "version 2 is not known"),
        ('{"specwatch_certificate": 1, "issued_at": ""}', "expires_at: is missing"),
        (json.dumps(made() | {"p": float("nan")}), "changed after it was written"),
        (json.dumps(made() | {"run": "\ud800"}), "changed after it was written"),
        (json.dumps(made() | {"p": 0.9}), "changed after it was written"),
    ],
)
def test_what_is_wrong_with_one_is_said(text: str, said: str) -> None:
    with pytest.raises(CertificateError, match=said):
        certificate.read(text)


def test_a_signature_changes_the_sum_and_not_the_age() -> None:
    document = made()
    signed = certificate.sign(document, "  Ada \n Lovelace ", NOW + 5 * DAY)
    assert signed["signed_off_by"] == "Ada Lovelace"
    assert signed["sha256"] != document["sha256"]
    assert (signed["issued_at"], signed["expires_at"]) == (document["issued_at"], document["expires_at"])
    assert certificate.read(certificate.text(signed)) == signed


def test_one_that_expired_is_not_signed() -> None:
    with pytest.raises(CertificateError, match="expired at 2027-04-15"):
        certificate.sign(made(), "Ada", NOW + 91 * DAY)
    with pytest.raises(CertificateError, match="is no time"):
        certificate.sign(made() | {"expires_at": None}, "Ada", NOW)


@pytest.mark.parametrize("name", ["", " ", "a\x00b", "x" * 201])
def test_a_signature_is_a_name(name: str) -> None:
    with pytest.raises(CertificateError, match=r"^--sign-off"):
        certificate.sign(made(), name, NOW)
