"""What is installed is what is here."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_is_installed():
    """A folder that pyproject.toml does not name works in a checkout alone."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {name: folder for name, folder in setuptools["package-dir"].items() if name}
    named = set()
    for package in setuptools["packages"]:
        first, _, rest = package.partition(".")
        named.add("/".join([folders.get(first, first), *filter(None, rest.split("."))]))
    rooms = ("sidecar", "alerts", "dashboard", "engine", "grafana")
    found = {path.parent.relative_to(ROOT).as_posix() for room in rooms for path in (ROOT / room).rglob("__init__.py")}
    assert found == named
