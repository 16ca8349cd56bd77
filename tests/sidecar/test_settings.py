"""Settings: precedence, and errors that name the setting and the remedy."""

from pathlib import Path

import pytest

from sidecar.settings import Settings, SettingsError, load


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "specwatch.yaml"
    file.write_text("listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\ndrain_s: 3\nengine: e.yaml\ncertificate: c.json\n")
    monkeypatch.setenv("SPECWATCH_LISTEN", "127.0.0.1:4")
    monkeypatch.setenv("SPECWATCH_ADMIN", "127.0.0.1:5")
    settings = load(file, listen="127.0.0.1:6")
    assert (settings.listen, settings.admin, settings.drain_s) == ("127.0.0.1:6", "127.0.0.1:5", 3)
    assert settings.baseline_share == 0.02
    assert (settings.engine, settings.certificate) == (tmp_path / "e.yaml", tmp_path / "c.json")
    assert load().engine is None  # nothing of the file stays behind


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("unknown", "baseline_shere: 1", "baseline_shere: no such setting; did you mean baseline_share?"),
        ("url with a path", "upstream: http://h/v1", "upstream: must be http://host:port"),
        ("no url", "upstream: h:1", "upstream: must be http://host:port"),
        ("address without a port", "listen: localhost", "listen: must be host:port"),
        ("share above a half", "baseline_share: 0.9", "baseline_share: Input should be less than or equal to 0.5"),
        ("pattern", "scenario_rules: {a: '('}", "scenario_rules: is no regular expression"),
        ("the same port twice", "listen: 127.0.0.1:8001", "need different addresses"),
        ("admin in the open", "admin: 0.0.0.0:8001", "set admin_token"),
        ("an empty path", "engine_events: ''", "engine_events: is empty: name a file"),
        ("an empty token", "admin_token: ''", "admin_token: is empty"),
        ("an empty token to read with", "admin_read_token: ''", "admin_read_token: is empty"),
        ("a token with the end of its line", 'admin_token: "hush\\n"', "admin_token: must be printable"),
        ("one token for both", "{admin_token: a, admin_read_token: a}", "must be another than admin_token"),
        ("an empty token of the engine", "engine_token: ''", "engine_token: must be printable ASCII"),
        ("a token of two lines", 'engine_token: "a\\nb"', "engine_token: must be printable ASCII"),
        ("a return that would not last", "fallback_above: 0.6", "fallback_above: 0.6 is below fallback_below, 0.65"),
        (
            "a dwell above its maximum",
            "fallback_dwell_s: 7200",
            "fallback_dwell_max_s: 3600 is below fallback_dwell_s, 7200: set both",
        ),
        ("more than the window", "fallback_min_requests: 101", "fallback_min_requests: is above fallback_window"),
        ("no such upstream", "fallback_actuator: upstream", "fallback_upstream is not set"),
        ("a cap without a token", "fallback_actuator: cap", "needs engine_token"),
        ("a mark for nothing", "fallback_below_by: {k=many: 0.5}", "names neither a model (model=NAME) nor a k"),
        (
            "critical above warning",
            "similarity_critical: 0.9",
            "similarity_critical: 0.9 is above similarity_warning, 0.82: set both",
        ),
        ("replays for nothing", "{replay_share: 0.1, similarity: none}", "replay_share: is of no use"),
        ("half of TLS", "tls_certificate: a.pem", "tls_key: is missing"),
        ("the other half", "tls_key: a.pem", "tls_certificate: is missing"),
        ("no mapping", "- a", "must hold settings as `name: value` lines"),
        ("no YAML", "a: [", "no valid YAML"),
    ],
)
def test_errors_name_the_setting(name: str, text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "specwatch.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(file)
    assert message in str(caught.value), name


def test_errors_name_where_the_value_came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--listen: must be host:port"):
        load(listen="x")
    monkeypatch.setenv("SPECWATCH_LISTEN", "x")
    with pytest.raises(SettingsError, match="SPECWATCH_LISTEN: must be host:port"):
        load()
    monkeypatch.delenv("SPECWATCH_LISTEN")
    monkeypatch.setenv("SPECWATCH_SCENARIOS", "billing,code")
    with pytest.raises(SettingsError, match="SPECWATCH_SCENARIOS: lists and maps are JSON"):
        load()
    monkeypatch.setenv("SPECWATCH_SCENARIOS", '["billing"]')
    assert load().scenarios == ["billing"]
    with pytest.raises(SettingsError, match="No such file"):
        load(tmp_path / "none.yaml")


def test_a_variable_that_is_no_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # What Kubernetes sets beside services named specwatch and specwatch-admin, and the dashboard's own.
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_API", "PORT", "PORT_8001_TCP", "PORT_8001_TCP_ADDR"):
        monkeypatch.setenv(f"SPECWATCH_{name}", "tcp://10.0.0.1:8001")
        monkeypatch.setenv(f"SPECWATCH_ADMIN_{name}", "tcp://10.0.0.1:8001")
    monkeypatch.setenv("SPECWATCH_API", "http://127.0.0.1:8001")
    monkeypatch.setenv("specwatch_drain_s", "3")
    assert load().drain_s == 3
    monkeypatch.setenv("SPECWATCH_BASELINE_SHERE", "0.1")
    with pytest.raises(SettingsError, match=r"_SHERE: no such setting; did you mean SPECWATCH_BASELINE_SHARE\?"):
        load()


def test_a_variable_names_the_file_where_no_flag_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "named.yaml", tmp_path / "flag.yaml"
    file.write_text("drain_s: 3\n")
    other.write_text("drain_s: 4\n")
    monkeypatch.setenv("SPECWATCH_CONFIG", str(file))
    assert (load().drain_s, load(other).drain_s) == (3, 4)
    monkeypatch.setenv("SPECWATCH_CONFIG", str(tmp_path / "none.yaml"))
    with pytest.raises(SettingsError, match=r"none\.yaml: No such file"):
        load()


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "specwatch.yaml"
    file.write_text("# nothing\n")
    assert load(file).listen == "127.0.0.1:8000"


def test_every_setting_is_in_the_readme_with_its_default() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name, field in Settings.model_fields.items():
        assert f"| `{name}` |" in readme, name
        if field.default is not None and not callable(field.default) and field.default_factory is None:
            row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}` |"))
            assert f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`" in row, row
