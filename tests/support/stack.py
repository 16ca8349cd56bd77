"""A real Prometheus and a real Alertmanager on loopback. Skips, with the reason, where they are not installed.

with alertmanager(folder / "am", {"hook": url}) as am:
    with prometheus(folder / "prom", {"specwatch": [admin]}, rules=[RULES], alertmanagers=[am]) as prom:
        prom.wait_for("up", lambda found: bool(found))
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml

from .chain import free_ports

#: Program -> the Debian package that has it.
_PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}

Found = TypeVar("Found")

#: One sample of an instant query: its labels (`__name__` too) and its value.
Sample = tuple[dict[str, str], float]


def missing(*programs: str) -> str | None:
    """Why a test that runs `programs` is skipped; None where all are installed. Fits `pytest.mark.skipif`."""
    away = [name for name in programs if shutil.which(name) is None]
    packages = sorted({_PACKAGES.get(name, name) for name in away})
    return f"not installed: {', '.join(away)} (Debian: {' '.join(packages)})" if away else None


def require(*programs: str) -> None:
    if reason := missing(*programs):
        pytest.skip(reason)


def run(*command: str | Path, cwd: Path | None = None, input_text: str | None = None) -> tuple[int, str]:
    """Exit code, and stdout and stderr together, of promtool or amtool; at most 60 s."""
    require(str(command[0]))
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, input=input_text, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@dataclass(frozen=True)
class Prometheus:
    url: str
    process: subprocess.Popen[bytes]
    config: Path

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """An instant query, by default of now; a scalar comes as one sample without labels."""
        data = self._get("query", query=expression, **({} if at is None else {"time": at}))
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def value(self, expression: str) -> float | None:
        """Of a query that gives one sample; None where it gives none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def alerts(self, state: str | None = None) -> list[dict[str, Any]]:
        """Those that are pending or firing: labels, annotations, state, activeAt, value."""
        return [each for each in self._get("alerts")["alerts"] if state in (None, each["state"])]

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.alerts("firing")}

    def groups(self) -> list[dict[str, Any]]:
        """Rule groups; each rule has `health` and `lastError`."""
        return self._get("rules")["groups"]  # type: ignore[no-any-return]

    def targets(self) -> list[dict[str, Any]]:
        return self._get("targets")["activeTargets"]  # type: ignore[no-any-return]

    def names(self) -> set[str]:
        """Of every metric it has."""
        return set(self._get("label/__name__/values"))

    def wait_for(
        self, expression: str, holds: Callable[[list[Sample]], bool] = bool, within: float = 30
    ) -> list[Sample]:
        """What the query gives once `holds` is true of it; by default, once it gives anything."""
        return wait_for(lambda: self.query(expression), holds, within)

    def reload(self) -> None:
        httpx.post(f"{self.url}/-/reload", timeout=10).raise_for_status()

    def _get(self, path: str, **query: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=query, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]


@dataclass(frozen=True)
class Alertmanager:
    url: str
    process: subprocess.Popen[bytes]
    config: Path

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def alerts(self, **query: str) -> list[dict[str, Any]]:
        """Those that are not resolved: labels, annotations, startsAt, fingerprint, status {state, silencedBy}.

        query: as `active="false"`, `filter='alertname="X"'`.
        """
        answer = httpx.get(f"{self.url}/api/v2/alerts", params=query, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def states(self) -> dict[str, str]:
        """alertname -> active, suppressed or unprocessed."""
        return {each["labels"]["alertname"]: each["status"]["state"] for each in self.alerts()}

    def silence(self, seconds: float = 600, **matchers: str) -> str:
        """Keep quiet what has all these labels. Gives the silence's id."""
        now = datetime.now(UTC)
        equal = [{"name": name, "value": value, "isRegex": False, "isEqual": True} for name, value in matchers.items()]
        body = {
            "matchers": equal,
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(seconds=seconds)).isoformat(),
            "createdBy": "tests",
            "comment": "tests",
        }
        answer = httpx.post(f"{self.url}/api/v2/silences", json=body, timeout=10)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["silenceID"])

    def expire(self, silence: str) -> None:
        httpx.delete(f"{self.url}/api/v2/silence/{silence}", timeout=10).raise_for_status()

    def wait_for(
        self, holds: Callable[[list[dict[str, Any]]], bool] = bool, within: float = 30
    ) -> list[dict[str, Any]]:
        return wait_for(self.alerts, holds, within)


def wait_for(look: Callable[[], Found], holds: Callable[[Found], bool], within: float = 30) -> Found:
    """What `look` gives once `holds` is true of it. Fails with the last of it after `within` seconds."""
    deadline = time.monotonic() + within
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {found}"
        time.sleep(0.1)
    return found


@contextmanager
def prometheus(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    *,
    rules: Sequence[Path] = (),
    alertmanagers: Sequence[Alertmanager] = (),
    interval: str = "1s",
    token: str | None = None,
    blocks: Path | None = None,
) -> Iterator[Prometheus]:
    """targets: job -> host:port, or URLs of admin ports. interval: of scrapes and evaluations, also of groups of
    `rules` that have one of their own (a group waits for up to its interval before its first evaluation).

    token: sent with each scrape. blocks: a folder of data that `promtool tsdb create-blocks-from` made.
    """
    require("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    jobs: list[dict[str, Any]] = [
        {"job_name": job, "static_configs": [{"targets": [where.removeprefix("http://") for where in addresses]}]}
        | ({"authorization": {"credentials": token}} if token is not None else {})
        for job, addresses in targets.items()
    ]
    copies = []
    for path in rules:
        loaded = yaml.safe_load(path.read_text())
        for group in loaded["groups"]:
            group.pop("interval", None)
        copies.append(folder / path.name)
        copies[-1].write_text(json.dumps(loaded))  # which is YAML too
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(path.resolve()) for path in copies],
        "scrape_configs": jobs,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [each.address for each in alertmanagers]}]}]},
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    with _serving(
        folder,
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={blocks or folder / 'data'}",
        "--storage.tsdb.retention.time=10y",
        "--web.enable-lifecycle",
    ) as (url, process):
        yield Prometheus(url, process, file)


@contextmanager
def alertmanager(
    folder: Path, receivers: Mapping[str, str], *, route: Mapping[str, Any] | None = None, **config: Any
) -> Iterator[Alertmanager]:
    """receivers: name -> URL of a webhook; the first gets what no route sends elsewhere.

    By default each alert is a group, sent at once and again after a change. config: more keys of its file.
    """
    require("prometheus-alertmanager")
    folder.mkdir(parents=True, exist_ok=True)
    quick = {"group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    first = next(iter(receivers), "nobody")
    whole = {
        "route": {"receiver": first, **quick, **(route or {})},
        "receivers": [
            {"name": name, "webhook_configs": [{"url": url, "send_resolved": True}]} for name, url in receivers.items()
        ]
        or [{"name": first}],
        **config,
    }
    file = folder / "alertmanager.yml"
    file.write_text(json.dumps(whole))
    # An empty cluster address: no gossip port.
    with _serving(
        folder,
        "prometheus-alertmanager",
        f"--config.file={file}",
        f"--storage.path={folder / 'data'}",
        "--cluster.listen-address=",
    ) as (url, process):
        yield Alertmanager(url, process, file)


@contextmanager
def _serving(folder: Path, *command: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    listen = [f"--web.listen-address=127.0.0.1:{port}", f"--web.external-url={url}", "--log.level=warn"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *listen], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 30
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/-/ready", timeout=5).status_code == 200:
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield url, process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
