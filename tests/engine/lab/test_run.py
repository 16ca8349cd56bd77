import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specwatch_engine.lab import run as runs
from specwatch_engine.lab.run import Run, RunError, State, as_json

OPTIONS = {"number": 10, "prompts": "/p.jsonl", "concurrency": [1, 4], "json": True, "out": "x"}


def test_a_new_run_tells_what_it_is(tmp_path: Path) -> None:
    run = Run.create("qualify", OPTIONS, tmp_path / "r")
    told = json.loads((tmp_path / "r/run.json").read_text())
    assert set(told) == {
        *("id", "kind", "state", "started_at", "ended_at", "verdict", "summary", "options", "fingerprint", "version")
    }
    assert (told["kind"], told["state"], told["ended_at"]) == ("qualify", "running", None)
    assert told["id"] == run.id
    # How it is told is no part of what it measures.
    assert told["options"] == {"number": 10, "prompts": "/p.jsonl", "concurrency": [1, 4]}
    run.save(state=State.DONE, verdict="qualified", fingerprint={"k": 4}, summary={"title": "t"})
    told = json.loads((tmp_path / "r/run.json").read_text())
    assert told["ended_at"] >= told["started_at"]
    assert (told["verdict"], told["fingerprint"], told["summary"]) == ("qualified", {"k": 4}, {"title": "t"})
    with pytest.raises(TypeError, match="verdikt"):
        run.save(verdikt="qualified")
    assert set(os.listdir(tmp_path / "r")) == {"run.json", ".lock"}


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [Run.create("sweep", {}) for _ in range(3)]
    assert len({run.folder for run in made}) == 3
    assert all(run.folder.parent == tmp_path / ".run/lab" for run in made)
    assert len({run.id for run in made}) == 3


def test_a_folder_with_a_run_is_not_taken_again(tmp_path: Path) -> None:
    Run.create("qualify", {}, tmp_path).close()
    with pytest.raises(RunError, match="--resume"):
        Run.create("qualify", {}, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"--out: .*file/r cannot be written"):
        Run.create("qualify", {}, tmp_path / "file/r")


# ---- resume


def test_a_run_goes_on_with_its_own_options(tmp_path: Path) -> None:
    first = Run.create("qualify", OPTIONS, tmp_path)
    first.append("replies", {"n": 1})
    first.save(state=State.INTERRUPTED)
    first.close()
    again = Run.resume(tmp_path, {"number": 10, "resume": "x"}, kind="qualify")
    assert again.id == first.id
    assert again.options["concurrency"] == [1, 4]
    assert (again.told["state"], again.told["ended_at"]) == ("running", None)
    again.append("replies", {"n": 2})
    assert again.rows("replies") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("given_now", "words"),
    [
        ({"number": 20}, "--number: the run has 10, not 20"),
        ({"concurrency": [1]}, r"--concurrency: the run has \[1, 4\], not \[1\]"),
        ({"sign_off": "me"}, '--sign-off: the run has none, not "me"'),
    ],
)
def test_another_option_is_refused_by_its_name(tmp_path: Path, given_now: dict[str, Any], words: str) -> None:
    Run.create("qualify", OPTIONS, tmp_path).close()
    with pytest.raises(RunError, match=words):
        Run.resume(tmp_path, given_now)
    # What was refused has changed nothing, and holds nothing.
    Run.resume(tmp_path).close()


def test_what_may_change_does(tmp_path: Path) -> None:
    Run.create("qualify", OPTIONS, tmp_path).close()
    run = Run.resume(tmp_path, {"sign_off": "me"}, may_change=frozenset(("sign_off",)))
    assert json.loads((tmp_path / "run.json").read_text())["options"]["sign_off"] == "me"
    run.close()


def test_a_run_that_is_done_stays_so_until_it_measures_again(tmp_path: Path) -> None:
    run = Run.create("qualify", OPTIONS, tmp_path)
    run.save(state=State.DONE, verdict="qualified")
    ended = run.told["ended_at"]
    run.close()
    again = Run.resume(tmp_path)
    assert (again.told["state"], again.told["ended_at"], again.told["verdict"]) == ("done", ended, "qualified")
    again.reopen()
    told = json.loads((tmp_path / "run.json").read_text())
    assert (told["state"], told["ended_at"], told["verdict"]) == ("running", None, None)
    again.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no run in"),
        ("{", "not what the lab writes"),
        ("[]", "not what the lab writes"),
        ('{"id": "a", "kind": "qualify", "state": "done"}', "not what the lab writes"),
        ('{"id": 1, "kind": "qualify", "state": "done", "options": {}}', "not what the lab writes"),
    ],
)
def test_a_folder_without_a_run_is_said_to_have_none(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match=words):
        Run.resume(tmp_path)


def test_a_run_of_another_command_is_refused(tmp_path: Path) -> None:
    Run.create("sweep", {}, tmp_path).close()
    with pytest.raises(RunError, match="a run of sweep"):
        Run.resume(tmp_path, kind="qualify")


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    run = Run.create("qualify", {}, tmp_path)
    code = (
        "import sys; from pathlib import Path; from specwatch_engine.lab.run import Run; Run.resume(Path(sys.argv[1]))"
    )
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"is being run by process {os.getpid()}" in other.stderr
    run.close()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


# ---- rows

ROWS = st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.booleans() | st.lists(st.text())))


@settings(max_examples=40)  # each writes files, and syncs them
@given(rows=ROWS, cut=st.integers(0, 200))
def test_however_a_file_of_rows_was_cut_the_whole_ones_stay(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("r")
    run = Run.create("soak", {}, folder)
    for row in rows:
        run.append("rows", row)
    assert run.rows("rows") == [as_json(row) for row in rows]
    run.close()
    path = folder / "rows.jsonl"
    whole = path.read_bytes() if path.exists() else b""
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    again = Run.resume(folder)
    left = kept.count(b"\n")
    assert again.rows("rows") == [as_json(row) for row in rows[:left]]
    again.append("rows", {"after": 1})
    assert again.rows("rows") == [*(as_json(row) for row in rows[:left]), {"after": 1}]
    again.close()


def test_rows_that_are_none_are_named(tmp_path: Path) -> None:
    run = Run.create("soak", {}, tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\nnonsense\n{"b": 2}\n')
    with pytest.raises(RunError, match=r"rows\.jsonl:2: "):
        run.rows("rows")
    assert run.rows("others") == []


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": math.nan, "b": -math.inf, "c": 0.5}, {"a": None, "b": None, "c": 0.5}),
        ({"path": Path("/a/b")}, {"path": "/a/b"}),
        ({"state": State.DONE}, {"state": "done"}),
        ((1, 2), [1, 2]),
        ({"name": "half \udc80"}, {"name": "half ?"}),
        ({"seed": 10**30}, {"seed": 10**30}),
    ],
)
def test_values_become_what_json_has(value: Any, plain: Any) -> None:
    assert as_json(value) == plain


def test_a_file_of_the_run_is_whole_or_as_before(tmp_path: Path) -> None:
    run = Run.create("soak", {}, tmp_path)
    path = run.write("report.md", "one")
    assert path == tmp_path / "report.md"
    assert run.write("report.md", "zwei 你").read_text() == "zwei 你"
    assert runs.read(tmp_path)["kind"] == "soak"
