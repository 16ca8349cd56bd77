"""What a model's files say: tokenizers, configurations, tables of pruned heads; and the command. C11, C12, C13."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file
from specwatch_engine.demo.prepare import misalign
from specwatch_engine.demo.weights import CHECKPOINTS
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from typer.testing import CliRunner

from sidecar.cli import app
from sidecar.probes.tokenizer_check.compare import compare
from sidecar.probes.tokenizer_check.files import read_model
from sidecar.probes.tokenizer_check.report import Severity, Verdict
from sidecar.probes.tokenizer_check.table import Table, read_table
from sidecar.probes.vocabulary import NoVocabulary

TARGET, DRAFT = CHECKPOINTS / "target", CHECKPOINTS / "draft_generalist"
WORDS = [f"w{number}" for number in range(100)]


def save(folder: Path, pieces: list[str], config: object = None, **configs: object) -> str:
    """A tokenizer of words with ids in this order; those in <| |> are special. `configs` are further files."""
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(piece) for piece in pieces if piece.startswith("<|")])
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in ({"config": config} | configs).items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tokenizers", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_c11_one_tokenizer_and_two_sizes(tmp_path: Path) -> None:
    target = save(tmp_path / "target", list("abcde"), {"vocab_size": 8})
    draft = save(tmp_path / "draft", list("abcde"), {"text_config": {"vocab_size": 12}})
    code, said = command(target, draft)
    assert (code, said.splitlines()[0]) == (0, "aligned (severity none)")
    assert "vocab_size: 8 in the target, 12 in the draft (padding only)" in said
    code, said = command(target, draft, "--json")
    found = json.loads(said)
    assert (code, found["padding_only"], found["coverage"], found["findings"]) == (0, True, 1.0, [])


def test_c12_special_tokens_of_the_configuration_alone(tmp_path: Path) -> None:
    def added(**ids: int) -> dict[str, Any]:
        return {"added_tokens_decoder": {str(number): {"content": f"<|{name}|>"} for name, number in ids.items()}}

    target = save(tmp_path / "target", WORDS, tokenizer_config=added(e=100, s=101))
    draft = save(tmp_path / "draft", WORDS, tokenizer_config=added(s=102, e=103))
    found = compare(read_model(target), read_model(draft))
    assert (found.verdict, found.severity) == (Verdict.MISALIGNED, Severity.HIGH)
    assert (found.ordinary.same_id, found.ordinary.shared, found.special.same_id, found.special.shared) == (
        100,
        100,
        0,
        2,
    )
    assert sorted(found.offsets) == [(1, 1), (3, 1)]
    code, said = command(target, draft)
    assert (code, "'<|e|>' is 100, in the draft 103 (+3)" in said) == (1, True)


def test_c12_the_demos_draft_with_the_moved_end_of_turn(tmp_path: Path) -> None:
    misalign(DRAFT, tmp_path / "draft")
    code, said = command(TARGET, tmp_path / "draft", "--json")
    found = json.loads(said)
    assert (code, found["severity"], found["moved_tokens"]) == (1, "high", 2)
    assert {(each["text"], each["target_id"], each["draft_id"]) for each in found["moved"]} == {
        ("<|eot|>", 4, 5),
        ("<|pad|>", 5, 4),
    }
    assert command(TARGET, DRAFT)[0] == 0


def head(folder: Path, *, draft_vocab_size: int | None = 4, **tensors: Any) -> str:
    """An EAGLE-3 checkpoint: no tokenizer of its own."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 10, "draft_vocab_size": draft_vocab_size}))
    save_file({"lm_head.weight": numpy.zeros((4, 8), numpy.float16)} | tensors, folder / "model.safetensors")
    return str(folder)


def test_c13_the_table_of_a_pruned_head(tmp_path: Path) -> None:
    target = save(tmp_path / "target", WORDS[:10], {"vocab_size": 10})
    offsets = numpy.array([0, 2, 3, 5], numpy.int64)
    kept = numpy.isin(numpy.arange(10), [0, 3, 5, 8])
    good = head(tmp_path / "good", d2t=offsets, t2d=kept)
    assert read_table(tmp_path / "good") == Table((0, 3, 5, 8), tuple(kept.tolist()))
    code, said = command(target, good)
    assert (code, "the draft can propose: 40.0% of the target's tokens" in said) == (0, True)
    code, said = command(target, head(tmp_path / "without"))
    assert (code, "critical: The draft's vocabulary is pruned to 4 tokens" in said) == (1, True)
    code, said = command(target, head(tmp_path / "zero", d2t=numpy.zeros(4, numpy.int64)))
    assert (code, "Suspicious" in said) == (2, True)
    code, said = command(target, head(tmp_path / "other", d2t=offsets, t2d=numpy.roll(kept, 1)))
    assert (code, "tables disagree" in said) == (1, True)


def test_c13_a_table_in_one_of_several_files_beside_a_tokenizer(tmp_path: Path) -> None:
    target = save(tmp_path / "target", WORDS[:10], {"vocab_size": 10})
    draft = save(tmp_path / "draft", WORDS[:10], {"vocab_size": 10, "draft_vocab_size": 4})
    save_file({"a": numpy.zeros(3, numpy.float32)}, tmp_path / "draft" / "model-00001-of-00002.safetensors")
    table = {"model.d2t": numpy.array([0, 2, 3, 5], numpy.int32)}
    save_file(table, tmp_path / "draft" / "model-00002-of-00002.safetensors")
    found = compare(read_model(target), read_model(draft))
    assert (found.verdict, found.severity, found.coverage) == (Verdict.ALIGNED, Severity.NONE, 0.4)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("no file", b""),
        ("a header too long", struct.pack("<Q", 1 << 40)),
        ("no header", struct.pack("<Q", 4) + b"oops"),
        ("no object", struct.pack("<Q", 2) + b"[]"),
        ("another type", {"d2t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        ("cut off", {"d2t": {"dtype": "I64", "shape": [4], "data_offsets": [0, 32]}}),
        ("backwards", {"d2t": {"dtype": "I64", "shape": [4], "data_offsets": [32, 0]}}),
        ("half a number", {"d2t": {"dtype": "I64", "shape": [1], "data_offsets": [0, 4]}}),
        ("too long", {"d2t": {"dtype": "I64", "shape": [1], "data_offsets": [0, 1 << 40]}}),
        ("no entry", {"d2t": 3}),
    ],
)
def test_tables_that_cannot_be_read(name: str, content: bytes | dict[str, Any], tmp_path: Path) -> None:
    if isinstance(content, dict):
        header = json.dumps(content).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(NoVocabulary, match=r"model\.safetensors: its tables cannot be read"):
        read_table(tmp_path)


def test_what_cannot_be_told(tmp_path: Path) -> None:
    target = save(tmp_path / "target", WORDS)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "config.json").write_text('{"draft_vocab_size": 4}')
    (tmp_path / "torch" / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"vocab_size": 100}')
    for draft, word in (
        ("torch", "weights that Specwatch does not read"),
        ("bare", "no tokenizer.json"),
        ("no", "no such"),
    ):
        code, said = command(target, tmp_path / draft)
        assert (code, word in " ".join(said.split())) == (2, True), said
    assert read_model(str(tmp_path / "bare"), head=True).tokens is None


def test_weights_that_are_not_here_matter_to_pruned_drafts_alone(tmp_path: Path) -> None:
    names = ("target", "draft", "pruned")
    target, draft, pruned = (save(tmp_path / name, WORDS[:10], {"vocab_size": 10}) for name in names)
    (tmp_path / "target" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "draft" / "model.safetensors").symlink_to(tmp_path / "nowhere")
    (tmp_path / "pruned" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "pruned" / "config.json").write_text('{"vocab_size": 10, "draft_vocab_size": 4}')
    assert command(target, draft)[0] == 0
    code, said = command(target, pruned)
    assert (code, "its tables cannot be read" in said) == (2, True)


def test_a_head_for_fewer_tokens_is_told(tmp_path: Path) -> None:
    other = read_model(head(tmp_path / "head", draft_vocab_size=None), head=True)
    found = compare(read_model(save(tmp_path / "target", WORDS)), other)
    assert (found.verdict, found.severity) == (Verdict.ALIGNED, Severity.WARNING)
    assert "90 tokens of the draft have ids from its vocab_size (10) on" in found.findings[0].sentence


def test_the_configurations(tmp_path: Path) -> None:
    config = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    templates = [{"name": "tools", "template": "t"}, {"name": "default", "template": " d\n"}]
    name = save(
        tmp_path / "a",
        WORDS,
        config,
        generation_config={"eos_token_id": [2, 3]},
        tokenizer_config={"chat_template": templates},
    )
    found = read_model(name)
    assert (found.rows, found.pruned_rows, found.table, found.template) == (100, None, None, "d")
    assert found.roles == {"bos": {1}, "eos": {2, 3}, "pad": frozenset()}
    (tmp_path / "a" / "chat_template.jinja").write_text("j")
    (tmp_path / "a" / "config.json").write_text("[")
    found = read_model(name)
    assert (found.rows, found.template) == (None, "j")
    for broken in ([], {"vocab_size": "many", "eos_token_id": ["x", -1, True]}):
        (tmp_path / "a" / "config.json").write_text(json.dumps(broken))
        assert read_model(name).rows is None
    (tmp_path / "a" / "chat_template.jinja").unlink()
    (tmp_path / "a" / "tokenizer_config.json").write_text('{"chat_template": ["d"]}')
    assert read_model(name).template is None


def test_texts_that_are_split_otherwise(tmp_path: Path) -> None:
    def split(name: str, change: Any) -> str:
        tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
        change(tokenizer)
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        return str(tmp_path / name)

    target = read_model(str(TARGET))
    for name, change, severity, said in (
        (
            "composing",
            lambda t: setattr(t, "normalizer", normalizers.NFKC()),
            Severity.WARNING,
            "composed and not (norm",
        ),
        ("lower", lambda t: setattr(t, "normalizer", normalizers.Lowercase()), Severity.WARNING, "capitals"),
        (
            "the same in other words",
            lambda t: setattr(t, "normalizer", normalizers.Sequence([])),
            Severity.NONE,
            "All 26 probe texts are split alike (normalizer differ",
        ),
    ):
        found = compare(target, read_model(split(name, change)))
        assert (found.verdict, found.severity) == (Verdict.ALIGNED, severity), name
        assert said in found.findings[0].sentence or name == "lower", found.findings
    assert found.texts == found.texts_alike == 26
