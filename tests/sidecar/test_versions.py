"""What runs is told once and with each change, and no secret is."""

from pathlib import Path
from typing import Any

import pytest

from sidecar.settings import load
from sidecar.store.rows import VersionRow
from sidecar.versions import HIDDEN, Versions, changed_settings

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def _default_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECWATCH_SPOOL", raising=False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        ({"fallback_below": 0.65, "admin": "127.0.0.1:8001", "spool": "specwatch-spool"}, {}),
        ({"fallback_below": 0.6, "add_usage": True}, {"fallback_below": "0.6", "add_usage": "true"}),
        ({"spool": "/var/a b", "alerts": "a.yaml"}, {"spool": "/var/a b", "alerts": "a.yaml"}),
        ({"fallback_triggers": [], "scenarios": ["a", "b"]}, {"fallback_triggers": "[]", "scenarios": '["a","b"]'}),
        ({"retention_days": {"minutes": "none"}}, {"retention_days": '{"minutes":null}'}),
        ({"upstream": "http://10.0.0.1:8200/"}, {"upstream": "http://10.0.0.1:8200"}),
        ({"database_url": "postgresql://db/specwatch"}, {"database_url": "postgresql://db/specwatch"}),
        (
            {"admin_token": SECRET, "admin_read_token": SECRET + "2"},
            {"admin_token": HIDDEN, "admin_read_token": HIDDEN},
        ),
        ({"engine_token": SECRET}, {"engine_token": HIDDEN}),
        ({"redact": [SECRET]}, {"redact": HIDDEN}),
        ({"upstream": f"http://me:{SECRET}@host:1"}, {"upstream": HIDDEN}),
        ({"fallback_upstream": f"https://{SECRET}@host:1"}, {"fallback_upstream": HIDDEN}),
        ({"database_url": f"postgresql://me:{SECRET}@db/x"}, {"database_url": HIDDEN}),
        ({"database_url": f"postgresql://me:{SECRET}/\n@db/x"}, {"database_url": HIDDEN}),
        ({"database_url": f"postgresql://db/x?password={SECRET}"}, {"database_url": HIDDEN}),
        ({"scenario_rules": {"a": f"http://x/?t={SECRET}"}}, {"scenario_rules": HIDDEN}),
    ],
)
def test_settings_that_are_not_at_their_defaults(given: dict[str, Any], told: dict[str, str]) -> None:
    found = changed_settings(load(**given))
    assert found == told
    assert SECRET not in str(found)


def test_a_start_has_one_time_and_its_version_last() -> None:
    rows: list[VersionRow] = []
    Versions("here", rows.append).started("1.2", load(fallback_below=0.6, engine_events=Path("e")), 5.0)
    assert rows == [
        VersionRow(5.0, "here", "", "settings.engine_events", "e"),
        VersionRow(5.0, "here", "", "settings.fallback_below", "0.6"),
        VersionRow(5.0, "here", "", "specwatch", "1.2"),
    ]


def test_an_upstream_is_told_when_it_is_known_and_when_it_changes() -> None:
    rows: list[VersionRow] = []
    made = Versions("here", rows.append)
    for now, upstream, found in (
        (1.0, "u", {"vllm": "1", "k": None}),
        (2.0, "u", {"vllm": "1", "k": 4}),
        (3.0, "w", {"vllm": "1", "k": 4}),
        (4.0, "u", {"vllm": None, "k": 4}),
        (5.0, "u", {"vllm": "2", "k": 4}),
        (6.0, "u", {"vllm": "1", "k": 4}),
    ):
        made.seen(upstream, found, now)
    assert [(row.at, row.upstream, row.name, row.value) for row in rows] == [
        (1.0, "u", "vllm", "1"),
        (2.0, "u", "k", "4"),
        (3.0, "w", "vllm", "1"),
        (3.0, "w", "k", "4"),
        (5.0, "u", "vllm", "2"),
        (6.0, "u", "vllm", "1"),
    ]
