"""How alike two replies to one prompt are, which a process of its own tells."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sidecar.probes.child import ChildError
from sidecar.probes.embedder import Embedder, NoModel

from .outputs import Outputs

#: Pairs that are embedded together.
_BATCH = 8


@dataclass
class Similarity:
    """The process that embeds, as far as there is one."""

    backend: str
    #: Why nothing can be compared.
    reason: str | None = None
    _embedder: Embedder | None = field(default=None, init=False)

    async def of(self, outputs: Sequence[Outputs], texts: dict[str, tuple[str, str]]) -> list[Outputs]:
        """The same with the similarity of those that differ, or why there is none."""
        parted = [each.prompt for each in outputs if not each.identical]
        scores: dict[str, float | None] = {}
        reasons: dict[str, str | None] = {}
        for at in range(0, len(parted), _BATCH):
            batch = parted[at : at + _BATCH]
            try:
                for prompt, score in zip(batch, await self._scores([texts[each] for each in batch]), strict=True):
                    scores[prompt], reasons[prompt] = score, "a reply is empty" if score is None else None
            except NoModel as error:
                self.reason = str(error)
                reasons |= dict.fromkeys(batch, self.reason)
            except ChildError as error:
                reasons |= dict.fromkeys(batch, f"the process that compares texts {error}")
        return [
            msgspec.structs.replace(each, similarity=scores.get(each.prompt), reason=reasons.get(each.prompt))
            for each in outputs
        ]

    async def _scores(self, pairs: list[tuple[str, str]]) -> list[float | None]:
        """Raises NoModel and ChildError."""
        if self.backend == "none":
            raise NoModel("--similarity is none")
        if self.reason is not None:
            raise NoModel(self.reason)
        embedder = self._embedder = self._embedder or Embedder(self.backend, None)
        return [each.score for each in await asyncio.to_thread(embedder.compare, pairs)]

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()
