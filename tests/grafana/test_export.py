"""specwatch grafana export: the files, with the data source's uid of one's choice; nothing of others is overwritten."""

import json
from pathlib import Path

import pytest
import yaml
from specwatch_grafana import __main__, shipped
from support import grafana_package
from typer.testing import CliRunner, Result

DASHBOARDS = {"dashboards/specwatch-latency.json", "dashboards/specwatch-overview.json"}
PROVISIONING = {"provisioning/dashboards/specwatch.yaml", "provisioning/datasources/specwatch.yaml"}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = grafana_package.make(tmp_path / "package")
    monkeypatch.setattr(shipped.Shipped.__init__, "__defaults__", (made,))
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(__main__.app, ["export", *map(str, arguments)])


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_alerts_come_once_as_prometheus_rules_or_as_grafanas(tmp_path: Path) -> None:
    assert run(tmp_path / "a").exit_code == 0
    assert names(tmp_path / "a") == DASHBOARDS | PROVISIONING | {"rules.yml"}
    assert run(tmp_path / "b", "--alerts").exit_code == 0
    assert names(tmp_path / "b") == DASHBOARDS | PROVISIONING | {"provisioning/alerting/rules.yaml"}


def test_the_uid_is_put_in_place_of_ours_everywhere(root: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "a", "--datasource-uid", "own_prom").exit_code == 0
    source = yaml.safe_load((tmp_path / "a/provisioning/datasources/specwatch.yaml").read_text())
    assert source["datasources"][0]["uid"] == "own_prom"
    text = (tmp_path / "a/dashboards/specwatch-overview.json").read_text()
    assert json.loads(text)["templating"]["list"][0]["current"]["value"] == "own_prom"
    assert json.loads(text)["uid"] == "specwatch-overview"
    assert "specwatch-prom" not in text
    original = root / "dashboards/specwatch-overview.json"
    assert text == original.read_text().replace("specwatch-prom", "own_prom")


def test_grafana_is_told_where_dashboards_and_prometheus_are(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    assert run(folder, "--prometheus-url", "https://prom.example/x").exit_code == 0
    provider = yaml.safe_load((folder / "provisioning/dashboards/specwatch.yaml").read_text())
    assert provider["providers"][0]["options"]["path"] == str(folder / "dashboards")
    source = yaml.safe_load((folder / "provisioning/datasources/specwatch.yaml").read_text())
    assert source["datasources"][0]["url"] == "https://prom.example/x"
    assert run(folder, "--prometheus-url", "prom").exit_code == 2


def test_rules_of_the_other_kind_that_are_there_are_told_of(tmp_path: Path) -> None:
    assert run(tmp_path / "a").stderr == ""
    words = "is there as well: take one of the two out, else each alert comes twice\n"
    assert run(tmp_path / "a", "--alerts").stderr == f"{tmp_path / 'a/rules.yml'} {words}"
    assert run(tmp_path / "a").stderr == f"{tmp_path / 'a/provisioning/alerting'} {words}"


def test_a_second_export_changes_nothing(tmp_path: Path) -> None:
    first = run(tmp_path / "a")
    assert first.stdout.splitlines()[-1] == "written: 5 of 5"
    assert len(first.stdout.splitlines()) == 6
    assert run(tmp_path / "a").stdout == "unchanged\n"


def test_files_that_differ_are_not_overwritten_without_force(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    run(folder)
    mine = folder / "rules.yml"
    mine.write_text("groups: [mine]\n")
    (folder / "notes.txt").write_text("mine")
    (folder / "dashboards/specwatch-latency.json").unlink()
    result = run(folder)
    assert result.exit_code == 1
    assert result.stderr == (
        f"specwatch: nothing written, these are there and different (--force overwrites them): {mine}\n"
    )
    assert mine.read_text() == "groups: [mine]\n"
    assert not (folder / "dashboards/specwatch-latency.json").exists()
    forced = run(folder, "--force")
    assert forced.stdout.splitlines()[-1] == "written: 2 of 5"
    assert mine.read_text() == (root / "rules.yml").read_text()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_or_a_link_in_a_files_place_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a/rules.yml").mkdir(parents=True)
    assert f"--force overwrites them): {tmp_path / 'a/rules.yml'}" in run(tmp_path / "a").stderr
    assert run(tmp_path / "a", "--force").stderr == f"specwatch: {tmp_path / 'a/rules.yml'}: Is a directory\n"
    (tmp_path / "b").mkdir()
    (tmp_path / "b/rules.yml").symlink_to(tmp_path / "elsewhere")
    assert run(tmp_path / "b").exit_code == 1
    assert not (tmp_path / "elsewhere").exists()


def test_wrong_use(tmp_path: Path) -> None:
    assert run().exit_code == 2
    assert run(tmp_path / "a", "--datasource-uid", "no good").exit_code == 2
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file")
    assert (result.exit_code, result.stderr) == (1, f"specwatch: {tmp_path / 'file/dashboards'}: Not a directory\n")
