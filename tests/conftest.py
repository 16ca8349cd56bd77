import os

import pytest
import uvloop
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# The same examples in every run: a change is judged by its own faults; `deep` looks for new ones.
settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=5_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


class _Scheduling(LoadFileScheduling):
    """A file in one process, as its tests share servers; those with real engines in one, as these share the cores."""

    def _split_scope(self, nodeid: str) -> str:
        return "e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    return _Scheduling(config, log)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in list(os.environ):
        if name.startswith("SPECWATCH_"):
            monkeypatch.delenv(name)
    # The default is a folder where the tests are run.
    monkeypatch.setenv("SPECWATCH_SPOOL", str(tmp_path_factory.getbasetemp() / "spool"))
