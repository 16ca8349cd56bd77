import os

import pytest
import uvloop
from hypothesis import settings

# The same examples in every run: a change is judged by its own faults; `deep` looks for new ones.
settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=5_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in list(os.environ):
        if name.startswith("SPECWATCH_"):
            monkeypatch.delenv(name)
    # The default is a folder where the tests are run.
    monkeypatch.setenv("SPECWATCH_SPOOL", str(tmp_path_factory.getbasetemp() / "spool"))
