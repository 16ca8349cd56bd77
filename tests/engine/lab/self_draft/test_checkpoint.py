import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from specwatch_engine.lab.self_draft.checkpoint import (
    INDEX,
    WHOLE,
    CheckpointError,
    find,
    header,
    overwrite,
    read_json,
    shards,
    tensors,
    write,
)

FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def raw(tensors: dict[str, bytes], dtype: str = "U8", tail: bytes = b"") -> bytes:
    """A safetensors file with vectors of these bytes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, data in tensors.items():
        end = offset + len(data)
        entries[name] = {"dtype": dtype, "shape": [len(data)], "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(entries).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(tensors.values()) + tail


def folder_of(path: Path, tensors: dict[str, bytes]) -> Path:
    path.mkdir(exist_ok=True)
    (path / WHOLE).write_bytes(raw(tensors))
    return path


BYTES = st.dictionaries(st.text("abc.0_/", min_size=1, max_size=8), st.binary(max_size=40), min_size=1, max_size=8)


@FEW
@given(BYTES, st.integers(1, 100))
def test_all_bytes_arrive_in_as_many_files_as_are_needed(
    tmp_path_factory: Any, given: dict[str, bytes], limit: int
) -> None:
    source = folder_of(tmp_path_factory.mktemp("source"), given)
    out = tmp_path_factory.mktemp("out")
    heard: list[int] = []
    write(out, tensors(source), heard.append, limit)
    assert sum(heard) == sum(map(len, given.values()))
    found: dict[str, bytes] = {}
    for file in out.glob("*.safetensors"):
        # The format's own reader.
        found |= {name: value.tobytes() for name, value in load_file(file).items()}
    assert found == given
    assert {t.name for t in tensors(out)} == set(given)
    if (out / INDEX).exists():
        index = read_json(out / INDEX)
        assert set(index["weight_map"]) == set(given)
        assert index["metadata"]["total_size"] == sum(map(len, given.values()))


@given(BYTES.map(lambda found: raw(found)), st.data())
@FEW
def test_a_damaged_file_is_refused_or_read_within_its_bounds(tmp_path: Path, data: bytes, draw: Any) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    damaged = damaged[: draw.draw(st.integers(0, len(damaged)))]
    file = tmp_path / WHOLE
    file.write_bytes(damaged)
    try:
        found = header(file)
    except CheckpointError as error:
        assert str(file) in str(error)
        return
    assert all(t.start >= 0 and t.start + t.size <= len(damaged) for t in found)


BROKEN: dict[str, tuple[dict[str, bytes | str], str]] = {
    "nothing": ({}, "has no *.safetensors: fetch the model's weights too"),
    "pickles": ({"pytorch_model.bin": b"PK"}, "only pytorch_model.bin: write it once with save_pretrained"),
    "gguf": ({"model-q4.gguf": b"GGUF"}, "only model-q4.gguf: name the folder of the model that it was made of"),
    "adapter": ({"adapter_config.json": "{}", "adapter_model.safetensors": raw({"a": b"1"})}, "merge it into its base"),
    "lfs": ({WHOLE: "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}, "git lfs pull"),
    "empty": ({WHOLE: b""}, "is not a safetensors file"),
    "cut header": ({WHOLE: raw({"a": b"12345678"})[:20]}, "is not a safetensors file: its header claims"),
    "cut": ({WHOLE: raw({"a": b"12345678"})[:-3]}, "is cut: it has"),
    "no tensor": ({WHOLE: raw({})}, "hold no tensor"),
    "no map": ({INDEX: '{"weight_map": 3}'}, "has no weight_map"),
    "a shard away": ({INDEX: '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}'}, "fetch the model again"),
    "a shard outside": ({INDEX: '{"weight_map": {"a": "../model.safetensors"}}'}, "which is not in its folder"),
    "index of words": ({INDEX: "now"}, "is not JSON"),
    "twice": (
        {"model-1.safetensors": raw({"a": b"1"}), "model-2.safetensors": raw({"a": b"1"})},
        "a is in model-1.safetensors and model-2.safetensors",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_told_with_the_remedy(tmp_path: Path, name: str) -> None:
    files, expected = BROKEN[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError) as caught:
        tensors(tmp_path)
    assert expected in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_same_weights_by_their_makers_names_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(raw({"model.layers.0.w": b"1"}))
    (tmp_path / "consolidated.safetensors").write_bytes(raw({"layers.0.w": b"1"}))
    assert [t.name for t in tensors(tmp_path)] == ["model.layers.0.w"]


def test_shards_hold_what_they_may_or_one(tmp_path: Path) -> None:
    (tensor,) = tensors(folder_of(tmp_path, {"a": b"1" * 10}))
    sized = [tensor.named(str(at)) for at in range(5)]
    assert [len(part) for part in shards(sized, 20)] == [2, 2, 1]
    assert [len(part) for part in shards(sized, 3)] == [1] * 5


def test_bytes_are_put_in_the_place_of_others(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a": b"1234", "b": b"5678", "c": b"90"})
    overwrite(tmp_path, {"b": b"abcd"})
    found = {name: value.tobytes() for name, value in load_file(tmp_path / WHOLE).items()}
    assert found == {"a": b"1234", "b": b"abcd", "c": b"90"}
    with pytest.raises(ValueError, match="b has 4 bytes, not 3"):
        overwrite(tmp_path, {"b": b"abc"})


def test_a_model_is_found_by_folder_and_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    refs = tmp_path / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0123")
    (snapshot / "config.json").write_text("{}")
    assert find(str(snapshot)) == snapshot
    assert find("some/model") == snapshot
    with pytest.raises(CheckpointError, match="hf download some/other"):
        find("some/other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        find(str(tmp_path / "empty"))
