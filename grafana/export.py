"""The files of this package for a Grafana and a Prometheus elsewhere: dashboards, provisioning, rules."""

import json
from dataclasses import dataclass
from pathlib import Path

from .shipped import Shipped


class InTheWay(Exception):
    """Files that are there and are different; nothing has been written."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(", ".join(map(str, paths)))
        self.paths = paths


@dataclass(frozen=True)
class Written:
    path: Path
    changed: bool


def contents(shipped: Shipped, folder: Path, *, alerts: bool, prometheus_url: str | None) -> dict[str, str]:
    """Text by path below the folder. Alerts come once: as Grafana's rules with `alerts`, else as Prometheus's.

    Grafana is told to read the dashboards from there, and the data source is at `prometheus_url`; None: as shipped.
    """
    patterns = ["dashboards/*.json", "provisioning/dashboards/*", "provisioning/datasources/*"]
    patterns.append("provisioning/alerting/*" if alerts else "rules.yml")
    paths = [path for pattern in patterns for path in sorted(shipped.root.glob(pattern)) if path.is_file()]
    texts = {path.relative_to(shipped.root).as_posix(): shipped.text(path) for path in paths}
    places = {
        "/etc/grafana/dashboards": str(folder.absolute() / "dashboards"),
        "http://prometheus:9090": prometheus_url,
    }
    for name in [name for name in texts if name.startswith("provisioning/d")]:
        for shipped_as, wanted in places.items():
            texts[name] = texts[name].replace(f" {shipped_as}\n", f" {json.dumps(wanted or shipped_as)}\n")
    return texts


def export(
    shipped: Shipped,
    folder: Path,
    *,
    alerts: bool = False,
    prometheus_url: str | None = None,
    force: bool = False,
) -> list[Written]:
    """Writes them below `folder`. Raises InTheWay before it writes anything, OSError where it cannot."""
    made = contents(shipped, folder, alerts=alerts, prometheus_url=prometheus_url)
    texts = {folder / name: text for name, text in made.items()}
    different = [path for path, text in texts.items() if not _has(path, text) and (path.exists() or path.is_symlink())]
    if different and not force:
        raise InTheWay(different)
    written = []
    for path, text in texts.items():
        changed = not _has(path, text)
        if changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        written.append(Written(path, changed))
    return written


def _has(path: Path, text: str) -> bool:
    try:
        return path.is_file() and path.read_bytes() == text.encode()
    except OSError:
        return False
