"""Rules, as a file has them and as they are looked at; the shipped ones, and how a file changes these."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from .document import read
from .expression import Expression, ExpressionError, parse
from .fields import Duration, Name, Strict, Text, nearest, validate
from .model import Severity
from .readings import KINDS, READINGS

#: Labels that each alert has by itself, beside its group's.
OWN_LABELS = ("alertname", "severity", "instance")
DEFAULTS = Path(__file__).with_name("defaults.yaml")

_PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Rule:
    alert: str
    expr: Expression
    #: Of KINDS: one alert for each group of this kind; "" is all traffic.
    by: str = ""
    for_s: float = 0.0
    keep_firing_for_s: float = 0.0
    severity: Severity = Severity.WARNING
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Texts with placeholders.
    annotations: Mapping[str, str] = field(default_factory=dict)


class RuleEntry(Strict):
    """A rule in a file. What is left out stays as shipped, or as `Rule` has it."""

    alert: Name
    enabled: StrictBool = True
    by: Literal["", "upstream", "scenario", "model", "temperature", "prompt_length", "concurrency"] | None = None
    expr: Text | None = None
    for_s: Duration | None = Field(default=None, alias="for")
    keep_firing_for_s: Duration | None = Field(default=None, alias="keep_firing_for")
    severity: Severity | None = None
    #: Added to those shipped, by name; an empty one takes the shipped one away, as an empty label is none.
    labels: dict[Name, Annotated[Text, Field(max_length=1000)]] = Field(default_factory=dict)
    annotations: dict[Name, Text] = Field(default_factory=dict)


class _Shipped(Strict):
    rules: tuple[RuleEntry, ...]


@functools.cache
def shipped() -> Mapping[str, Rule]:
    """By name, in their order."""
    entries = validate(_Shipped, read(DEFAULTS), DEFAULTS.name, DEFAULTS.parent).rules
    return {entry.alert: _changed(None, entry, parse(entry.expr or "")) for entry in entries}


def rules_of(entries: Sequence[RuleEntry], base: Mapping[str, Rule]) -> tuple[tuple[Rule, ...], list[str]]:
    """The rules in `base`, as `entries` change them, and those of the entries' own; and all that is wrong, a line each:
    key path and remedy."""
    rules = dict(base)
    seen: dict[str, int] = {}
    errors: list[str] = []
    for place, entry in enumerate(entries):
        path = f"rules[{place}]"
        if entry.alert in seen:
            errors.append(f"{path}.alert: {entry.alert} stands in rules[{seen[entry.alert]}] as well; keep one")
            continue
        seen[entry.alert] = place
        shipped_one = base.get(entry.alert)
        if shipped_one is None and (wrong := _no_rule_of_its_own(entry, base)):
            errors.append(f"{path}.{wrong}")
            continue
        try:
            expr = shipped_one.expr if shipped_one and entry.expr is None else parse(entry.expr or "")
        except ExpressionError as error:
            errors.append(f"{path}.expr: {error}")
            continue
        rule = _changed(shipped_one, entry, expr)
        errors += [f"{path}.{fault}" for fault in faults(rule)]
        if entry.enabled:
            rules[entry.alert] = rule
        else:
            rules.pop(entry.alert, None)
    return tuple(rules.values()), errors


def faults(rule: Rule) -> Iterator[str]:
    """What is wrong with a rule: key and remedy."""
    for name in rule.expr.readings:
        reading = READINGS.get(name)
        if reading is None:
            yield f"expr: there is no reading {name[:60]}{nearest(name, READINGS)}"
        elif rule.by not in reading.kinds:
            yield f"expr: {name} is {_known_by(reading.kinds)}, and the rule is {_looked_at(rule.by)}"
    taken = [*OWN_LABELS, rule.by]
    for name, value in rule.labels.items():
        if name in taken:
            yield f"labels.{name}: each alert has this label by itself; take another name"
        if "{{" in value:
            yield f"labels.{name}: labels have no placeholders; put them into an annotation"
    known = ["value", *OWN_LABELS, *filter(None, [rule.by]), *rule.labels]
    for name, text in rule.annotations.items():
        for word in _PLACEHOLDER.findall(text):
            if word not in known:
                yield f"annotations.{name}: there is no placeholder {{{{ {word[:60]} }}}}{_meant(word, known)}"
        if "{{" in _PLACEHOLDER.sub("", text):
            yield f"annotations.{name}: a {{{{ is not closed; write {{{{ value }}}}"


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with `{{ name }}` replaced. What is put in is not looked at again."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text) if "{{" in text else text


def _no_rule_of_its_own(entry: RuleEntry, base: Mapping[str, Rule]) -> str | None:
    near = nearest(entry.alert, base)
    if entry.expr is None:
        return f"alert: no shipped rule is called {entry.alert}, and it has no expr of its own{near}"
    if base and entry.alert.startswith("Specwatch"):
        return f"alert: no shipped rule is called {entry.alert}, and Specwatch… names are theirs; take another{near}"
    return None


def _changed(rule: Rule | None, entry: RuleEntry, expr: Expression) -> Rule:
    rule = rule or Rule(entry.alert, expr)
    names = ("by", "for_s", "keep_firing_for_s", "severity")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(entry, name)) is not None}
    labels = {name: value for name, value in {**rule.labels, **entry.labels}.items() if value}
    return replace(rule, expr=expr, labels=labels, annotations={**rule.annotations, **entry.annotations}, **given)


def _known_by(kinds: Iterable[str]) -> str:
    named = [f"by {kind}" for kind in KINDS if kind and kind in kinds]
    words = (["of all traffic"] if "" in kinds else []) + named
    return f"known {' or '.join(words)} alone"


def _looked_at(by: str) -> str:
    return f"looked at by {by}" if by else "looked at for all traffic"


def _meant(word: str, known: Sequence[str]) -> str:
    stripped = re.sub(r"^\$(labels\.)?|^\.|\s*\|.*$", "", word)
    if stripped in known:
        return f"; write {{{{ {stripped} }}}}"
    return nearest(word, known) or f"; there are {', '.join(known)}"
