"""The byte-level safetensors reader and writer, against the library that defines the format."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from specwatch_engine.demo.weights import CHECKPOINTS, WEIGHTS_FILE, Tensor, read_weights, write_weights


def test_the_library_reads_what_we_write(tmp_path):
    tensors = {
        "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "whole": torch.tensor([1, -2, 3], dtype=torch.int64),
        "none": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "theirs")
    write_weights(tmp_path / "ours", read_weights(tmp_path / "theirs"))
    loaded = load_file(tmp_path / "ours")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_reading_and_writing_a_checkpoint_loses_nothing(tmp_path):
    weights = read_weights(CHECKPOINTS / "draft_generalist" / WEIGHTS_FILE)
    write_weights(tmp_path / "copy", weights)
    assert read_weights(tmp_path / "copy") == weights
    assert len(load_file(tmp_path / "copy")) == len(weights)


@given(st.binary(max_size=80))
def test_other_files_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(content)
    try:
        load(content)
    except (SafetensorError, ValueError):
        with pytest.raises(ValueError, match="not a safetensors file"):
            read_weights(path)


def test_rows_swap_and_out_of_range_rows_do_not():
    tensor = Tensor("U8", (3, 2), bytes([0, 1, 2, 3, 4, 5]))
    assert tensor.swap_rows(0, 2).data == bytes([4, 5, 2, 3, 0, 1])
    assert tensor.swap_rows(1, 1) == tensor
    assert tensor.zeros() == Tensor("U8", (3, 2), bytes(6))
    with pytest.raises(IndexError, match="rows 0 and 3 of an array of 3 rows"):
        tensor.swap_rows(0, 3)
