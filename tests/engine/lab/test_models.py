"""Names of models, against a folder, a cache of the hub, and a hub on loopback."""

import asyncio
from pathlib import Path

import pytest
from huggingface_hub import constants
from specwatch_engine.lab.__main__ import main
from specwatch_engine.lab.models import there
from specwatch_engine.lab.stand import StandError
from support.upstream import json_reply, replying, running

#: As the hub answers for a model that it does not have, or does not show.
NO_SUCH = json_reply({"error": "Repository not found"}, b"404 Not Found\r\nx-error-code: RepoNotFound")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLLM_USE_MODELSCOPE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    # Nothing listens there.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("models/good", "models/mistral", "models/empty"):
        Path(name).mkdir(parents=True)
    Path("models/good/config.json").write_text("{}")
    Path("models/mistral/params.json").write_text("{}")
    Path("weights.gguf").write_text("")


@pytest.mark.parametrize("model", ["models/good", "./models/mistral", "weights.gguf"])
def test_what_is_here_is_named_by_its_whole_path(model: str, tmp_path: Path) -> None:
    assert there("--draft", model) == str((tmp_path / model).resolve())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("models/empty", "models/empty has no config.json: name the folder"),
        ("models/goood", "there is no 'models/goood': correct the path"),
        ("./nowhere", "there is no './nowhere': correct the path"),
        ("a/b/c", "there is no 'a/b/c': correct the path"),
        ("no name", "it is no name that the hub could have"),
        ("org/name", r"the hub cannot be reached \(.+\): correct it, name a folder, or fetch"),
    ],
)
def test_what_is_not_is_told_by_its_option(model: str, words: str) -> None:
    with pytest.raises(StandError, match=f"^--draft: .*{words}"):
        there("--draft", model)


def test_a_hub_that_must_not_be_asked_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StandError, match=r"--target: org/name is neither .* HF_HUB_OFFLINE keeps the hub"):
        there("--target", "org/name")


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize(
    ("model", "file", "here"),
    [
        ("org/name", "config.json", ""),
        ("org/name", "config.json", "org"),
        ("org/name", "config.json", "org/other"),
        ("org/name", "params.json", ""),
        ("org/name:Q8_0", "name-Q8_0.gguf", ""),
        ("org/name:Q8_0", "name-Q8_0.gguf", "org"),
    ],
)
def test_what_is_in_the_cache_needs_no_hub(
    model: str, file: str, here: str, offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    Path(here).mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "cache/models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc" / file).write_text("{}")
    assert there("--target", model) == model


def test_a_snapshot_without_files_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "cache/models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc").mkdir(parents=True)
    with pytest.raises(StandError, match="the hub cannot be reached"):
        there("--target", "org/name")


@pytest.mark.parametrize("model", ["s3://bucket/model", "hf://org/name"])
def test_addresses_are_for_vllm(model: str) -> None:
    assert there("--target", model) == model


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (json_reply({"id": "org/name"}), None),
        # It may be a mirror that has files only.
        (json_reply({}, b"500 Internal Server Error"), None),
        (NO_SUCH, "the hub has no such model: correct the name, or log in"),
    ],
)
async def test_the_hub_is_asked_once(reply: bytes, words: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(replying(reply)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        if words is None:
            assert await asyncio.to_thread(there, "--target", "org/name:Q8_0") == "org/name:Q8_0"
        else:
            with pytest.raises(StandError, match=words):
                await asyncio.to_thread(there, "--target", "org/name")
    (head,) = hub.heads
    assert head.startswith(b"GET /api/models/org/name")


@pytest.mark.parametrize("command", ["qualify", "sweep", "soak"])
def test_a_mistyped_model_is_told_before_an_engine_is_started(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("prompts.jsonl").write_text("".join(f'{{"prompt": "{i}"}}\n' for i in range(60)))
    more = ["--minutes", "30"] if command == "soak" else []
    line = [command, "--target", "models/good", "--draft", "models/goood", "--prompts", "prompts.jsonl", "--out", "run"]
    assert main([*line, *more]) == 2
    assert "error: --draft: there is no 'models/goood'" in capsys.readouterr().err
    assert not Path("run/launch.log").exists()
