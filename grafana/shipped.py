"""What this package brings for a Grafana: dashboards, alert rule groups, provisioning files."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

#: The data source's uid in all files of this package.
DATASOURCE = "specwatch-prom"
FOLDER = "specwatch"

HERE = Path(__file__).parent

_THE_UID = re.compile(rf"(?<![\w-]){DATASOURCE}(?![\w-])")


class NotShipped(Exception):
    """A file that belongs to the package is not there, or is not what it should be; the message names it."""


def content(model: Mapping[str, Any]) -> dict[str, Any]:
    """A dashboard without what each Grafana numbers itself."""
    return {key: value for key, value in model.items() if key not in ("id", "version")}


@dataclass(frozen=True)
class Dashboard:
    uid: str
    model: dict[str, Any]

    @property
    def digest(self) -> str:
        """Of the content: 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.model, sort_keys=True).encode()).hexdigest()[:16]


class Shipped:
    """The files below `root`, with `datasource` in place of the uid they were written with."""

    def __init__(self, root: Path = HERE, *, datasource: str = DATASOURCE) -> None:
        self.root = root
        self.datasource = datasource

    def text(self, path: Path) -> str:
        try:
            return _THE_UID.sub(self.datasource, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeError):
            raise NotShipped(f"{path.relative_to(self.root)} cannot be read: install specwatch again") from None

    def dashboards(self) -> list[Dashboard]:
        paths = sorted((self.root / "dashboards").glob("*.json"))
        if not paths:
            raise NotShipped("dashboards/ has no dashboards: install specwatch again")
        models = [self._json(path) for path in paths]
        return [Dashboard(model["uid"], content(model)) for model in models]

    def datasource_settings(self) -> dict[str, Any]:
        """The data source as the HTTP API takes it, without its URL."""
        for path in sorted((self.root / "provisioning" / "datasources").glob("*.y*ml")):
            for one in yaml.safe_load(self.text(path)).get("datasources", ()):
                if one.get("uid") == self.datasource:
                    return {k: one[k] for k in ("name", "uid", "type", "access", "jsonData") if k in one}
        raise NotShipped("provisioning/datasources/ has no data source: install specwatch again")

    def rule_groups(self) -> list[dict[str, Any]]:
        """Alert rule groups as the HTTP API takes them."""
        groups: list[dict[str, Any]] = self._json(self.root / "provisioning" / "rule-groups.json")
        return groups

    def _json(self, path: Path) -> Any:
        try:
            return json.loads(self.text(path))
        except ValueError:
            raise NotShipped(f"{path.relative_to(self.root)} is no JSON: install specwatch again") from None
