"""Which checkpoint may take another's place: told from files alone, and never by an exception."""

import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo.prepare import misalign
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.plugin.checkpoint import differences, headers

GENERALIST, SPECIALIST = CHECKPOINTS / "draft_generalist", CHECKPOINTS / "draft_specialist"
TENSORS: dict[str, tuple[str, list[int]]] = {
    "embed": ("BF16", [8, 2]),
    "up": ("BF16", [2, 4]),
    "down": ("BF16", [4, 2]),
}
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def header_of(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    entries = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    content = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return struct.pack("<Q", len(content)) + content


def checkpoint(folder: Path, tensors: dict[str, tuple[str, list[int]]] = TENSORS) -> Path:
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(header_of(tensors))
    (folder / CONFIG).write_text('{"vocab_size": 8, "num_attention_heads": 2}')
    added = [{"id": 2, "content": "<|end|>"}]
    (folder / TOKENIZER).write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": added}))
    return folder


def _edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps(change(json.loads(file.read_text()))))

    return edit


def _write(name: str, content: bytes | str) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def _weights(**tensors: Any) -> Callable[[Path], object]:
    """The tensors as given; None takes one away."""
    kept = {name: entry for name, entry in {**TENSORS, **tensors}.items() if entry is not None}
    return _write(WEIGHTS, header_of(kept))


def _shards(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    for number, (name, entry) in enumerate(TENSORS.items()):
        (folder / f"model-{number:05d}-of-00003.safetensors").write_bytes(header_of({name: entry}))


def _vocabulary(vocabulary: Any, added: Any = ()) -> Callable[[Path], object]:
    return _write(TOKENIZER, json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))


def _nothing(folder: Path) -> None:
    pass


FITS: dict[str, Callable[[Path], object]] = {
    "the same": _nothing,
    "in shards": _shards,
    "without a configuration": lambda folder: (folder / CONFIG).unlink(),
    "without a tokenizer": lambda folder: (folder / TOKENIZER).unlink(),
    "a tokenizer that is no map": _vocabulary([["a", -1.0], ["b", -2.0]]),
    "a configuration without a vocabulary": _write(CONFIG, "{}"),
    "an added token that the vocabulary has too": _vocabulary(
        {"a": 0, "b": 1, "<|end|>": 2}, [{"id": 2, "content": "<|end|>"}]
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_a_checkpoint_that_fits_has_no_difference(name: str, tmp_path: Path) -> None:
    present, wanted = checkpoint(tmp_path / "old"), checkpoint(tmp_path / "new")
    FITS[name](wanted)
    assert differences(present, wanted) == ""
    assert differences(wanted, present) == ""


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "is no folder on the engine's machine"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "has no *.safetensors file"),
    "weights of another kind": (
        lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
        "has no *.safetensors file",
    ),
    "another shape": (
        _weights(up=("BF16", [2, 8])),
        "its weights have another shape: up is BF16 2x8, the running model's is BF16 2x4",
    ),
    "another dtype": (_weights(up=("F32", [2, 4])), "up is F32 2x4, the running model's is BF16 2x4"),
    "a tensor less": (_weights(up=None), "its weights have another shape: up is missing"),
    "a tensor more": (_weights(bias=("BF16", [4])), "bias is not in the running model"),
    "five differences": (
        _weights(embed=None, up=None, down=("F32", [4, 2]), x=("F32", []), y=("F32", [])),
        "embed is missing; up is missing; x is not in the running model; and 2 more",
    ),
    "another size of the vocabulary": (
        _edit(CONFIG, lambda config: config | {"vocab_size": 9}),
        "its config.json describes another model: vocab_size is 9, the running model's is 8",
    ),
    "other heads": (
        _edit(CONFIG, lambda config: config | {"num_attention_heads": 99}),
        "its config.json describes another model: num_attention_heads is 99",
    ),
    "tokens moved": (
        _vocabulary({"a": 1, "b": 0}, [{"id": 2, "content": "<|end|>"}]),
        "its tokenizer gives tokens another id: 'a' is 1, the running model's is 0; 'b' is 0, the running model's is 1",
    ),
    "an added token moved": (
        _vocabulary({"a": 0, "b": 1}, [{"id": 3, "content": "<|end|>"}]),
        "'<|end|>' is 3, the running model's is 2",
    ),
    "a token less": (_vocabulary({"a": 0, "b": 1}), "'<|end|>' is missing, the running model's is 2"),
    "a token more": (
        _vocabulary({"a": 0, "b": 1, "c": 3}, [{"id": 2, "content": "<|end|>"}]),
        "'c' is 3, the running model's is missing",
    ),
    "an empty file": (_write(WEIGHTS, b""), f"{WEIGHTS} is not a safetensors file"),
    "cut in the length": (_write(WEIGHTS, header_of(TENSORS)[:5]), f"{WEIGHTS} is not a safetensors file"),
    "cut in the header": (_write(WEIGHTS, header_of(TENSORS)[:-9]), f"{WEIGHTS} is not a safetensors file"),
    "an absurd length": (_write(WEIGHTS, b"\xff" * 64), "its header claims 18446744073709551615 bytes"),
    "a length of 0": (_write(WEIGHTS, bytes(8)), f"{WEIGHTS} is not a safetensors file"),
    "a header that is no JSON": (_write(WEIGHTS, struct.pack("<Q", 4) + b"{{{{"), "is not a safetensors file"),
    "a header that is no UTF-8": (_write(WEIGHTS, struct.pack("<Q", 2) + b"\xc3\x28"), "is not a safetensors file"),
    "a header that is a list": (_write(WEIGHTS, struct.pack("<Q", 2) + b"[]"), "is not a safetensors file"),
    "a header that is a number": (_write(WEIGHTS, struct.pack("<Q", 1) + b"1"), "is not a safetensors file"),
    "a header without end": (
        _write(WEIGHTS, struct.pack("<Q", 90_000) + b"[" * 90_000),
        f"{WEIGHTS} is not a safetensors file",
    ),
    "a tensor without a shape": (
        _write(WEIGHTS, struct.pack("<Q", 22) + b'{"up":{"dtype":"F32"}}'),
        f"{WEIGHTS} is not a safetensors file: 'shape'",
    ),
    "a tensor that is a number": (_write(WEIGHTS, struct.pack("<Q", 8) + b'{"up":1}'), "is not a safetensors file"),
    "a header of no tensor": (_write(WEIGHTS, struct.pack("<Q", 2) + b"{}"), "has no *.safetensors file"),
    "one of two files broken": (_write("z.safetensors", b"x"), "z.safetensors is not a safetensors file"),
    "a folder in place of the file": (lambda folder: (folder / "x.safetensors").mkdir(), "x.safetensors"),
    "a configuration that is no JSON": (_write(CONFIG, "{"), f"{CONFIG} is not JSON"),
    "a tokenizer that is no JSON": (_write(TOKENIZER, b"\xff"), f"{TOKENIZER} is not JSON"),
    "a tokenizer without end": (_write(TOKENIZER, "[" * 90_000), f"{TOKENIZER} is not JSON"),
    "a tokenizer without a model": (_write(TOKENIZER, '{"model": null}'), f"{TOKENIZER} is not a tokenizer's"),
    "added tokens without ids": (_vocabulary({"a": 0}, [{"content": "x"}]), f"{TOKENIZER} is not a tokenizer's"),
    "added tokens that are none": (_vocabulary({"a": 0}, [7]), f"{TOKENIZER} is not a tokenizer's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused_with_what_differs(name: str, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    present, wanted = checkpoint(tmp_path / "old"), checkpoint(tmp_path / "new")
    change(wanted)
    told = differences(present, wanted)
    assert words in told
    assert len(told) < 500


def test_a_running_model_that_was_not_loaded_from_safetensors_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    told = differences(tmp_path / "old", checkpoint(tmp_path / "new"))
    assert told == f"the running draft model's checkpoint {tmp_path / 'old'} has no *.safetensors file to compare with"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    wanted = checkpoint(tmp_path / "new")
    (wanted / WEIGHTS).unlink()
    (wanted / WEIGHTS).symlink_to(wanted / "gone")
    assert WEIGHTS in differences(checkpoint(tmp_path / "old"), wanted)


# ---- the demo's models


def test_one_draft_of_the_demo_can_replace_the_other() -> None:
    assert headers(GENERALIST)
    assert differences(GENERALIST, SPECIALIST) == differences(SPECIALIST, GENERALIST) == ""


def test_the_target_of_the_demo_cannot_replace_a_draft() -> None:
    assert differences(GENERALIST, CHECKPOINTS / "target").startswith("its weights have another shape: ")


def test_a_draft_with_moved_tokens_is_refused_and_they_are_named(tmp_path: Path) -> None:
    """Its weights fit, so that vLLM would take it."""
    misalign(GENERALIST, tmp_path / "moved")
    assert headers(tmp_path / "moved") == headers(GENERALIST)
    told = differences(GENERALIST, tmp_path / "moved")
    assert told.startswith("its tokenizer gives tokens another id: ")
    assert "'<|eot|>' is 5, the running model's is 4" in told
    assert "'<|pad|>' is 4, the running model's is 5" in told


# ---- any bytes at all

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "x"]), inner),
    max_leaves=8,
)
_headers = st.dictionaries(st.sampled_from(["embed", "up", "down", "__metadata__", "x"]), _json).map(
    lambda header: json.dumps(header).encode()
)
_anything = (
    st.binary(max_size=200)
    | st.builds(
        lambda length, rest: struct.pack("<Q", length) + rest, st.integers(0, 2**64 - 1), st.binary(max_size=99)
    )
    | _headers.map(lambda header: struct.pack("<Q", len(header)) + header)
)


@given(_anything)
def test_random_bytes_as_weights_are_refused_with_a_sentence(content: bytes) -> None:
    _with(WEIGHTS, content, refused=True)


@given(_json.map(json.dumps).map(str.encode) | st.binary(max_size=100), st.sampled_from([CONFIG, TOKENIZER]))
def test_random_json_as_configuration_or_tokenizer_raises_nothing(content: bytes, name: str) -> None:
    _with(name, content, refused=False)


@given(_json, _json)
def test_random_tokenizers_raise_nothing(vocabulary: Any, added: Any) -> None:
    content = {"model": {"vocab": vocabulary}, "added_tokens": added}
    _with(TOKENIZER, json.dumps(content).encode(), refused=False)


def _with(name: str, content: bytes, *, refused: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        present, wanted = checkpoint(Path(folder) / "old"), checkpoint(Path(folder) / "new")
        (wanted / name).write_bytes(content)
        told = differences(present, wanted)
        assert isinstance(differences(wanted, present), str)
    assert told if refused else isinstance(told, str)


def test_tokenizers_of_the_same_bytes_are_not_read_as_json(tmp_path: Path) -> None:
    """It would hold up the engine for a second where they are large."""
    present, wanted = checkpoint(tmp_path / "present"), checkpoint(tmp_path / "wanted")
    for folder in (present, wanted):
        (folder / TOKENIZER).write_text("no JSON")
    assert differences(present, wanted) == ""
