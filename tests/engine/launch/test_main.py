"""The command: what it prints, what it never imports, its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from specwatch_engine.launch import __main__ as command

FILE = "model: a/b\nserved_model_name: [chat, b]\nspeculative_model: c/d\nnum_speculative_tokens: 4\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    return path


def test_describe_is_one_json_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["-c", str(file), "--describe", "--port", "8300", "--log", "/logs/e.log"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    described = json.loads(out)
    described.pop("engine_version")
    assert described == {
        "url": "http://127.0.0.1:8300",
        "model": "chat",
        "draft_model": "c/d",
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "max_num_seqs": 256,
        "log": "/logs/e.log",
        "target_model": "a/b",
        "request_timeout_s": 300.0,
    }


def test_describe_works_without_an_engine(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> command.Engine:
        raise command.EngineMissing

    monkeypatch.setattr(command, "installed_engine", missing)
    assert command.main(["-c", str(file), "--describe"]) == 0
    assert json.loads(capsys.readouterr().out)["engine_version"] is None
    assert command.main(["-c", str(file)]) == 2
    assert "specwatch[engine-cpu]" in capsys.readouterr().err


def test_describe_needs_no_fetched_models(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("model: ../later/target\n")
    assert command.main(["-c", str(file), "--describe"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["target_model"] == str(file.parent.parent / "later/target")
    assert described["model"] == "target"
    assert command.main(["-c", str(file), "--dry-run"]) == 2


def test_dry_run_prints_the_command_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["-c", str(file), "--dry-run"]) == 0
    assert "vllm serve a/b --host 127.0.0.1 --port 8200 --served-model-name chat b" in capsys.readouterr().out


def test_a_wrong_file_is_status_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("modl: x\nport: x\n")
    assert command.main(["-c", str(file)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 3
    assert all(line.startswith(str(file)) for line in err)


def test_neither_vllm_nor_torch_is_imported_to_describe(file: Path) -> None:
    code = (
        "import sys; from specwatch_engine.launch.__main__ import main\n"
        f"main(['-c', {str(file)!r}, '--describe'])\n"
        "assert not {'vllm', 'torch', 'rich'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


START = "INFO:     Application startup complete.\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (MEMORY, "gpu-out-of-memory"),
        (START + "serving\n" + MEMORY, "gpu-out-of-memory"),
        (MEMORY + START + "serving\n", "unknown"),
        ("vllm: error: unrecognized arguments: --per-request-spec-decode-metrics\n", "unknown-argument"),
        ("", "unknown"),
        ("x" * (command.MOST_LOG_BYTES + 10) + "\n" + MEMORY, "gpu-out-of-memory"),
        (MEMORY + "x" * command.MOST_LOG_BYTES, "unknown"),
    ],
    ids=["at start", "while serving", "got over", "argument", "empty", "long", "long ago"],
)
def test_a_log_is_diagnosed_with_nothing_running(
    log: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engine.log"
    path.write_text(log)
    assert command.main(["--diagnose", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["name"] == name
    assert set(found) == {"name", "cause", "evidence", "remedy", "permanent"}
    assert bool(found["evidence"]) == (name != "unknown")


def test_a_log_that_is_not_there_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--diagnose", str(tmp_path / "none.log")]) == 2
    assert "none.log: No such file" in capsys.readouterr().err
