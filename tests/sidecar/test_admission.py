"""Certificates: which are refused and why, what they are held against, and which scenarios they let speculate."""

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import admission
from sidecar.admission import Admission, Certificate, CertificateError, Told, Validity, digest, read, standing

FIXTURE = Path(__file__).parents[1] / "support" / "certificate.json"
DOCUMENT: dict[str, Any] = json.loads(FIXTURE.read_text())
#: Within its time.
NOW = datetime(2027, 2, 1, tzinfo=UTC).timestamp()
#: An engine that is the certificate's.
ENGINE: dict[str, list[str | int]] = {
    "vllm": ["0.32.0"],
    "method": ["draft_model"],
    "k": [4],
    "device": ["cpu"],
    "target_digest": ["9f86d081884c7d65"],
    "draft_digest": ["2c26b46b68ffc68f"],
    "target": ["/elsewhere/target"],
    "draft": ["/elsewhere/draft_x"],
}
GOOD, BAD = "address_confirmation", "fault_report"


def signed(**changes: Any) -> dict[str, Any]:
    """The fixture with other fields, and the sum of that; None takes a field away."""
    document = {name: value for name, value in (DOCUMENT | changes).items() if value is not ...}
    return document | {"sha256": digest(document)}


def written(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_the_certificate_of_the_lab_is_read() -> None:
    found = read(FIXTURE.read_bytes())
    assert (found.run, found.signed_off_by) == ("qualify-20270115-083030", "Ada Lovelace")
    assert found.expires_at == datetime(2027, 4, 15, 8, 30, 30, tzinfo=UTC)
    assert {name: each.certified for name, each in found.scenarios.items()} == {GOOD: True, BAD: False, "订单": False}
    assert read(written(DOCUMENT)) == found, "its form on paper does not count"


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is no JSON"),
    "no UTF-8": (b"\xff\xfe", "is no JSON"),
    "a number beyond all": (b"1" * 5000, "is no JSON"),
    "no end": (b"[" * 200_000, "is no JSON"),
    "a list": (b"[]", "has no specwatch_certificate"),
    "other JSON": (b"{}", "has no specwatch_certificate"),
    "a later version": (written(signed(specwatch_certificate=2)), "is of version 2, and only 1 is known"),
    "no version": (written(signed(specwatch_certificate=True)), "is of version True"),
    "no sum": (written({k: v for k, v in DOCUMENT.items() if k != "sha256"}), "sha256: was changed"),
    "a changed scenario": (FIXTURE.read_bytes().replace(b'"certified": false', b'"certified": true'), "was changed"),
    "a changed date": (FIXTURE.read_bytes().replace(b"2027-04-15", b"2099-04-15"), "sha256: was changed"),
    "NaN": (FIXTURE.read_bytes().replace(b"0.7402", b"NaN"), "sha256: was changed"),
    "half a character": (FIXTURE.read_bytes().replace(b"Ada", b"\\ud800"), "sha256: was changed"),
    "nobody's": (written(signed(signed_off_by=None)), "nobody has signed it off: sign it with `specwatch qualify"),
    "signed with spaces": (written(signed(signed_off_by="  ")), "nobody has signed it off"),
    "a signature of another kind": (written(signed(signed_off_by=1)), "$.signed_off_by"),
    "no date": (written(signed(expires_at=...)), "expires_at"),
    "a date that is none": (written(signed(expires_at="soon")), "$.expires_at"),
    "a date of no zone": (written(signed(expires_at="2027-04-15T08:30:30")), "expires_at: has no time zone"),
    "a date beyond all years": (
        written(signed(expires_at="9999-12-31T23:59:59-12:00")),
        "expires_at: is beyond all years",
    ),
    "no scenarios": (written(signed(scenarios=...)), "scenarios"),
    "scenarios in a list": (written(signed(scenarios=[])), "$.scenarios"),
    "a scenario that is certified in words": (written(signed(scenarios={"a": {"certified": "yes"}})), "certified"),
    "a fingerprint that is none": (written(signed(fingerprint="x")), "$.fingerprint"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sound_certificate_is_refused(name: str) -> None:
    content, words = REFUSED[name]
    with pytest.raises(CertificateError) as caught:
        read(content)
    assert words in str(caught.value)
    assert "`specwatch qualify" in str(caught.value)
    found = standing(caught.value, ENGINE, NOW)
    assert (found.validity, found.certified()) == (Validity.UNUSABLE, [])
    assert words in (found.refusal(GOOD) or "")


@given(st.binary(max_size=300) | st.recursive(st.text() | st.floats() | st.none(), st.lists).map(written))
def test_nothing_that_is_read_raises_anything_else(content: bytes) -> None:
    with pytest.raises(CertificateError):
        read(content)


@given(
    st.dictionaries(st.sampled_from(sorted(DOCUMENT)), st.recursive(st.text() | st.integers() | st.none(), st.lists))
)
def test_fields_of_any_kind_raise_nothing_else(changes: dict[str, Any]) -> None:
    try:
        document = DOCUMENT | changes
        content = written(document | {"sha256": digest(document)})
    except ValueError:  # half a character
        return
    with contextlib.suppress(CertificateError):
        read(content)


# ---- what it is held against

CERTIFICATE = read(FIXTURE.read_bytes())
#: What the engine is instead, whether it is another then, and words of it.
COMPARED: dict[str, tuple[dict[str, list[str | int]], bool, str]] = {
    "the same": ({}, False, "certifies 1 of 3 scenarios until 2027-04-15"),
    "another vLLM": ({"vllm": ["0.33.0"]}, True, "vLLM's version is 0.33.0, and was 0.32.0"),
    "another k": ({"k": [10]}, True, "the number of draft tokens a step (k) is 10, and was 4"),
    "another method": ({"method": ["ngram"]}, True, "the speculative method is ngram, and was draft_model"),
    "another device": ({"device": ["NVIDIA H200 x 1"]}, True, "the device is NVIDIA H200 x 1, and was cpu"),
    "other weights of the draft": ({"draft_digest": ["0" * 16]}, True, "the content of the draft model is 0000"),
    "other weights of the target": ({"target_digest": ["0" * 16]}, True, "the content of the target model is 0000"),
    "cores that differ": (
        {"draft_digest": ["2c26b46b68ffc68f", "b"]},
        True,
        "the content of the draft model is 2c26b46b68ffc68f and b, and was 2c26b46b68ffc68f",
    ),
    "the same weights under another name": ({"draft": ["x/y"], "target": ["/z"]}, False, "certifies 1 of 3"),
    "no digest, and the same name": (
        {"draft_digest": [], "draft": ["/srv/draft_a"]},
        False,
        "not compared, as it is not known of both: the content of the draft model",
    ),
    "no digest, and another name": (
        {"draft_digest": [], "draft": ["/srv/draft_b"]},
        True,
        "the draft model is /srv/draft_b, and was /models/draft_a",
    ),
    "no device": ({"device": []}, False, "not compared, as it is not known of both: the device"),
    "much": (
        {"vllm": ["1"], "k": [1], "method": ["m"], "device": ["d"], "draft_digest": ["e"]},
        True,
        "k) is 1, and was 4; and 2 more: qualify anew",
    ),
}


@pytest.mark.parametrize("name", COMPARED)
def test_it_holds_for_the_engine_that_it_is_of(name: str) -> None:
    changes, other, words = COMPARED[name]
    told: Told = ENGINE | changes
    found = standing(CERTIFICATE, told, NOW)
    assert found.validity is (Validity.OTHER_ENGINE if other else Validity.VALID)
    assert words in found.words
    assert (found.refusal(GOOD) is None) is not other
    assert found.refusal(BAD)
    if other:
        assert "qualify anew with `specwatch qualify`" in (found.refusal(GOOD) or "")


def test_what_a_certificate_does_not_know_is_not_compared() -> None:
    bare = read(written(signed(fingerprint={"vllm": "0.32.0", "draft": "draft_x", "draft_digest": None})))
    found = standing(bare, ENGINE, NOW)
    assert found.validity is Validity.VALID
    assert found.not_compared == ("method", "k", "device", "target_digest", "draft_digest", "target")


def test_an_engine_without_a_draft_model_is_compared_without_one() -> None:
    itself = DOCUMENT["fingerprint"] | {"method": "ngram", "draft": None, "draft_digest": None}
    ngram = read(written(signed(fingerprint=itself)))
    told = ENGINE | {"method": ["ngram"], "draft": [], "draft_digest": []}
    assert standing(ngram, told, NOW).not_compared == ()


def test_it_holds_until_its_date() -> None:
    last = CERTIFICATE.expires_at.timestamp()
    assert standing(CERTIFICATE, ENGINE, last - 1).validity is Validity.VALID
    found = standing(CERTIFICATE, ENGINE, last)
    assert found.validity is Validity.EXPIRED
    assert found.words == (
        "the certificate of qualify-20270115-083030, signed off by Ada Lovelace, expired on 2027-04-15: qualify anew "
        "with `specwatch qualify`"
    )
    assert found.certified() == []


def test_until_the_engine_has_told_what_it_is_it_is_taken_to_be_as_it_was() -> None:
    found = standing(CERTIFICATE, None, NOW)
    assert (found.validity, found.holds, found.certified()) == (Validity.PENDING, True, [GOOD])
    assert "the engine has not told yet what it is" in found.words


REFUSALS: dict[str, tuple[Certificate, str, str | None]] = {
    "certified": (CERTIFICATE, GOOD, None),
    "rejected": (CERTIFICATE, BAD, "p is 0.392 (95 % interval 0.370 to 0.414), which lies below 0.65."),
    "uncertain": (CERTIFICATE, "订单", "22 of 30 requests tell p, which are too few."),
    "not named": (CERTIFICATE, "default", "does not name this scenario: qualify with prompts of it"),
    "a verdict that is bad": (
        read(written(signed(verdict="rejected"))),
        GOOD,
        "the verdict of qualify-20270115-083030",
    ),
    "no reason": (read(written(signed(scenarios={"a": {"certified": False}}))), "a", "it gives no reason"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_scenarios_are_refused_in_the_certificates_words(name: str) -> None:
    certificate, scenario, words = REFUSALS[name]
    found = standing(certificate, ENGINE, NOW).refusal(scenario)
    assert found == words or (words is not None and words in (found or ""))


def test_no_text_of_a_certificate_makes_a_sentence_of_many_lines() -> None:
    why = "a\n\x1b[31m" + "b" * 1000
    found = standing(read(written(signed(scenarios={"a": {"certified": False, "why": why}}))), ENGINE, NOW)
    words = found.refusal("a") or ""
    assert words.isprintable()
    assert len(words) < 400


# ---- the file


CHANGES: dict[str, tuple[Callable[[Path], object], Validity, str]] = {
    "taken away": (lambda file: file.unlink(), Validity.UNUSABLE, "No such file"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), Validity.UNUSABLE, "Is a directory"),
    "broken": (lambda file: file.write_text("{"), Validity.UNUSABLE, "is no JSON"),
    "of another time": (
        lambda file: file.write_bytes(written(signed(expires_at="2027-01-20T00:00:00Z"))),
        Validity.EXPIRED,
        "expired on 2027-01-20",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_changed_is_read_again(name: str, tmp_path: Path) -> None:
    change, validity, words = CHANGES[name]
    file = tmp_path / "certificate.json"
    file.write_bytes(FIXTURE.read_bytes())
    made = Admission(file)
    assert made.standing(ENGINE, NOW).validity is Validity.VALID
    change(file)
    made.look()
    found = made.standing(ENGINE, NOW)
    assert found.validity is validity
    assert words in found.words
    if validity is Validity.UNUSABLE:
        assert str(file) in found.words
    if file.is_dir():
        file.rmdir()
    # As one is put in place that is whole.
    (tmp_path / "next.json").write_bytes(FIXTURE.read_bytes())
    (tmp_path / "next.json").replace(file)
    made.look()
    assert made.standing(ENGINE, NOW).validity is Validity.VALID


def test_a_file_that_is_as_it_was_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(FIXTURE.read_bytes())
    made = Admission(file)
    monkeypatch.setattr(admission, "read", lambda content: 1 / 0)
    made.look()
    assert made.standing(ENGINE, NOW).validity is Validity.VALID


def test_a_disk_that_cannot_be_read_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(FIXTURE.read_bytes())
    made = Admission(file)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", lambda self: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        made.look()
        made.look()
    assert made.standing(ENGINE, NOW).validity is Validity.VALID
    (told,) = [record.getMessage() for record in caplog.records]
    assert "Input/output error" in told
    file.unlink()
    made.look()
    assert made.standing(ENGINE, NOW).validity is Validity.UNUSABLE


def test_of_a_pipe_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in Admission(tmp_path / "pipe").standing(ENGINE, NOW).words


def test_a_disk_that_hangs_keeps_nobody_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hangs(path: Path) -> None:
        answers.wait(30)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(admission, "_START_S", 0.05)
    monkeypatch.setattr(Path, "stat", hangs)
    try:
        assert "was not read yet" in Admission(tmp_path / "c").standing(ENGINE, NOW).words
    finally:
        answers.set()


def test_a_file_of_the_same_time_and_place_is_read_after_one_that_was_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, good = tmp_path / "certificate.json", tmp_path / "good"
    good.write_bytes(FIXTURE.read_bytes())
    file.hardlink_to(good)
    made = Admission(file)
    (tmp_path / "long").write_bytes(b" " * 4_194_305)
    (tmp_path / "long").replace(file)
    made.look()
    assert made.standing(ENGINE, NOW).validity is Validity.UNUSABLE
    good.replace(file)
    made.look()
    assert made.standing(ENGINE, NOW).validity is Validity.VALID


def test_a_file_beyond_all_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_BYTES", 10)
    file = tmp_path / "certificate.json"
    file.write_bytes(FIXTURE.read_bytes())
    found = Admission(file).standing(ENGINE, NOW)
    assert (found.validity, f"has {file.stat().st_size} bytes" in found.words) == (Validity.UNUSABLE, True)
