"""Digests of checkpoints: alike where nothing was changed, another where anything was; and never an exception."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.plugin import identity
from specwatch_engine.plugin.identity import digest, processor

GENERALIST = CHECKPOINTS / "draft_generalist"
WEIGHTS = "model.safetensors"
#: Bytes of each tensor of `small`.
SIZE = 10_000


def small(folder: Path, tensors: int = 3) -> Path:
    """A checkpoint of some tensors, each of SIZE bytes of its own number."""
    folder.mkdir(parents=True)
    header = json.dumps(
        {f"t{n}": {"dtype": "U8", "shape": [SIZE], "data_offsets": [n * SIZE, (n + 1) * SIZE]} for n in range(tensors)}
    ).encode()
    data = b"".join(bytes([n % 256]) * SIZE for n in range(tensors))
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "config.json").write_text('{"vocab_size": 8}')
    return folder


def test_a_copy_is_the_same_and_every_other_model_another(tmp_path: Path) -> None:
    shutil.copytree(GENERALIST, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("no part of it")
    assert digest(tmp_path / "copy") == digest(str(GENERALIST))
    found = {digest(CHECKPOINTS / name) for name in ("target", "draft_generalist", "draft_specialist")}
    assert len(found) == 3
    assert all(each is not None and len(each) == 16 and int(each, 16) >= 0 for each in found)


def _middle_of(tensor: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        with (folder / WEIGHTS).open("r+b") as file:
            file.seek(-SIZE * (3 - tensor) + SIZE // 2, 2)
            file.write(b"\xff")

    return change


CHANGES: dict[str, Callable[[Path], object]] = {
    "its configuration": lambda folder: (folder / "config.json").write_text('{"vocab_size": 9}'),
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "an index": lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
    "the first tensor": _middle_of(0),
    "a tensor within": _middle_of(1),
    "the last tensor": _middle_of(2),
    "another name of the file": lambda folder: (folder / WEIGHTS).rename(folder / "other.safetensors"),
    "another file": lambda folder: shutil.copy(folder / WEIGHTS, folder / "other.safetensors"),
    "more data": lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes() + b"\0"),
    "other names in the header": lambda folder: (folder / WEIGHTS).write_bytes(
        (folder / WEIGHTS).read_bytes().replace(b'"t1"', b'"x1"')
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_has_another_digest(name: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "model")
    before = digest(folder)
    CHANGES[name](folder)
    after = digest(folder)
    assert None not in (before, after)
    assert before != after


def headed(folder: Path, header: bytes) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)


NONE: dict[str, Callable[[Path], object]] = {
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "no folder": shutil.rmtree,
    "empty weights": lambda folder: (folder / WEIGHTS).write_bytes(b""),
    "a header beyond all size": lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 8),
    "a header that is no JSON": lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 4) + b"{{{{"),
    "a header that is no object": lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"[]"),
    "a place beyond all files": lambda folder: headed(folder, b'{"a":{"data_offsets":[%d,%d]}}' % (10**30, 10**30 + 1)),
    "an endless place": lambda folder: headed(folder, b'{"a":{"data_offsets":[1e400,1e400]}}'),
    "a tensor without its place": lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 8) + b'{"a":{}}'),
}


@pytest.mark.parametrize("name", NONE)
def test_what_cannot_be_read_has_none(name: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "model")
    NONE[name](folder)
    assert digest(folder) is None


def test_a_disk_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small(tmp_path / "model")
    monkeypatch.setattr(identity, "_LIMIT_S", -1.0)
    assert digest(folder) is None


def test_what_is_no_folder_has_none() -> None:
    assert digest(None) is None
    assert digest("meta-llama/Llama-3.3-70B-Instruct") is None
    assert digest(GENERALIST / WEIGHTS) is None


@given(content=st.binary(max_size=200))
def test_no_content_raises(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / WEIGHTS).write_bytes(content)
    assert digest(folder) is None or len(content) >= 10
    header = struct.pack("<Q", len(content)) + content
    (folder / WEIGHTS).write_bytes(header)
    digest(folder)


def test_of_a_file_of_very_many_tensors_only_so_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_MOST_SAMPLES", 4)
    folder = small(tmp_path / "model", tensors=40)
    before = digest(folder)
    seen = 0
    for tensor in range(40):
        with (folder / WEIGHTS).open("r+b") as file:
            file.seek(-SIZE * (40 - tensor) + SIZE // 2, 2)
            file.write(b"\xff")
        seen += digest(folder) != before
        before = digest(folder)
    assert seen == 4


def test_the_processor_is_named_with_its_threads() -> None:
    name, _, threads = processor().removeprefix("cpu: ").rpartition(" x ")
    assert name
    assert int(threads) >= 1
