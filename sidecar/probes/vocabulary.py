"""The tokenizers of target and draft, read from `tokenizer.json`.

Reading one holds Python's lock for up to a second, so the sidecar does it in a process of its own: see `decoder`.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
#: Ids from here on are not looked at; the largest vocabularies have a quarter of a million.
MOST_IDS = 1 << 21
#: What a piece that is no whole character decodes to.
_BROKEN = "\ufffd"


def _byte_alphabet() -> dict[str, int]:
    """How pieces of byte-level vocabularies write bytes: printable Latin-1 as it is, the rest from U+0100 on.

    Source: `bytes_to_unicode` of GPT-2's encoder, which all of them have taken over.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (number for number in range(0x100) if number not in plain)
    return {chr(number): number for number in plain} | {chr(0x100 + at): number for at, number in enumerate(others)}


_BYTES = _byte_alphabet()


class NoVocabulary(Exception):
    """A model's tokenizer cannot be had; the message says which and why, in one line."""


class Vocabulary:
    """One model's tokens by id."""

    def __init__(self, tokenizer: Tokenizer, added: dict[int, str] | None = None) -> None:
        """`added`: tokens that only tokenizer_config.json knows."""
        self._tokenizer = tokenizer
        self._added = added or {}
        self._ids = {piece: number for number, piece in self._added.items()}

    @classmethod
    def read(cls, name: str) -> Vocabulary:
        """The tokenizer of a folder, or of a model in the local cache of the Hugging Face hub. Raises NoVocabulary."""
        from tokenizers import Tokenizer

        file = find(name)
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises Exception itself
            raise NoVocabulary(f"{file}: cannot be read: {' '.join(str(error).split())[:200]}") from None
        return cls(tokenizer, _added(file.with_name("tokenizer_config.json"), tokenizer))

    def ids(self) -> dict[str, int]:
        """Every piece with its id."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found | self._ids

    @property
    def special(self) -> frozenset[str]:
        """Tokens that stand for no text: those of the configuration alone are such."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added if token.special) | self._ids.keys()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without those that are put around it; none where it has characters that have none."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception:  # the library raises Exception itself
            return []
        return ids

    def piece(self, number: int) -> str | None:
        """The token as the tokenizer writes it, as `Ġthe`; None for an id that it does not have."""
        found: str | None = self._tokenizer.id_to_token(number)
        return self._added.get(number) if found is None else found

    def text(self, number: int) -> str | None:
        """The token as a reader sees it inside a text, as ` the`; of a part of a character its bytes, as `\\xe4`."""
        piece = self.piece(number)
        if piece is None or number in self._added:
            return piece
        # Some decoders strip the space before the first token of a text, so its second appearance is looked at.
        once, twice = (self._tokenizer.decode([number] * n, skip_special_tokens=False) for n in (1, 2))
        text = twice[len(once) :]
        if text and _BROKEN not in text:
            return text
        try:
            return bytes(_BYTES[each] for each in piece).decode(errors="backslashreplace")
        except KeyError:
            return piece  # no byte-level vocabulary

    def decode(self, numbers: Iterable[int]) -> str:
        """The text, without special tokens and ids that the tokenizer does not have."""
        text: str = self._tokenizer.decode(list(numbers), skip_special_tokens=True)
        return text


class Vocabularies(NamedTuple):
    target: Vocabulary
    draft: Vocabulary

    def draft_ids(self) -> array[int]:
        """The draft's id for each target id: of the same piece, -1 where the draft has none."""
        there = self.draft.ids()
        pairs = {number: there.get(piece, -1) for piece, number in self.target.ids().items() if number < MOST_IDS}
        return array("i", [pairs.get(number, -1) for number in range(max(pairs, default=-1) + 1)])

    def decode(self, tokens: Iterable[tuple[bool, int]]) -> str:
        """The text of tokens, each (whether it is of the draft, id), and each by its own model's tokenizer.

        An id that means the same to both joins what stands beside it: a character of several tokens is decoded whole.
        """
        parts: list[str] = []
        run: list[int] = []
        by_draft: bool | None = None
        for drafted, number in tokens:
            if not self._same(number):
                if by_draft is not None and drafted is not by_draft:
                    parts.append(self._of(by_draft).decode(run))
                    run = []
                by_draft = drafted
            run.append(number)
        parts.append(self._of(bool(by_draft)).decode(run))
        return "".join(parts)

    def _of(self, draft: bool) -> Vocabulary:
        return self.draft if draft else self.target

    def _same(self, number: int) -> bool:
        return self.draft is self.target or self.draft.piece(number) == self.target.piece(number)


def read(target: str, draft: str) -> Vocabularies:
    """Both tokenizers; one object where they are of one place or their files are equal. Raises NoVocabulary."""
    first = Vocabulary.read(target)
    if draft == target or _alike(find(target), find(draft)):
        return Vocabularies(first, first)
    return Vocabularies(first, Vocabulary.read(draft))


def find(name: str) -> Path:
    """The tokenizer.json of a folder, or of a model in the local cache of the hub. Raises NoVocabulary."""
    folder = Path(name)
    if os.path.isfile(folder) and folder.name == FILE:
        return folder
    if os.path.isdir(folder):  # unlike Path's own, it takes a name that is too long for one that is none
        if (folder / FILE).is_file():
            return folder / FILE
        others = [other for other in ("tokenizer.model", "tiktoken.model", "tekken.json") if (folder / other).exists()]
        there = f", only {others[0]}, which Specwatch does not read" if others else ""
        raise NoVocabulary(f"{name}: holds no {FILE}{there}")
    if name.startswith(("/", ".", "~")):
        raise NoVocabulary(f"{name}: no such folder here; name it in target_tokenizer or draft_tokenizer")
    cached = _cached(name, FILE)
    if cached is None:
        raise NoVocabulary(
            f"{name}: neither a folder nor in the local cache of the Hugging Face hub; "
            "name its folder in target_tokenizer or draft_tokenizer"
        )
    return cached


def folder_of(name: str) -> Path | None:
    """Where the model's files lie, whether or not a tokenizer is among them; None where they are not here."""
    if os.path.isdir(name):
        return Path(name)
    file = Path(name) if os.path.isfile(name) else _cached(name, "config.json") or _cached(name, FILE)
    return None if file is None else file.parent


def _cached(name: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, file)
    except ValueError:  # no name of the hub
        return None
    return Path(found) if isinstance(found, str) else None


def _alike(one: Path, other: Path) -> bool:
    """Whether both folders' files say the same."""
    return all(_bytes(one.with_name(name)) == _bytes(other.with_name(name)) for name in (FILE, "tokenizer_config.json"))


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _added(config: Path, tokenizer: Tokenizer) -> dict[int, str]:
    """Tokens that tokenizer_config.json adds to those of tokenizer.json; empty where it cannot be read."""
    try:
        listed: Any = json.loads(config.read_bytes()).get("added_tokens_decoder", {})
        found = {int(number): str(token["content"]) for number, token in listed.items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}
    # A token that tokenizer.json has by another id keeps that: transformers adds only those that are new to it.
    return {
        number: piece
        for number, piece in found.items()
        if 0 <= number < MOST_IDS and tokenizer.id_to_token(number) is None and tokenizer.token_to_id(piece) is None
    }
