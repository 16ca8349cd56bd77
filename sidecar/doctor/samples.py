"""Samples of a Prometheus text, by family and labels. Pure."""

import re
from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(
    rb'^([A-Za-z_:][\w:]*+)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]++([0-9.eE+-]++|NaN|[+-]Inf)', re.MULTILINE
)
_LABEL = re.compile(rb'(\w+)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"')

Labels = Mapping[str, str]


class Samples:
    """What a text told. Names are without `_total`, and vLLM's without the prefix that exporters write differently."""

    def __init__(self, text: bytes) -> None:
        self._found: dict[str, list[tuple[Labels, float]]] = {}
        for name, inside, number in _SAMPLE.findall(text):
            labels = {key.decode(): value.decode("utf-8", "replace") for key, value in _LABEL.findall(inside)}
            try:
                value = float(number)
            except ValueError:
                continue
            self._found.setdefault(_plain(name.decode()), []).append((labels, value))

    def __contains__(self, name: str) -> bool:
        return _plain(name) in self._found

    def of(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """Samples of a family that have these labels."""
        for found, value in self._found.get(_plain(name), ()):
            if all(found.get(key) == wanted for key, wanted in labels.items()):
                yield found, value

    def total(self, name: str, **labels: str) -> float | None:
        """Their sum; None where there is none."""
        values = [value for _, value in self.of(name, **labels)]
        return sum(values) if values else None

    def largest(self, name: str, **labels: str) -> float | None:
        return max((value for _, value in self.of(name, **labels)), default=None)


def _plain(name: str) -> str:
    return re.sub("^vllm[:_]", "vllm:", name).removesuffix("_total")
