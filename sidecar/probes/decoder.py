"""The process that holds the tokenizers, and its client.

Reading a large tokenizer holds Python's lock for up to a second, in which no token would pass the proxy. So a
process of its own reads it, makes the table that live alignment needs, and decodes what a person asks to see.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from .child import Child, ChildError, serve
from .tokenizer_check.compare import compare
from .tokenizer_check.files import read_model
from .tokenizer_check.report import Report
from .vocabulary import NoVocabulary, Vocabularies, read

Tokens = Sequence[tuple[bool, int]]

#: Seconds an answer may take; a tokenizer of a quarter of a million tokens is read in two.
_PATIENCE_S = 60.0


class Decoder:
    """The tokenizers of one target and one draft, by the names the engine gave them.

    The process starts with the first question, and again if it was killed. Each method blocks, may be called from
    several threads, and raises NoVocabulary.
    """

    def __init__(self, target: str, draft: str) -> None:
        self._names = (target, draft)
        self._child = Child("sidecar.probes.decoder", target, draft, patience_s=_PATIENCE_S)

    def draft_ids(self) -> "array[int]":
        """The table of `Vocabularies.draft_ids`."""
        table = array("i")
        table.frombytes(self._ask("draft_ids"))
        return table

    def check(self, draft: str, *, head: bool, mapped: bool) -> Report:
        """What the files of the target and of the draft model in `draft` tell; see `read_model` and `compare`."""
        return msgspec.convert(self._ask("check", *self._names, draft, head, mapped), Report)

    def words(self, target_ids: Sequence[int], draft_ids: Sequence[int]) -> tuple[list[str | None], list[str | None]]:
        """Single tokens as a reader sees them; None for an id that the tokenizer does not have."""
        target, draft = self._ask("words", list(target_ids), list(draft_ids))
        return target, draft

    def texts(self, sequences: Sequence[Tokens]) -> list[str]:
        """What `Vocabularies.decode` makes of each."""
        found: list[str] = self._ask("texts", sequences)
        return found

    def close(self) -> None:
        """End the process; a question under way fails."""
        self._child.close()

    def _ask(self, *question: object) -> Any:
        try:
            known, answer = self._child.ask(question)
        except ChildError as error:
            raise NoVocabulary(f"the process that decodes tokens {error}") from None
        if not known:
            raise NoVocabulary(answer)
        return answer


def _answer(known: Vocabularies, question: Sequence[Any]) -> object:
    name, *arguments = question
    if name == "check":
        target, own, draft, head, mapped = arguments
        of_draft = known.draft if draft == own else None
        return compare(read_model(target, known.target), read_model(draft, of_draft, head=head), mapped)
    if name == "draft_ids":
        return known.draft_ids().tobytes()
    if name == "words":
        target_ids, draft_ids = arguments
        return [known.target.text(i) for i in target_ids], [known.draft.text(i) for i in draft_ids]
    (sequences,) = arguments
    return [known.decode(tokens) for tokens in sequences]


def main(target: str, draft: str) -> None:
    """Answer questions, until nobody asks any more."""
    known: Vocabularies | None = None

    def answer(question: Sequence[Any]) -> tuple[bool, object]:
        nonlocal known
        try:
            known = known or read(target, draft)
            return True, _answer(known, question)
        except NoVocabulary as error:
            return False, str(error)

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
