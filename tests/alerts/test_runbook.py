"""RUNBOOK.md: a section for each alert, and everything it tells to look at is there."""

import re
from pathlib import Path

import pytest
import typer.main
import yaml

from alerts.definitions import shipped
from alerts.readings import READINGS
from sidecar.api.params import FilterParams, PageParams, SeriesParams, WindowsParams
from sidecar.cli import app
from sidecar.settings import Settings

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "alerts" / "RUNBOOK.md").read_text()
SECTIONS = {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in RUNBOOK.split("\n## ")[1:]}
CODE = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", RUNBOOK)]


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    rules = yaml.safe_load((ROOT / "grafana" / "rules.yml").read_text())
    prometheus = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(SECTIONS) == set(shipped()) | prometheus
    assert len(SECTIONS) == RUNBOOK.count("\n## ")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_what_it_means_what_to_look_at_and_what_to_do(name: str) -> None:
    parts = re.findall(r"^\*\*(.+?)\*\* (.+?)(?=\n\n\*\*|\Z)", SECTIONS[name].strip(), re.MULTILINE | re.DOTALL)
    assert [title for title, _ in parts] == ["Means.", "Look at.", "Do."]
    assert all(len(text) > 20 for _, text in parts)


def test_other_alerts_it_names_are_there() -> None:
    assert set(re.findall(r"\bSpecwatch[A-Z]\w+", RUNBOOK)) == set(SECTIONS)


def test_commands_are_those_of_the_command_line() -> None:
    command = typer.main.get_command(app)
    named = [code.split()[1:] for code in CODE if code.startswith("specwatch ")]
    assert len(named) > 20
    for first, *rest in named:
        found = command.commands[first]  # type: ignore[attr-defined]
        if hasattr(found, "commands"):
            found = found.commands[rest[0]]
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options


def test_endpoints_and_their_parameters_are_those_of_the_api() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "sidecar" / "api").glob("*.py"))
    known = {name for model in (FilterParams, PageParams, SeriesParams, WindowsParams) for name in model.model_fields}
    paths = [code for code in CODE if code.startswith("/") and code != "/health"]
    assert len(paths) > 20
    for code in paths:
        path, _, query = code.partition("?")
        assert f'"{path.removeprefix("/api/v1")}"' in sources, code
        assert {part.split("=")[0] for part in query.split("&") if part} <= known, code


def test_names_are_settings_readings_or_metrics() -> None:
    metrics = (ROOT / "sidecar" / "metrics.py").read_text()
    # Of engine files, a column of rows, an outcome.
    others = {"speculation_max_batch_size", "acceptance_reason", "bad_gateway"}
    for code in CODE:
        if re.fullmatch(r"specwatch_\w+", code):
            assert f'"{code.removesuffix("_total")}"' in metrics, code
        elif re.fullmatch(r"[a-z]+(_[a-z]+)+", code):
            assert code in {*Settings.model_fields, *READINGS, *others, *_trigger_names()}, code


def _trigger_names() -> set[str]:
    return set(re.findall(r"[a-z_]+", Settings.model_fields["fallback_triggers"].description or ""))
