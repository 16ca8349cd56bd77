"""What the files of one model say about its tokens."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..vocabulary import FILE, NoVocabulary, Vocabulary, find, folder_of
from .table import Table, read_table

ROLES = ("bos", "eos", "pad")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Each field that may be None is so where the files do not tell."""

    #: Every token with its id; None for a head without a tokenizer of its own, which drafts in the target's ids.
    tokens: Mapping[str, int] | None
    special: frozenset[str] = frozenset()
    #: The ids of a text, without the tokens that are put around it; empty where there is no tokenizer.
    encode: Callable[[str], Sequence[int]] = lambda _: ()
    #: Merges, normalizer, pre-tokenizer and settings as tokenizer.json has them.
    parts: Mapping[str, object] = field(default_factory=dict)
    template: str | None = None
    #: The ids of bos, eos and pad, by the configurations.
    roles: Mapping[str, frozenset[int]] = field(default_factory=dict)
    #: Ids that the model has room for: vocab_size.
    rows: int | None = None
    #: The same of a draft with a pruned vocabulary: draft_vocab_size.
    pruned_rows: int | None = None
    table: Table | None = None


def read_model(name: str, vocabulary: Vocabulary | None = None, *, head: bool = False) -> Model:
    """The model in a folder or in the local cache of the Hugging Face hub.

    `vocabulary`: its tokenizer, where that was read already. `head`: a draft that was trained for its target, and may
    do without a tokenizer; one whose configuration tells a pruned vocabulary always may. Raises NoVocabulary.
    """
    folder = folder_of(name)
    config = {} if folder is None else _json(folder / "config.json")
    inner = config.get("text_config")
    config = (inner if isinstance(inner, dict) else {}) | config
    pruned_rows = _whole(config.get("draft_vocab_size"))
    table = None if folder is None else _table(folder, needed=pruned_rows is not None)
    # Engines end a reply by generation_config.json where it is there.
    generation = {} if folder is None else _json(folder / "generation_config.json")
    roles = {role: _ids(generation.get(f"{role}_token_id")) or _ids(config.get(f"{role}_token_id")) for role in ROLES}
    if pruned_rows is not None and table is None and folder is not None and not list(folder.glob("*.safetensors")):
        raise NoVocabulary(
            f"{name}: its vocabulary is pruned to {pruned_rows} tokens, and the offset table is in weights that "
            "Specwatch does not read: it reads *.safetensors"
        )
    known = Model(tokens=None, roles=roles, rows=_whole(config.get("vocab_size")), pruned_rows=pruned_rows, table=table)
    if folder is not None and (head or pruned_rows is not None or table is not None) and not (folder / FILE).exists():
        return known
    return _with_tokens(known, name, vocabulary or Vocabulary.read(name))


def _table(folder: Path, *, needed: bool) -> Table | None:
    """None as well where the weights cannot be read, and a model with a tokenizer hardly has one."""
    try:
        return read_table(folder)
    except NoVocabulary:
        if needed or not (folder / FILE).exists():
            raise
        return None


def _with_tokens(known: Model, name: str, vocabulary: Vocabulary) -> Model:
    file = find(name)
    raw, config = _json(file), _json(file.with_name("tokenizer_config.json"))
    model = raw["model"] if isinstance(raw.get("model"), dict) else {}
    return replace(
        known,
        tokens=vocabulary.ids(),
        special=vocabulary.special,
        encode=vocabulary.encode,
        parts={
            "merges": [each.split(" ") if isinstance(each, str) else each for each in model.get("merges") or ()],
            # What is not said is what is said to be off.
            "model": {key: value for key, value in model.items() if value and key not in ("vocab", "merges")},
            "normalizer": raw.get("normalizer"),
            "pre-tokenizer": raw.get("pre_tokenizer"),
        },
        template=_template(file.parent, config),
    )


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text().strip()
    except (OSError, ValueError):
        pass
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = (each for each in found if isinstance(each, dict) and each.get("name") == "default")
        found = next((each.get("template") for each in named), None)
    return found.strip() if isinstance(found, str) else None


def _ids(value: object) -> frozenset[int]:
    """Of one id, or of several."""
    listed = value if isinstance(value, list) else [value]
    return frozenset(number for each in listed if (number := _whole(each)) is not None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _json(file: Path) -> dict[str, Any]:
    """Empty where it is not there, or is no JSON object."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
