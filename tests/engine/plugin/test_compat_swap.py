"""The worker's part of a swap: what is staged, what is refused, and what is put in place."""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

import pytest
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.plugin.compat import draft

GENERALIST, SPECIALIST = CHECKPOINTS / "draft_generalist", CHECKPOINTS / "draft_specialist"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One whose draft model was loaded from the generalist; what was put in place is its model's `loaded`."""
    model = Thing(loaded=None)
    drafter = Thing(_create_draft_vllm_config=lambda: "the draft model's configuration")
    made = Thing(
        model_runner=Thing(get_draft_model=lambda: model, drafter=drafter, device=Thing(type="cuda")),
        vllm_config=Thing(speculative_config=Thing(draft_model_config=Thing(model=str(GENERALIST)))),
        current=[],
    )

    @contextlib.contextmanager
    def current(config: Any) -> Iterator[None]:
        made.current.append(config)
        yield

    def reload(config: Any, model: Any, *, weights_iterator: Any, **_: Any) -> None:
        model.loaded = dict(weights_iterator)

    internals = {"set_current_vllm_config": current, "reload_weights": reload}
    find = draft.find
    monkeypatch.setattr(draft, "find", lambda module, name: internals.get(name) or find(module, name))
    monkeypatch.setattr(draft, "_checksum", lambda worker: "none" if model.loaded is None else "of the new")
    return made


def settled(worker: Any) -> dict[str, Any]:
    until = time.monotonic() + 30
    while (state := draft.staged(worker)).get("busy"):
        assert time.monotonic() < until
        time.sleep(0.005)
    return state


def test_a_checkpoint_is_staged_and_then_put_in_place(worker: Any) -> None:
    assert draft.staged(worker) == {}
    assert draft.stage(worker, str(SPECIALIST)) == ""
    staged = settled(worker)
    assert staged.keys() == {"busy", "checkpoint", "before", "stage_s"}
    assert worker.model_runner.get_draft_model().loaded is None
    assert draft.load(worker, str(SPECIALIST)) == str(SPECIALIST)
    assert worker.current == ["the draft model's configuration"]
    assert "model.embed_tokens.weight" in worker.model_runner.get_draft_model().loaded
    state = settled(worker)
    assert (state["before"], state["after"], state["commit_s"] >= 0) == ("none", "of the new", True)
    # Once: what was put in place is not kept.
    with pytest.raises(RuntimeError, match="is not staged"):
        draft.load(worker, str(SPECIALIST))


def test_only_what_was_staged_is_put_in_place(worker: Any) -> None:
    draft.stage(worker, str(SPECIALIST))
    settled(worker)
    with pytest.raises(RuntimeError, match="/another is not staged"):
        draft.load(worker, "/another")
    assert worker.model_runner.get_draft_model().loaded is None


def test_weights_that_are_cut_are_found_while_staging(worker: Any, tmp_path: Path) -> None:
    """Their header fits, so that only reading them tells."""
    shutil.copytree(SPECIALIST, tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert draft.stage(worker, str(tmp_path / "cut")) == ""
    assert "SafetensorError" in settled(worker)["error"]
    with pytest.raises(RuntimeError, match="is not staged"):
        draft.load(worker, str(tmp_path / "cut"))
    # The next one starts afresh.
    assert draft.stage(worker, str(SPECIALIST)) == ""
    assert "error" not in settled(worker)


def test_what_cannot_be_swapped_is_refused(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "another shape" in draft.stage(worker, str(CHECKPOINTS / "target"))
    go = threading.Event()
    monkeypatch.setattr(draft, "_weights", lambda folder: iter([("x", go.wait(30))]))
    assert draft.stage(worker, str(SPECIALIST)) == ""
    assert draft.stage(worker, str(SPECIALIST)) == "another swap is under way"
    go.set()
    settled(worker)
    worker.model_runner.get_draft_model = lambda: None
    assert "no draft model" in draft.stage(worker, str(SPECIALIST))


def test_a_checksum_that_fails_does_not_undo_the_swap(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draft.stage(worker, str(SPECIALIST))
    settled(worker)
    monkeypatch.setattr(draft, "_checksum", lambda worker: 1 / 0)
    draft.load(worker, str(SPECIALIST))
    state = settled(worker)
    assert "error" not in state
    assert "after" not in state
