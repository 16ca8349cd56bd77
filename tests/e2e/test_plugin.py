"""The plugin inside real vLLM: the switch, the opt-out, the events, the swap."""

import json
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine import SMALL, Engine, Listener, Told, engine

MODELS = Path(__file__).parents[2] / "engine" / "demo" / "models"
K = 4
ENGINE = {
    **SMALL,
    # Texts are compared, and in bfloat16 a batch of another shape rounds differently.
    "dtype": "float32",
}
PROMPTS = [f"Customer {i}: my router number {7 * i} has no light.\nAgent:" for i in range(8)]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Listener]]:
    """A target that drafts for itself: every draft is right, unless something harms it."""
    folder = tmp_path_factory.mktemp("twin")
    # A copy, so that a changed checkpoint can be swapped in and out.
    shutil.copytree(MODELS / "target", folder / "draft")
    config = ENGINE | {
        "model": str(MODELS / "target"),
        "speculative_config": {
            "method": "draft_model",
            "model": str(folder / "draft"),
            "num_speculative_tokens": K,
        },
    }
    listener = Listener(folder / "events.sock")
    with engine(folder, config) as running:
        yield running, listener
    listener.close()


def texts(replies: list[dict[str, Any]]) -> list[str]:
    return [reply["choices"][0]["text"] for reply in replies]


def block(reply: dict[str, Any]) -> tuple[int, int, int]:
    """(verify steps, drafted, accepted) of the reply's own block."""
    found = reply["metrics"]["speculative_decoding"]
    return found["num_spec_steps"], found["num_draft_tokens"], found["num_accepted_draft_tokens"]


def rate(replies: list[dict[str, Any]]) -> float:
    """Pooled p."""
    found = [block(reply) for reply in replies]
    return sum(accepted for _, _, accepted in found) / sum(drafted for _, drafted, _ in found)


class Flight:
    """The eight prompts, all in flight; `replies` waits for their ends."""

    def __init__(self, running: Engine, listener: Listener, tokens: int = 300, **body: Any) -> None:
        self._pool = ThreadPoolExecutor(len(PROMPTS))
        seen = set(listener.requests)
        self._futures = [
            self._pool.submit(running.complete, prompt=prompt, max_tokens=tokens, ignore_eos=True, **body)
            for prompt in PROMPTS
        ]
        deadline = time.monotonic() + 60
        while len([told for name, told in listener.requests.items() if name not in seen and told.steps]) < len(PROMPTS):
            assert time.monotonic() < deadline, "not all requests are in flight"
            time.sleep(0.01)

    def done(self) -> bool:
        return any(future.done() for future in self._futures)

    def replies(self) -> list[dict[str, Any]]:
        found = [future.result() for future in self._futures]
        self._pool.shutdown()
        return found


@pytest.fixture(scope="module")
def never(twin: tuple[Engine, Listener]) -> list[str]:
    """The texts of a run without speculation that was never switched."""
    running, listener = twin
    running.cap(0)
    replies = Flight(running, listener).replies()
    running.cap(None)
    assert [block(reply)[1] for reply in replies] == [0] * len(PROMPTS)
    return texts(replies)


def steps_pass(running: Engine, count: int) -> None:
    """So many of the engine's steps."""
    end, deadline = running.state()["step"] + count, time.monotonic() + 30
    while running.state()["step"] < end:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("mode", ["hard", "soft", "cold"])
def test_off_and_on_again_with_requests_in_flight(twin: tuple[Engine, Listener], never: list[str], mode: str) -> None:
    running, listener = twin
    flight = Flight(running, listener)
    off = running.cap(0, mode=mode)
    steps_pass(running, 5)
    on = running.cap(None, mode="hard")
    assert not flight.done(), "the switches came too late to meet requests in flight"
    replies = flight.replies()
    last = running.state()["step"]
    drafted = listener.drafted
    # A control call takes effect with the very next step, in either direction; what the switch back makes the
    # engine draft is verified one step later, or after the prompts are computed anew.
    while_off = range(off["step"] + 1, on["step"] + 1)
    assert len(while_off) >= 3
    assert [drafted[at] for at in while_off] == [0] * len(while_off)
    assert drafted[off["step"]] == K * len(PROMPTS)
    first = next(at for at in range(on["step"] + 1, last) if drafted[at])
    assert first - on["step"] <= (2 if mode != "cold" else 4)
    print(f"{mode}: {len(while_off)} steps off, first drafts {first - on['step']} steps after the order")
    for reply in replies:
        steps, made, accepted = block(reply)
        assert made == accepted > 0, "p is not 1"
        assert steps < 300 / (K + 1) + 10
    assert texts(replies) == never


def test_the_cap_is_a_live_k(twin: tuple[Engine, Listener], never: list[str]) -> None:
    running, listener = twin
    flight = Flight(running, listener)
    orders = []
    for cap in (2, 1, 3):
        orders.append((running.cap(cap)["step"], cap))
        steps_pass(running, 4)
    end = running.cap(None)["step"]
    replies = flight.replies()
    for (start, cap), (stop, _) in zip(orders, [*orders[1:], (end, None)], strict=True):
        # The first step still has what was drafted under a smaller cap.
        assert {listener.drafted[at] for at in range(start + 2, stop + 1)} == {cap * len(PROMPTS)}
    assert all(made == accepted for _, made, accepted in map(block, replies))
    assert texts(replies) == never


def test_opted_out_requests_beside_speculating_ones(twin: tuple[Engine, Listener], never: list[str]) -> None:
    running, listener = twin
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        futures = [
            pool.submit(
                running.complete,
                prompt=prompt,
                max_tokens=300,
                ignore_eos=True,
                **({"vllm_xargs": {"speculative": False}} if at % 2 else {}),
            )
            for at, prompt in enumerate(PROMPTS)
        ]
        replies = [future.result() for future in futures]
    for at, reply in enumerate(replies):
        (told,) = listener.of(reply["id"])
        steps, made, accepted = told.figures
        if at % 2:
            assert (steps, made, accepted) == (0, 0, 0) == block(reply)
        else:
            assert made == accepted >= 300 * K // (K + 1) - K
            assert (steps, made, accepted) == block(reply)
    assert texts(replies) == never
    assert running.state()["opted_out"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "My bill"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "My bill"}]}),
        ("/v1/responses", {"input": "My bill", "max_output_tokens": 24}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "My bill"}]}),
    ],
)
def test_every_endpoint_has_events_and_can_opt_out(
    twin: tuple[Engine, Listener], path: str, body: dict[str, Any]
) -> None:
    running, listener = twin
    for out in ({}, {"vllm_xargs": {"speculative": False}}):
        ask = {"model": "demo", "temperature": 0, "max_tokens": 24, **body, **out}
        if path == "/v1/responses":
            del ask["max_tokens"]
        answer = httpx.post(running.url + path, json=ask, timeout=60)
        assert answer.status_code == 200, answer.text
        (told,) = settled(listener, answer.json()["id"], 1)
        assert told.output_tokens
        steps, made, accepted = told.figures
        assert (made == accepted > 0) if not out else (steps, made) == (0, 0)


def settled(listener: Listener, reply_id: str, count: int) -> list[Told]:
    deadline = time.monotonic() + 5
    while len(found := [told for told in listener.of(reply_id) if told.reason]) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} engine requests of {reply_id}"
        time.sleep(0.01)
    return found


def test_several_replies_and_prompts(twin: tuple[Engine, Listener]) -> None:
    running, listener = twin
    reply = running.complete(prompt=PROMPTS[:2], n=2, temperature=0.5, seed=1)
    assert len(settled(listener, reply["id"], 4)) == 4


def test_events_blocks_and_counters_agree_over_a_thousand_requests(twin: tuple[Engine, Listener]) -> None:
    """Concurrency 8; chat and completions, streams and not, opted out, several replies, stop strings, aborts.

    Sums are compared and not p: several replies are sampled, which spoils the acceptance of all who share a batch with
    them on vLLM's CPU build, with the plugin or without.
    """
    running, listener = twin
    before, told_before = running.counters(), listener.figures()
    known = set(listener.requests)
    with httpx.Client(timeout=120) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: one(running, client, at), range(1000)))
    counters = running.counters()
    # An abort takes a moment to reach the engine.
    deadline = time.monotonic() + 10
    while any(told.reason is None for told in listener.requests.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    fresh = {name: told for name, told in listener.requests.items() if name not in known}
    assert listener.dropped == listener.gaps == 0
    counted = tuple(now - then for now, then in zip(counters, before, strict=True))
    assert tuple(now - then for now, then in zip(listener.figures(), told_before, strict=True)) == counted
    blocks = [(reply_id, figures) for reply_id, figures in found if figures is not None]
    for reply_id, figures in blocks:
        (told,) = [told for name, told in fresh.items() if reply_id in name]
        assert told.figures == figures, reply_id
    without = [told for name, told in fresh.items() if not any(reply_id in name for reply_id, _ in blocks)]
    # What no block tells, because the client left or several replies were asked for, makes up the rest exactly.
    rest = tuple(map(sum, zip(*(told.figures for told in without), strict=True)))
    in_blocks = tuple(map(sum, zip(*(figures for _, figures in blocks), strict=True)))
    assert tuple(a + b for a, b in zip(rest, in_blocks, strict=True)) == counted
    aborted = [told for told in fresh.values() if told.reason == "abort"]
    assert len(aborted) >= 10
    print(
        f"{len(fresh)} engine requests; steps, drafted, accepted: events {listener.figures()}, counters {counted}, "
        f"{len(blocks)} blocks {in_blocks}, {len(without)} without one {rest}, {len(aborted)} aborted"
    )


def one(running: Engine, client: httpx.Client, at: int) -> tuple[str, tuple[int, int, int] | None]:
    """Send the `at`-th of the mixed requests. Returns its reply's id and block; None where the reply has none."""
    pick = random.Random(at)
    ask: dict[str, Any] = {
        "model": "demo",
        "temperature": 0,
        "max_tokens": pick.randint(1, 32),
        "ignore_eos": pick.random() < 0.3,
        "metadata": {"at": str(at)},
    }
    text = f"Customer {at}: {pick.choice(('my router has no light', 'my bill is wrong', 'where is my parcel'))}"
    chat = pick.random() < 0.5
    ask |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    kind = pick.choice(("whole", "whole", "stream", "stream", "stream", "out", "several", "stop", "abort", "abort"))
    url = f"{running.url}/v1/{'chat/' if chat else ''}completions"
    if kind == "out":
        ask["vllm_xargs"] = {"speculative": False}
    if kind == "several":
        ask |= {"n": 2, "temperature": 0.5, "seed": at}
    if kind == "stop":
        ask["stop"] = ["e"]
    if kind in ("stream", "abort"):
        ask |= {"stream": True, "stream_options": {"include_usage": True}}
        if kind == "abort":
            ask |= {"max_tokens": 300, "ignore_eos": True}
        with client.stream("POST", url, json=ask) as answer:
            reply: dict[str, Any] = {}
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    reply = json.loads(line[6:])
                    if kind == "abort":
                        return reply["id"], None
    else:
        answer = client.post(url, json=ask)
        reply = answer.json()
    assert answer.status_code == 200, answer.text
    if kind == "several" or reply["metrics"]["speculative_decoding"] is None:
        return reply["id"], None
    return reply["id"], block(reply)


def test_a_listener_that_sleeps_dies_or_comes_back(twin: tuple[Engine, Listener]) -> None:
    running, listener = twin
    counted = running.counters()
    listener.asleep.set()
    replies = [running.complete(prompt=prompt, max_tokens=64) for prompt in PROMPTS]
    listener.asleep.clear()
    listener.close()
    replies += [running.complete(prompt=prompt, max_tokens=64) for prompt in PROMPTS]
    state = running.state()
    assert not state["events"]["connected"]
    lost = state["events"]["dropped"]
    assert lost > 0
    listener.open()
    deadline = time.monotonic() + 20
    while not running.state()["events"]["connected"]:
        running.complete(prompt="again", max_tokens=2)
        assert time.monotonic() < deadline
        time.sleep(0.2)
    reply = running.complete(prompt=PROMPTS[0], max_tokens=64)
    (told,) = settled(listener, reply["id"], 1)
    assert told.figures == block(reply)
    assert listener.dropped >= lost
    assert listener.gaps > 0
    assert running.counters() > counted
    assert texts(replies[:8]) == texts(replies[8:])


def test_swapping_the_draft_under_load(twin: tuple[Engine, Listener], never: list[str], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    running, listener = twin
    worse = tmp_path / "worse"
    shutil.copytree(MODELS / "target", worse)
    weights = load_file(worse / "model.safetensors")
    torch.manual_seed(0)
    for name, tensor in weights.items():
        weights[name] = (tensor + 0.4 * tensor.float().std() * torch.randn(tensor.shape)).to(tensor.dtype)
    save_file(weights, worse / "model.safetensors", {"format": "pt"})
    booted = running.state()["draft_model"]
    flight = Flight(running, listener)
    swapped = running.order("PUT", "draft", {"checkpoint": str(worse)})
    assert swapped.status_code == 200, swapped.text
    during = flight.replies()
    after = Flight(running, listener).replies()
    back = running.order("PUT", "draft", {"checkpoint": booted})
    assert back.status_code == 200, back.text
    again = Flight(running, listener).replies()
    for replies in (during, after, again):
        assert texts(replies) == never
    rates = [rate(replies) for replies in (during, after, again)]
    assert rates[2] == 1
    assert rates[1] < 0.7
    assert rates[1] < rates[0] < 1
    (first,), (second,) = swapped.json()["engines"][0]["workers"], back.json()["engines"][0]["workers"]
    assert first["before"] == second["after"] != first["after"] == second["before"]
    print(f"p while swapping, after, back: {rates}; {swapped.json()}; {back.json()}")


def test_checkpoints_that_do_not_fit_are_refused_and_harm_nothing(
    twin: tuple[Engine, Listener], tmp_path: Path
) -> None:
    running, listener = twin
    cut = tmp_path / "cut"
    shutil.copytree(MODELS / "target", cut)
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-1000])
    for checkpoint, reason in (
        (MODELS / "draft_specialist", "another shape"),
        (tmp_path / "nowhere", "is no folder"),
        (cut, "checkpoint: "),
    ):
        answer = running.order("PUT", "draft", {"checkpoint": str(checkpoint)})
        assert answer.status_code == 409, answer.text
        assert reason in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "checkpoint"
    assert running.order("PUT", "draft", {"checkpoint": "draft"}).status_code == 400
    replies = Flight(running, listener, tokens=40).replies()
    assert all(made == accepted > 0 for _, made, accepted in map(block, replies))


def test_orders_need_the_token(twin: tuple[Engine, Listener]) -> None:
    running, _ = twin
    before = running.state()["cap"]
    assert running.order("PUT", "speculation", {"cap": 0}, token="wrong").status_code == 401
    assert running.state()["cap"] == before
    refused = running.order("PUT", "speculation", {"cap": K + 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (409, "cap")
