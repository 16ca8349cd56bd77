"""README's examples are files that work."""

import re
from pathlib import Path

from alerts.check import run_tests
from alerts.config import load

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(start: str) -> str:
    """The YAML block of README that has a line beginning with `start`."""
    (found,) = [text for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if f"\n{start}" in f"\n{text}"]
    return str(found)


def test_the_example_of_rules_receivers_and_routes_and_of_their_test(tmp_path: Path) -> None:
    for name in ("chat", "hook", "grafana"):
        (tmp_path / name).write_text("json://localhost" if name == "chat" else "a-secret")
    text = block("receivers:").replace("/run/secrets", str(tmp_path)).replace("/opt/retrain.sh", "/bin/true")
    (tmp_path / "alerts.yaml").write_text(text)
    config = load(tmp_path / "alerts.yaml")
    assert [receiver.name for receiver in config.receivers] == ["oncall", "am", "hook", "marks", "retrain"]
    tests = tmp_path / "tests.yaml"
    tests.write_text(block("config: alerts.yaml"))
    assert not run_tests(tests)
    tests.write_text(block("config: alerts.yaml").replace("at: 45s, alerts: []", "at: 2m15s, alerts: []"))
    assert run_tests(tests)


def test_readme_lists_every_shipped_alert_with_its_severity() -> None:
    for rule in load(None).rules:
        (row,) = re.findall(rf"^\| {rule.severity} \|(.*)\|$", README, re.MULTILINE)
        assert f"`{rule.alert.removeprefix('Specwatch')}`" in row
