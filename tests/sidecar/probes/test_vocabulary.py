"""Tokenizers of models: what each id means to target and draft, and texts of both together. C12."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo.prepare import misalign
from specwatch_engine.demo.weights import CHECKPOINTS
from tokenizers import AddedToken, Tokenizer, decoders, models

from sidecar.probes.vocabulary import NoVocabulary, Vocabularies, Vocabulary, read

TARGET = str(CHECKPOINTS / "target")
EQUAL = read(TARGET, str(CHECKPOINTS / "draft_generalist"))
EOT, PAD = 4, 5


@pytest.fixture(scope="module")
def misaligned(tmp_path_factory: pytest.TempPathFactory) -> Vocabularies:
    folder = tmp_path_factory.mktemp("models") / "draft_misaligned"
    misalign(CHECKPOINTS / "draft_generalist", folder)
    return read(TARGET, str(folder))


def save(folder: Path, pieces: dict[str, int], config: object = None) -> str:
    """A word-level tokenizer of these pieces; those in <| |> are special."""
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel(pieces))
    tokenizer.add_special_tokens([AddedToken(piece) for piece in pieces if piece.startswith("<|")])
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_equal_files_are_one_tokenizer() -> None:
    assert EQUAL.draft is EQUAL.target
    assert list(EQUAL.draft_ids()) == list(range(2048))


def test_the_demos_exchanged_ids_are_seen(misaligned: Vocabularies) -> None:
    ids = misaligned.draft_ids()
    assert [(number, there) for number, there in enumerate(ids) if number != there] == [(EOT, PAD), (PAD, EOT)]
    assert (misaligned.target.text(EOT), misaligned.draft.text(EOT)) == ("<|eot|>", "<|pad|>")


def test_c12_the_same_special_token_at_another_id(tmp_path: Path) -> None:
    words = {f"w{number}": number for number in range(100)}
    target = save(tmp_path / "target", words | {"<|e|>": 100, "<|s|>": 101})
    draft = save(tmp_path / "draft", words | {"<|x|>": 100, "<|y|>": 101, "<|s|>": 102, "<|e|>": 103})
    pair = read(target, draft)
    assert list(pair.draft_ids()) == [*range(100), 103, 102]


def test_c12_a_token_of_the_configuration_alone(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"2": {"content": "<|e|>"}, "0": {"content": "other"}}}
    target = save(tmp_path / "target", {"a": 0, "b": 1}, config)
    draft = save(tmp_path / "draft", {"a": 0, "b": 1, "<|p|>": 2, "<|e|>": 3})
    pair = read(target, draft)
    assert (pair.target.piece(0), pair.target.text(2), pair.target.piece(9)) == ("a", "<|e|>", None)
    assert list(pair.draft_ids()) == [0, 1, 3]


def test_a_token_of_both_files_has_the_id_of_the_tokenizer(tmp_path: Path) -> None:
    """transformers adds only tokens that are new to it; ids that are none are not looked at."""
    config = {
        "added_tokens_decoder": {str(at): {"content": text} for at, text in ((7, "b"), (-4, "c"), (1 << 70, "d"))}
    }
    vocabulary = Vocabulary.read(save(tmp_path / "target", {"a": 0, "b": 1}, config))
    assert (vocabulary.ids(), vocabulary.special) == ({"a": 0, "b": 1}, frozenset())


def test_c13_a_draft_that_lacks_tokens(tmp_path: Path) -> None:
    pair = read(save(tmp_path / "t", {"a": 0, "b": 1, "c": 2}), save(tmp_path / "d", {"c": 0, "a": 1}))
    assert list(pair.draft_ids()) == [1, -1, 0]


def test_a_broken_configuration_adds_nothing(tmp_path: Path) -> None:
    for number, config in enumerate(([], {"added_tokens_decoder": {"x": {}}}, {"added_tokens_decoder": [1]})):
        assert Vocabulary.read(save(tmp_path / str(number), {"a": 0}, config)).piece(0) == "a"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"holds no tokenizer\.json$"),
        ({"tokenizer.model": "x"}, r"holds no tokenizer\.json, only tokenizer\.model, which Specwatch does not read"),
        ({"tekken.json": "x"}, r"only tekken\.json"),
        ({"tokenizer.json": "{}"}, r"tokenizer\.json: cannot be read: "),
        ({"tokenizer.json": "\x00"}, r"tokenizer\.json: cannot be read: "),
    ],
)
def test_what_cannot_be_read_says_why(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(NoVocabulary, match=message):
        Vocabulary.read(str(tmp_path))


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "org/model", "a/b/c", "", "x" * 5000])
def test_names_that_lead_nowhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoVocabulary, match="target_tokenizer"):
        Vocabulary.read(name or "nothing")


def test_a_model_in_the_local_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--model"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    shutil.copy(CHECKPOINTS / "target" / "tokenizer.json", snapshot)
    assert Vocabulary.read("org/model").piece(EOT) == "<|eot|>"


def test_single_tokens_read_as_inside_a_text(tmp_path: Path) -> None:
    (number,) = [number for piece, number in EQUAL.target.ids().items() if piece == "Ġyour"]
    assert EQUAL.target.text(number) == " your"
    # A part of a character has no text of its own: its bytes, in either way of writing bytes.
    half = EQUAL.target.ids()["æ"]
    assert EQUAL.target.text(half) == "\\xe6"
    stripping = Tokenizer(models.WordLevel({"▁the": 0}))
    stripping.decoder = decoders.Metaspace()
    stripping.save(str(tmp_path / "tokenizer.json"))
    assert Vocabulary.read(str(tmp_path)).text(0) == " the"


texts = st.text(st.sampled_from("ab 0你好世界🙂é\n"), max_size=30)


@given(texts, st.randoms())
def test_a_character_split_between_both_is_whole(text: str, random: object) -> None:
    tokenizer = Tokenizer.from_file(TARGET + "/tokenizer.json")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert EQUAL.decode([(random.random() < 0.5, number) for number in ids]) == text  # type: ignore[attr-defined]


@given(texts)
def test_ids_that_mean_the_same_join_either(misaligned: Vocabularies, text: str) -> None:
    ids = Tokenizer.from_file(TARGET + "/tokenizer.json").encode(text, add_special_tokens=False).ids
    mixed = [(number % 2 == 0, each) for number, each in enumerate(ids)]
    assert misaligned.decode(mixed) == text
    # The draft's own end of turn is special there, and an ordinary one in between cuts the text in two.
    assert misaligned.decode([*mixed, (True, PAD)]) == text
    assert misaligned.decode([*mixed, (False, EOT)]) == text
