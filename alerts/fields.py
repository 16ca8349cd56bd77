"""What the models of the alerts' files share: strict fields, and errors as people read them."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from .document import ConfigError, shown_key

_Model = TypeVar("_Model", bound=BaseModel)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(
    r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m(?!s))?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?"
)
#: Of the groups of that pattern, s.
_UNITS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
_LONGEST_S = 366 * 86_400.0

#: Words for pydantic's own findings. Its texts can hold what was given, which may be a secret.
_WORDS = {
    "missing": "is missing",
    "string_type": "must be text; put it in quotes",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping, as {{name: value}}",
    "model_type": "must be a mapping, as {{name: value}}",
    "model_attributes_type": "must be a mapping, as {{name: value}}",
    "tuple_type": "must be a list",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "string_too_long": "is longer than {max_length} characters",
    "too_long": "may have {max_length} at most",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}


class Strict(BaseModel):
    """A mapping in a file: a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def seconds(value: object) -> float:
    """15s, 1m, 2h, 1d, 500ms, 1h30m or a number of seconds. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < 1e18 else math.inf
    elif isinstance(value, str) and value and (match := _DURATION.fullmatch(value)):
        found = sum(int(n or 0) * unit for n, unit in zip(match.groups(), _UNITS, strict=True))
    else:
        raise ValueError("must be a duration, as 15s, 1m, 2h, 1h30m, or a number of seconds")
    if not 0 <= found <= _LONGEST_S:
        raise ValueError("must be a duration from 0 to a year")
    return found


def _some_seconds(value: object) -> float:
    if (found := seconds(value)) <= 0:
        raise ValueError("must be longer than 0 s")
    return found


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be a name of letters, digits and _ that begins with no digit")
    return value


def _printable(value: str) -> str:
    if any(ord(character) < 32 and character not in "\n\t" for character in value):
        raise ValueError("holds a control character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds half a character, as \\ud800")
    return value


Duration = Annotated[float, BeforeValidator(seconds)]
#: Longer than nothing.
SomeTime = Annotated[float, BeforeValidator(_some_seconds)]
#: As Prometheus names alerts and labels.
Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_printable)]


def at(key: str, message: str) -> NoReturn:
    """Of a validator of a whole mapping: an error of its key `key`."""
    raise PydanticCustomError("at", "{message}", {"key": key, "message": message})


def secret_of_file(key: str, name: object, folder: Path) -> SecretStr:
    """The secret in a file, relative to `folder`, without the space around it."""
    if not isinstance(name, str) or not name:
        at(key, "must name a file")
    try:
        text = (folder / name).read_text(encoding="utf-8").strip()
    except OSError as error:
        at(key, f"the file cannot be read: {error.strerror}")
    except ValueError:
        at(key, "the file is no UTF-8 text, or its name none")
    if not text:
        at(key, "the file is empty")
    return SecretStr(text)


def nearest(word: object, words: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing where no word is near."""
    near = difflib.get_close_matches(str(word)[:100], list(words), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def validate(model: type[_Model], raw: Any, name: str, folder: Path) -> _Model:
    """`raw` as `model`; errors call the file `name`, paths in it are relative to `folder`. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: must hold `name: value` lines")
    try:
        return model.model_validate(raw, context={"folder": folder})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise ConfigError("\n".join(f"{name}: {_sentence(item, model)}" for item in found)) from None


def path_of(steps: Sequence[str | int]) -> str:
    """rules[2].expr"""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return path.removeprefix(".")


def _sentence(item: Any, model: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    steps, inside = _walk(model, item["loc"])
    if steps[0] == "receivers":
        steps = [step if isinstance(step, int) else shown_key(step) for step in steps]
    if kind == "at":
        return f"{path_of([*steps, context['key']])}: {context['message']}"
    if kind == "extra_forbidden":
        known = [field.alias or name for held in inside for name, field in held.model_fields.items()]
        return f"{path_of([*steps[:-1], shown_key(steps[-1])])}: no such key{nearest(item['loc'][-1], known)}"
    if kind == "union_tag_not_found":
        return f"{path_of([*steps, 'type'])}: is missing"
    if kind == "union_tag_invalid":
        expected = context["expected_tags"].replace("'", "")
        near = nearest(context["tag"], expected.split(", "))
        return f"{path_of([*steps, 'type'])}: must be one of {expected}{near}"
    if kind == "enum" or kind == "literal_error":
        # What stands for nothing is what leaving the key out gives.
        expected = context["expected"].replace("'', ", "").replace("'", "")
        return f"{path_of(steps)}: must be one of {expected}"
    words = _WORDS[kind].format(**context) if kind in _WORDS else item["msg"].removeprefix("Value error, ")
    return f"{path_of(steps)}: {words}"


def _walk(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[list[str | int], list[type[BaseModel]]]:
    """`loc` without the steps that choose a type of a union, and the models that its last key stands in."""
    steps: list[str | int] = []
    inside, models = [model], [model]
    for step in loc:
        if step == "[key]":  # pydantic's mark of a key that is wrong itself
            continue
        if len(models) > 1 and (chosen := [held for held in models if step in _types(held)]):
            models = chosen
            continue
        steps.append(step)
        if isinstance(step, str):
            inside = models
            models = [
                found
                for held in inside
                for name, field in held.model_fields.items()
                if step == (field.alias or name)
                for found in _models(field.annotation)
            ]
    return steps, inside


def _types(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["type"].annotation)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
