"""What comparing texts costs: `python tests/bench/similarity.py [--rounds 12]`.

First the processor time of a pair with each model, by tokens of a text (of the demo's tokenizer). Then requests through
a sidecar that compares nothing and through one that compares all it can, in turning order: their p50 and p99, each also
as the median of the ratios of a round.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

# The product before the tests, which have a folder of its name.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from specwatch_engine.demo import dialogues
from specwatch_engine.demo.weights import CHECKPOINTS
from support.scripted_engine import ScriptedEngine, until, whole
from support.upstream import chunked
from support.way import Way, answering, chat, way
from tokenizers import Tokenizer

from sidecar.probes.embedder import Embedder

BACKENDS = ("sentence-transformers", "universal-sentence-encoder")
MODELS = {
    "target_model": str(CHECKPOINTS / "target"),
    "target_tokenizer": str(CHECKPOINTS / "target"),
    "draft_model": str(CHECKPOINTS / "draft_generalist"),
    "draft_tokenizer": str(CHECKPOINTS / "target"),
}
TOKENIZER = Tokenizer.from_file(str(CHECKPOINTS / "target" / "tokenizer.json"))
IDS = [
    number
    for said in dialogues.mix(1, dict.fromkeys(dialogues.SCENARIOS, 1.0), 400, chinese_share=0)
    for number in TOKENIZER.encode(said.reply + " ").ids
]
REQUESTS = 200
CONCURRENCY = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    sys.setswitchinterval(0.001)  # as `specwatch sidecar` has it
    print("ms of a core a pair           20 tokens   100 tokens   250 tokens   2000 tokens")
    for backend in BACKENDS:
        embedder = Embedder(backend, None)
        embedder.compare([("a", "b")])
        print(f"{backend:28}", *(f"{pair_ms(embedder, tokens):12.1f}" for tokens in (20, 100, 250, 2000)))
        embedder.close()
    for backend in BACKENDS:
        asyncio.run(through_sidecars(backend, rounds))


def pair_ms(embedder: Embedder, tokens: int) -> float:
    """Processor time of a pair, of eight at a time, for three seconds or more."""
    process = embedder._child._process
    assert process is not None
    done, began, before = 0, time.monotonic(), processor_s(process.pid)
    while time.monotonic() - began < 3:
        embedder.compare([(text(tokens), text(tokens)) for _ in range(8)])
        done += 8
    return (processor_s(process.pid) - before) / done * 1e3


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def text(tokens: int) -> str:
    return TOKENIZER.decode(some(tokens))


def some(tokens: int) -> list[int]:
    at = random.randrange(len(IDS) - tokens)
    return IDS[at : at + tokens]


async def through_sidecars(backend: str, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        sides: list[tuple[Way, ScriptedEngine]] = []
        for name in ("none", backend):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options = {"similarity": name, "similarity_share": 1.0, "similarity_per_minute": 6000.0}
            made = await stack.enter_async_context(way(folder, answering(partial(reply, [0])), engine=False, **options))
            sides.append((made, ScriptedEngine(folder / "events", **MODELS)))
        similarity = sides[1][0].sidecar.recorder.similarity
        for made, engine in sides:
            await requests(made, engine, 20)
        await until(lambda: similarity.count, 120)
        figures: list[list[tuple[float, float]]] = [[], []]
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                took = sorted(await requests(*sides[side], REQUESTS))
                figures[side].append((took[len(took) // 2], took[len(took) * 99 // 100]))
            await until(lambda: not similarity._waiting and not similarity._working, 600)
        for place, name in enumerate(("p50", "p99")):
            off, on = ([each[place] * 1e3 for each in side] for side in figures)
            ratio = statistics.median(b / a for a, b in zip(off, on, strict=True))
            medians = f"{statistics.median(off):.2f} ms, {statistics.median(on):.2f} ms comparing"
            print(f"{backend}: {name} {medians}: x{ratio:.3f}")
        print(f"{backend}: {similarity.state()['dropped']} of {rounds * REQUESTS} pairs dropped, the others compared")


async def requests(made: Way, engine: ScriptedEngine, count: int) -> list[float]:
    """Seconds of each; for each the engine tells a reply of 100 tokens, of which the draft missed every third."""
    took: list[float] = []

    async def one(number: int) -> None:
        began = time.perf_counter()
        await made.ask({"stream": True})
        took.append(time.perf_counter() - began)
        final, draft = some(100), some(100)
        steps = [((draft[i], 0), (final[i],)) if i % 3 else ((final[i],), (final[i], final[i])) for i in range(100)]
        engine.send(*whole(f"chatcmpl-{number}-{random.randrange(10**6)}-00000001", steps))

    for at in range(0, count, CONCURRENCY):
        await asyncio.gather(*(one(at + i) for i in range(CONCURRENCY)))
    return took


def reply(count: list[int], _body: bytes) -> bytes:
    count[0] += 1
    return chunked(*chat(f"chatcmpl-x{count[0]}"))


if __name__ == "__main__":
    main()
