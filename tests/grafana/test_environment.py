"""grafana-client and what it brings stay out of everything but a push, and leave everybody's urllib3 alone."""

import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
import urllib3

LOADS = """
import importlib, pkgutil, sys
for name in sys.argv[2:]:
    room = importlib.import_module(name)
    for module in pkgutil.walk_packages(room.__path__, name + "."):
        if module.name.rsplit(".", 1)[-1] not in sys.argv[1].split(","):
            importlib.import_module(module.name)
names = {name.split(".")[0] for name in sys.modules}
print(*sorted(names & {"grafana_client", "niquests", "urllib3_future", "grafana_foundation_sdk"}))
"""


def loaded(without: str, *rooms: str) -> str:
    command = [sys.executable, "-c", LOADS, without, *rooms]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


def test_urllib3_is_the_real_one() -> None:
    place = Path(sysconfig.get_path("purelib"))
    assert Path(urllib3.__file__) == place / "urllib3" / "__init__.py"
    assert urllib3.__version__ == metadata.version("urllib3")
    # The patch numbers of urllib3-future, which would be here in its place, begin at 900.
    assert int(urllib3.__version__.split(".")[2]) < 900
    assert not [path.name for path in place.glob("*.pth") if "urllib3_future" in path.read_text()]
    owned = metadata.distribution("urllib3-future").files or []
    assert not [path for path in owned if path.parts[0] == "urllib3"]


# env.py runs inside Alembic only; the pages run inside Streamlit only.
@pytest.mark.parametrize(
    ("without", "room"), [("env,__main__", "sidecar"), ("__main__", "alerts"), ("__main__,run", "dashboard")]
)
def test_a_room_loads_no_client_of_grafana(without: str, room: str) -> None:
    assert loaded(without, room) == ""


def test_the_command_loads_it_only_to_push() -> None:
    heavy = "{'grafana_client', 'niquests', 'grafana_foundation_sdk'}"
    program = f"import specwatch_grafana.__main__, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    program = program.replace("__main__, sys;", "__main__, sys, grafana_client;")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['grafana_client', 'niquests']"
