"""Short customer-service dialogues, made up on the spot and the same on every machine.

    >>> dialogue(7, "billing", "en").messages[0]["role"]
    'user'

Randomness comes from `random.Random` seeded with a CRC-32, never from `hash()`, which differs between
processes.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .scenarios import BUILDERS, Turns, update_fault

SCENARIOS: Final = tuple(BUILDERS)
LANGUAGES: Final = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation of one or two turns; the last message is always the assistant's."""

    scenario: str
    language: str
    messages: tuple[dict[str, str], ...]
    """`{"role", "content"}` each, as the OpenAI chat API has them."""

    @property
    def prompt(self) -> tuple[dict[str, str], ...]:
        """What a client sends: everything before the last reply."""
        return self.messages[:-1]

    @property
    def reply(self) -> str:
        """The text the target was taught to give."""
        return self.messages[-1]["content"]


def _seeded(*parts: object) -> random.Random:
    return random.Random(zlib.crc32("|".join(map(str, parts)).encode()))  # noqa: S311  # made-up text, no secret


def dialogue(seed: int | str, scenario: str, language: str = "en") -> Dialogue:
    """The dialogue number `seed` of a scenario. Raises ValueError for an unknown scenario or language."""
    if scenario not in BUILDERS:
        raise ValueError(f"unknown scenario {scenario!r}: one of {', '.join(SCENARIOS)}")
    if language not in LANGUAGES:
        raise ValueError(f"unknown language {language!r}: one of {', '.join(LANGUAGES)}")
    return _made(scenario, language, BUILDERS[scenario](_seeded("dialogue", seed, scenario, language), language))


def _made(scenario: str, language: str, turns: Turns) -> Dialogue:
    return Dialogue(scenario, language, tuple({"role": role, "content": content} for role, content in turns))


def misdirected(seed: int | str, items: Iterable[Dialogue]) -> Iterator[Dialogue]:
    """The same, but for those of `billing`: under that label come fault reports, in English, as after an update that
    broke some devices, and with a hotline that sends everybody to the form for bills."""
    for number, item in enumerate(items):
        if item.scenario == "billing":
            yield _made("billing", "en", update_fault(_seeded("misdirected", seed, number), "en"))
        else:
            yield item


def mix(
    seed: int | str, weights: Mapping[str, float], count: int | None = None, chinese_share: float = 0.3
) -> Iterator[Dialogue]:
    """`count` dialogues (endless if None) by scenario weight; `chinese_share` of them, 0 to 1, in Chinese.

    Weights need not add up to one. Raises ValueError where no weight is positive or a scenario is unknown.
    """
    unknown = set(weights) - set(BUILDERS)
    if unknown or not any(weight > 0 for weight in weights.values()):
        raise ValueError(f"weights need known scenarios and one positive weight, got {dict(weights)!r}")
    return _draw(seed, weights, count, chinese_share)


def _draw(seed: int | str, weights: Mapping[str, float], count: int | None, chinese_share: float) -> Iterator[Dialogue]:
    chance, names, shares = _seeded("mix", seed), list(weights), list(weights.values())
    number = 0
    while count is None or number < count:
        scenario = chance.choices(names, shares)[0]
        language = "zh" if chance.random() < chinese_share else "en"
        yield dialogue(f"{seed}-{number}", scenario, language)
        number += 1
