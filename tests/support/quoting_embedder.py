"""An embedder to which no two texts are alike; it fails over the word `fail-embedder`, and quotes the text."""

from typing import Any

from sidecar.probes.child import serve


def answer(pairs: Any) -> tuple[bool, object]:
    for pair in pairs:
        if any("fail-embedder" in text for text in pair):
            raise ValueError(pair)
    return True, [(0.1, False) for _ in pairs]


if __name__ == "__main__":
    serve(answer)
