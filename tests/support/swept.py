"""An engine that is only a clock, for sweeps of k: T(k) = a + b k, tokens accepted with a chance of each scenario's.

The clock may drift, a cell may be slow as a whole, and replies differ; the same seed gives the same cells.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specwatch_engine.lab.prompts import CHAT, Prompt
from specwatch_engine.lab.sweep import plan
from specwatch_engine.lab.sweep.cells import PLAIN, Answer, Cell, blocks_of
from specwatch_engine.lab.sweep.recommend import race

TTFT_MS = 20.0


def prompts(shares: Mapping[str, int]) -> list[Prompt]:
    """So many of each scenario."""
    return [
        Prompt(f"{name}-{i}", name, {"messages": [{"role": "user", "content": f"{name} {i}"}]}, CHAT)
        for name, number in shares.items()
        for i in range(number)
    ]


@dataclass
class Clock:
    """`p` by scenario: the chance of a draft token whose predecessors were accepted. Times in ms."""

    p: Mapping[str, float]
    a: float = 10.0
    b: float = 1.0
    plain: float = 10.0
    #: What the clock has gained when `span_s` are over: 0.3 makes all 30 % slower.
    drift: float = 0.0
    span_s: float = 600.0
    #: Standard deviations of the logarithm of a cell's pace, and of a reply's.
    cell_noise: float = 0.0
    reply_noise: float = 0.0
    tokens: int = 60
    seed: int = 0
    elapsed_s: float = 0.0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def step_ms(self, k: int) -> float:
        return self.plain if k == PLAIN else self.a + self.b * k

    def best(self, scenario: str, ks: Sequence[int]) -> int:
        """The k with the least time per token."""
        p = self.p[scenario]
        return min(ks, key=lambda k: self.step_ms(k) / sum(p**i for i in range(k + 1)))

    def cell(self, stage: str, turn: plan.Turn, place: int, block: float, asked: Sequence[Prompt]) -> Cell:
        k = turn.order[place]
        pace = math.exp(self.chance.gauss(0, self.cell_noise))
        answers, busy_ms = [], 0.0
        for prompt in asked:
            steps, drafted, accepted, truncated, left = 0, 0, 0, 0, self.tokens - 1
            # The same prompt draws the same luck at every k, as at temperature 0.
            luck = random.Random(f"{self.seed} {prompt.id} {k}")
            while left > 0:
                got = 0
                while got < k and luck.random() < self.p[prompt.scenario]:
                    got += 1
                steps, drafted, accepted = steps + 1, drafted + k, accepted + got
                truncated += got < k
                left -= got + 1
            slow = 1 + self.drift * min((self.elapsed_s + busy_ms / 1000) / self.span_s, 1.0)
            ms = steps * self.step_ms(k) * slow * pace * math.exp(self.chance.gauss(0, self.reply_noise))
            busy_ms += (ms + TTFT_MS) / turn.concurrency
            told = (steps, drafted, accepted, truncated) if k else (None,) * 4
            tokens = self.tokens - left if k else self.tokens
            answers.append(Answer(prompt.id, prompt.scenario, tokens, TTFT_MS, TTFT_MS + ms, *told, text="same"))
        self.elapsed_s += busy_ms / 1000
        tokens = sum(each.tokens for each in answers)
        seconds = busy_ms / 1000
        return Cell(
            stage,
            turn.round,
            turn.concurrency,
            k,
            place,
            len(turn.order),
            block,
            seconds,
            tokens,
            len(asked),
            {},
            answers,
        )


def swept(
    clock: Clock,
    traffic: Mapping[str, int],
    ks: Sequence[int] = range(1, 11),
    concurrencies: Sequence[int] = (1,),
    rounds: int = 8,
    seed: int = 0,
    batch: int | None = None,
) -> list[Cell]:
    """A whole sweep, in the order and with the elimination of the real one."""
    asked = prompts(traffic)
    shares = {name: number / len(asked) for name, number in traffic.items()}
    sizes = {c: plan.batch_size(c, len(traffic), batch) for c in concurrencies}
    deal = plan.Deal(asked, shares, sizes, seed)
    cells: list[Cell] = []
    while turn := plan.next_turn(
        blocks_of(cells, "sweep"),
        concurrencies,
        rounds,
        seed,
        lambda c, blocks: race(blocks, tuple(ks), shares).served,
    ):
        block, batch_ = float(len(cells)), deal.batch(turn.round, turn.concurrency)
        cells += [clock.cell("sweep", turn, place, block, batch_) for place in range(len(turn.order))]
    return cells
