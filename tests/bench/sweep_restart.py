"""Two ways to compare ks: `python tests/bench/sweep_restart.py -c speculative_config.yaml --prompts FILE [--k 1-10]`.

First as `specwatch sweep` does it: one engine, k by cap, every k in each round, in balanced order. Then with an engine
of its own for each k, configured with it: all rounds of a k one after the other, as nothing else is possible. Both
serve the same cells: prompts, rounds, concurrencies, ks, and a warm-up that is not counted; nothing is dropped early,
but what elimination would have saved of the first way is told. Given are the wall times, the speed-up of each k by
both, how far the two rankings agree (Kendall's tau: 1 the same, 0 no relation), and which k each would recommend.

    flock /tmp/engine.lock python tests/bench/sweep_restart.py -c engine/demo/speculative_config.yaml --prompts p.jsonl
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from specwatch_engine.lab import prompts as prompt_files
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.run import Run
from specwatch_engine.lab.stand import EngineOptions, engine
from specwatch_engine.lab.sweep import plan
from specwatch_engine.lab.sweep.analysis import MIXED, differences, ratio, times, words
from specwatch_engine.lab.sweep.cells import PLAIN, Block, Cell, blocks_of, in_time
from specwatch_engine.lab.sweep.recommend import choose, race
from specwatch_engine.lab.sweep.serve import OPT_OUT, Server
from specwatch_engine.lab.sweep.table import tuned, with_every
from specwatch_engine.launch.config import load


class Bench:
    """What both ways share."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.say = args, folder, Say()
        self.source = Path(args.config).absolute()
        self.max_num_seqs = load(self.source).max_num_seqs
        self.ks = plan.numbers(args.k, "--k")
        self.concurrencies = plan.numbers(args.concurrencies, "--concurrencies")
        found = prompt_files.greedy(prompt_files.limited(prompt_files.read(args.prompts), 512))
        self.shares = prompt_files.shares(found)
        sizes = {c: plan.batch_size(c, len(self.shares), args.batch) for c in self.concurrencies}
        self.deal = plan.Deal(found, self.shares, sizes, args.seed)

    def by_cap(self) -> tuple[list[Cell], float]:
        """The cells, and seconds from before the engine's start."""
        began = time.monotonic()
        cells: list[Cell] = []
        run = Run.create("sweep", {}, self.folder / "cap")
        try:
            with engine(EngineOptions(config=self.configured(run, self.ks)), run, self.say) as there:
                server = Server(there, run, self.say, OPT_OUT)
                for c in self.concurrencies:
                    server.warm_up(self.deal.batch(0, c), c, max(self.ks))
                while turn := plan.next_turn(
                    blocks_of(cells, "sweep"),
                    self.concurrencies,
                    self.args.rounds,
                    self.args.seed,
                    lambda c, _: self.ks,
                ):
                    cells += server.block("sweep", turn, self.deal.batch(turn.round, turn.concurrency))
                    self.say(f"by cap: round {turn.round + 1} at {turn.concurrency} in flight")
        finally:
            run.close()
        return cells, time.monotonic() - began

    def by_restart(self) -> tuple[list[Cell], float]:
        """The same with an engine for each k; plain decoding is measured on the first one, at a cap of 0, as by cap."""
        began = time.monotonic()
        cells: list[Cell] = []
        for k in self.ks:
            run = Run.create("sweep", {}, self.folder / f"k{k}")
            try:
                with engine(EngineOptions(config=self.configured(run, [k])), run, self.say) as there:
                    server = Server(there, run, self.say, OPT_OUT)
                    arms = (PLAIN, k) if k == self.ks[0] else (k,)
                    for c in self.concurrencies:
                        server.warm_up(self.deal.batch(0, c), c, k)
                        for number in range(self.args.rounds):
                            turn = plan.Turn(number, c, arms)
                            cells += server.block("sweep", turn, self.deal.batch(number, c))
            finally:
                run.close()
            self.say(f"by restart: k={k}")
        return cells, time.monotonic() - began

    def configured(self, run: Run, ks: Sequence[int]) -> Path:
        flat = [[1, self.max_num_seqs, max(ks)]]
        table = with_every(ks, flat, max(self.concurrencies), self.max_num_seqs) or flat
        text = tuned(self.source, table, f"k={max(ks)}, for the bench")
        return run.write("speculative_config.yaml", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", required=True, metavar="FILE")
    parser.add_argument("--prompts", required=True, metavar="FILE")
    parser.add_argument("--k", default="1-10")
    parser.add_argument("--concurrencies", default="1,4")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the runs (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, args.out or Path(folder))
        capped, cap_s = bench.by_cap()
        restarted, restart_s = bench.by_restart()
        tell(bench, capped, restarted, cap_s, restart_s)


def tell(bench: Bench, capped: list[Cell], restarted: list[Cell], cap_s: float, restart_s: float) -> None:
    print(f"\nby cap: {cap_s:.0f} s; by restart: {restart_s:.0f} s, {restart_s / cap_s:.2f} times as long")
    for c in bench.concurrencies:
        one = [block for block in blocks_of(capped, "sweep") if block.concurrency == c]
        other = _together([cell for cell in restarted if cell.concurrency == c])
        rounds = [[times(block, MIXED, bench.shares) for block in blocks] for blocks in (one, other)]
        left = race(one, bench.ks, bench.shares)
        print(f"\nat {c} in flight     R by cap              R by restart")
        speeds: list[dict[int, float]] = [{}, {}]
        for k in bench.ks:
            found = [ratio(differences(each, PLAIN, k)) for each in rounds]
            for speed, each in zip(speeds, found, strict=True):
                if each is not None:
                    speed[k] = each.value
            print(f"k={k:<3d}          " + "".join(f"{words(each) if each else '-':<22s}" for each in found))
        chosen = [choose(each, bench.ks) for each in rounds]
        ks = [each.k if each else None for each in chosen]
        print(f"Kendall's tau of the rankings: {_tau(*speeds):.2f}; recommended by cap k={ks[0]}, by restart k={ks[1]}")
        told = ", ".join(f"k={k} after round {number + 1}" for k, number in left.dropped.items()) or "none"
        print(f"elimination would have dropped: {told}{f'; over: {left.over}' if left.over else ''}")


def _together(cells: Sequence[Cell]) -> list[Block]:
    """Cells of a round, served by engines one after the other, as if they were a block: there is nothing nearer."""
    numbers = sorted({cell.round for cell in cells})
    return [
        Block(number, cells[0].concurrency, in_time({cell.k: cell for cell in cells if cell.round == number}))
        for number in numbers
    ]


def _tau(one: dict[int, float], other: dict[int, float]) -> float:
    pairs = list(combinations(sorted(set(one) & set(other)), 2))
    agree = sum((one[a] - one[b]) * (other[a] - other[b]) > 0 for a, b in pairs)
    return (2 * agree - len(pairs)) / len(pairs) if pairs else float("nan")


if __name__ == "__main__":
    main()
