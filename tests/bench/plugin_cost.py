"""What the engine plugin costs: `python tests/bench/plugin_cost.py [--rounds 12] [--steps-only]`.

First the plugin's own work a verify step, by batch size: with nobody listening, with somebody, and with somebody who
takes nothing; processor time of the thread, medians. Then a real vLLM on the CPU, twice: with the plugin away, and with
it loaded. Each round sends the same requests to the first, to the second while nobody listens, and to the second while
all is captured, in turning order. Given are tokens a second and the processor time a token, each also as the ratio to
the plugin away in the same round.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from specwatch_engine.plugin.compat import scheduler as inside
from support.engine import SMALL, Engine, Listener, engine

MODELS = Path(__file__).parents[2] / "engine" / "demo" / "models"
K = 4
CONCURRENCY = 8

#: Tokens a second, and processor time of all the engine's processes a token, us.
Figures = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=200, help="of each of the 16 replies of a run")
    parser.add_argument("--layers", type=int, default=24, help="of the target")
    parser.add_argument("--steps-only", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps(Path(folder))
        if not options.steps_only:
            engines(Path(folder), options)


# ---- the plugin alone


def steps(folder: Path) -> None:
    print("microseconds a step   batch   nobody listens   captured   listener asleep")
    for size in (1, 8, 16, 64, 256):
        figures = [_step_us(size, folder / "nobody.sock")]
        for asleep in (False, True):
            listener = Listener(folder / "steps.sock")
            if asleep:
                listener.asleep.set()
            figures.append(_step_us(size, listener.path))
            listener.asleep.clear()
            listener.close()
        print(f"                      {size:5d}   {figures[0]:14.1f}   {figures[1]:8.1f}   {figures[2]:15.1f}")


def _step_us(size: int, path: Path) -> float:
    os.environ[inside.EVENTS] = str(path)
    requests = {
        f"chatcmpl-{i:016x}-{i:08x}": Thing(
            request_id=f"chatcmpl-{i:016x}-{i:08x}", spec_token_ids=[1] * K, num_stale_output_tokens=0
        )
        for i in range(size)
    }
    model = Thing(model="m", tokenizer="t")
    scheduler: Any = Thing(
        vllm_config=Thing(
            speculative_config=Thing(
                method="draft_model",
                draft_model_config=model,
                parallel_drafting=False,
                uses_draft_model=lambda: True,
                use_eagle=lambda: False,
            ),
            parallel_config=Thing(data_parallel_index=0, data_parallel_size=1),
            model_config=model,
        ),
        num_spec_tokens=K,
        dynamic_sd_lookup=None,
        max_num_running_reqs=size,
        use_v2_model_runner=False,
        running=list(requests.values()),
        waiting=[],
        requests=requests,
    )
    watch = inside.Watch(scheduler)
    scheduled = Thing(
        scheduled_spec_decode_tokens={name: [1000 + i for i in range(K)] for name in requests},
        num_invalid_spec_tokens=None,
    )
    output = Thing(req_ids=list(requests), sampled_token_ids=[[1000, 1001, 77] for _ in requests])
    taken = []
    for _ in range(60):
        began = time.thread_time_ns()
        for _ in range(32):
            watch.before_schedule(scheduler)
            watch.before_update(scheduler, scheduled, output)
            watch.counted = size
            watch.after_update()
        taken.append((time.thread_time_ns() - began) / 32e3)
        time.sleep(0.002)  # for the listener
    watch.events.close()
    return statistics.median(taken[10:])


# ---- a whole engine


def engines(folder: Path, options: argparse.Namespace) -> None:
    from specwatch_engine.demo.prepare import prepare

    models = prepare(folder / "models", layers=options.layers)
    config = {
        "model": str(models["target"]),
        **SMALL,
        "speculative_config": {
            "method": "draft_model",
            "model": str(models["draft_generalist"]),
            "num_speculative_tokens": K,
        },
    }
    for name in ("away", "loaded"):
        (folder / name).mkdir()
    # Named plugins are the only ones loaded.
    with engine(folder / "away", config, {"VLLM_PLUGINS": "none"}) as away, engine(folder / "loaded", config) as loaded:
        listener: Listener | None = None
        found: dict[str, list[Figures]] = {"away": [], "idle": [], "captured": []}

        def captured() -> Figures:
            nonlocal listener
            listener = Listener(loaded.events)
            time.sleep(2.5)  # the engine looks for it every 2 s
            try:
                return measured(loaded, options.tokens)
            finally:
                listener.close()
                loaded.complete(max_tokens=4, prompt="so that it sees the end")

        def idle() -> Figures:
            loaded.events.unlink(missing_ok=True)
            return measured(loaded, options.tokens)

        runs: list[tuple[str, Callable[[], Figures]]] = [
            ("away", lambda: measured(away, options.tokens)),
            ("idle", idle),
            ("captured", captured),
        ]
        for _, run in runs:
            run()
        for at in range(options.rounds):
            for name, run in runs[at % 3 :] + runs[: at % 3]:
                found[name].append(run())
    print(f"\n{options.rounds} rounds, medians and quartiles of the ratio to the plugin away in the same round")
    for at, what in enumerate(("tokens/s", "CPU us/token, all processes")):
        for name, values in found.items():
            ratios = [mine[at] / other[at] for mine, other in zip(values, found["away"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            median = statistics.median(value[at] for value in values)
            print(f"{what:28s} {name:9s} {median:9.1f}   {middle:.3f} ({low:.3f}-{high:.3f})")


def measured(on: Engine, tokens: int) -> Figures:
    """Over 16 replies."""
    before, began = _cpu_s(on.process.pid), time.monotonic()
    prompts = [f"Customer {i}: my router number {7 * i} has no light.\nAgent:" for i in range(16)]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        replies = list(pool.map(lambda p: on.complete(prompt=p, max_tokens=tokens, ignore_eos=True), prompts))
    took = time.monotonic() - began
    count = sum(reply["usage"]["completion_tokens"] for reply in replies)
    return count / took, (_cpu_s(on.process.pid) - before) * 1e6 / count


def _cpu_s(launcher: int) -> float:
    """Processor time of all descendants of `launcher`, s."""
    parents: dict[int, list[int]] = {}
    times = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(each.name))
            times[int(each.name)] = int(fields[11]) + int(fields[12])
    total, open_ = 0, [launcher]
    while open_:
        for child in parents.get(open_.pop(), ()):
            total += times[child]
            open_.append(child)
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
