"""A reply served through the proxy shows up, with its true figures, in SQL, the API, the metrics and on the page."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from specwatch_engine.demo.dialogues import SCENARIOS, dialogue
from support.chain import Chain

JsonBody = dict[str, Any]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(scenario: str, seed: str, **more: Any) -> JsonBody:
    made = dialogue(seed, scenario, "en")
    return {"model": "demo", "messages": made.messages[:-1], "temperature": 0, "max_tokens": 100, **more}


def mixed(count: int) -> list[tuple[str, str, JsonBody]]:
    """(path, scenario, body): streaming or not, with and without usage, chat and completions."""
    requests = []
    for number in range(count):
        scenario = SCENARIOS[number % len(SCENARIOS)]
        shape = number % 6
        body = chat(scenario, f"chain-{number}")
        path = CHAT
        if shape in (1, 2, 4):
            body["stream"] = True
        if shape == 2:
            body["stream_options"] = {"include_usage": True}
        if shape in (3, 4):
            path, scenario = COMPLETIONS, "raw_prompt"
            body["prompt"] = body.pop("messages")[0]["content"]
            body["max_tokens"] = 30
        requests.append((path, scenario, body))
    return requests


async def send_all(url: str, requests: list[tuple[str, str, JsonBody]], concurrency: int) -> list[bytes]:
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(path: str, scenario: str, body: JsonBody) -> bytes:
            async with gate:
                answer = await client.post(path, json=body, headers={"x-scenario": scenario})
                assert answer.status_code == 200, answer.text
                return answer.content

        return await asyncio.gather(*(one(*request) for request in requests))


@pytest.fixture(scope="module")
def served(chain: Chain) -> tuple[int, int, int]:
    """200 mixed requests at concurrency 8; gives the deltas of the engine's counters."""
    before, rows = chain.counters(), chain.count_rows()
    asyncio.run(send_all(chain.proxy, mixed(200), 8))
    chain.wait_rows(rows + 200)
    after = chain.counters()
    return tuple(b - a for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


def test_sums_over_rows_equal_the_engines_own_counters(chain: Chain, served: tuple[int, int, int]) -> None:
    (sums,) = chain.rows(
        "select count(*) n, sum(verify_steps) steps, sum(draft_tokens) drafted, sum(accepted_tokens) accepted "
        "from requests where acceptance_source = 'engine'"
    )
    print("\nrows, steps, drafted, accepted:", sums, "engine:", served)
    rest = chain.rows("select distinct acceptance_reason from requests where acceptance_source = 'none'")
    assert sums["n"] > 150
    # A reply of one token is over before the first verify step.
    assert [row["acceptance_reason"] for row in rest] in ([], ["nothing was drafted for this request"])
    assert (sums["steps"], sums["drafted"], sums["accepted"]) == served


def test_the_recorder_inside_the_engine_counts_the_same(chain: Chain, served: tuple[int, int, int]) -> None:
    # Since its start: the launcher's warm-up passed it too, and nothing else did so far.
    total = chain.counters()
    deadline = time.monotonic() + 20
    while True:
        summary = httpx.get(f"{chain.inside}/api/v1/summary", timeout=30).json()
        figures = summary["acceptance"]
        found = tuple(figures[name] for name in ("verify_steps", "draft_tokens", "accepted_tokens"))
        if summary["traffic"]["requests"] == 201 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    print("\ninside:", summary["traffic"]["outcomes"], found, "engine:", total)
    assert summary["traffic"]["outcomes"]["ok"] == 201
    assert found == total
    # It is inside the engine, whose plugin heeds opt-outs.
    assert summary["fallback"]["can_fall_back"] is True


def test_what_the_reply_does_not_tell_the_engines_events_do(chain: Chain, served: tuple[int, int, int]) -> None:
    rows = chain.count_rows()
    with httpx.Client(base_url=chain.proxy, timeout=60) as client:
        for stream in (False, True):
            answer = client.post(CHAT, json=chat("code", "two", n=2, stream=stream) | {"temperature": 0.5})
            assert answer.status_code == 200
        assert client.post(CHAT, json=chat("code", "none") | {"model": "nobody"}).status_code == 404
        long = chat("fault_report", "leave", stream=True, ignore_eos=True) | {"max_tokens": 900}
        with client.stream("POST", CHAT, json=long) as left:
            seen = b""
            for read in left.iter_raw():
                seen += read
                if seen.count(b'"content":"') > seen.count(b'"content":""'):
                    break
    chain.wait_rows(rows + 4)
    two, streamed, error, abort = chain.rows("select * from requests order by id desc limit 4")[::-1]
    for row in (two, streamed):
        assert row["acceptance_source"] == "engine"
        assert row["draft_tokens"] > 0
        assert row["completion_tokens"] > 0
        assert row["outcome"] == "ok"
    assert (error["outcome"], error["status"]) == ("upstream_error", 404)
    assert abort["outcome"] == "client_abort"
    assert abort["completion_tokens"] > 0
    assert abort["ttft_ms"] > 0


def test_the_figures_are_the_same_in_sql_api_and_metrics(chain: Chain, served: tuple[int, int, int]) -> None:
    of_all, (sums,) = (
        chain.rows(
            "select sum(verify_steps) steps, sum(draft_tokens) drafted, sum(accepted_tokens) accepted "
            f"from requests where acceptance_quality = 'ok' and draft_tokens > 0 {ended}"
        )
        for ended in ("", "and outcome = 'ok'")
    )
    window = chain.api("summary")["acceptance"]
    assert window["draft_tokens"] == sums["drafted"]
    assert window["p"] == pytest.approx(sums["accepted"] / sums["drafted"])
    assert window["mean_acceptance_length"] == pytest.approx(1 + sums["accepted"] / sums["steps"])
    last = chain.rows(
        "select sum(accepted_tokens) * 1.0 / sum(draft_tokens) p from (select * from requests where "
        "acceptance_quality = 'ok' and draft_tokens > 0 and outcome = 'ok' "
        "order by started_at desc, id desc limit 100)"
    )
    assert chain.api("summary")["last_100"]["p"] == pytest.approx(last[0]["p"])
    text = httpx.get(f"{chain.admin}/metrics").text
    # The counters have the requests of clients that left as well.
    assert metric(text, "specwatch_accepted_length_tokens_count", upstream="speculative") == of_all[0]["steps"]
    assert metric(text, "specwatch_accepted_length_tokens_sum", upstream="speculative") == of_all[0]["accepted"]
    assert metric(text, "specwatch_draft_tokens_total", upstream="speculative") == of_all[0]["drafted"]
    assert metric(text, "specwatch_accepted_tokens_total", upstream="speculative") == of_all[0]["accepted"]
    rejected: Counter[int] = Counter()
    counted: Counter[int] = Counter()
    for row in chain.rows("select outcome, rejected_at from requests where rejected_at is not null"):
        for position, count in enumerate(json.loads(row["rejected_at"]), start=1):
            counted[position] += count
            rejected[position] += count if row["outcome"] == "ok" else 0
    total = chain.api("truncation")["total"]
    assert total["rejected_at"] == [rejected[position] for position in range(1, 5)]
    for position in range(1, 5):
        assert metric(text, "specwatch_truncations_total", position=str(position)) == counted[position]


def metric(text: str, name: str, **labels: str) -> float:
    """Summed over the labels that are not named."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [
        line for line in text.splitlines() if line.startswith(f"{name}{{") and all(each in line for each in wanted)
    ]
    assert lines, name
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_p_tells_the_scenarios_apart(chain: Chain, served: tuple[int, int, int]) -> None:
    points = {point["group"]: point for point in chain.api("acceptance", by="scenario")["points"]}
    print()
    for name in SCENARIOS:
        point = points[name]
        print(f"{name:22s} p {point['p']:.3f}  length {point['mean_acceptance_length']:.2f}  n {point['requests']}")
    assert points["fault_report"]["p"] < 0.65
    assert points["code"]["p"] > 0.75
    assert points["product_qa"]["p"] > 0.75


#: What differs between two replies to one request: names, clock times and the engine's own measurements.
VARYING = re.compile(
    rb'"id":"[^"]*"|"created":\d+|"[a-z_]+_ms":[0-9.e+-]+|"tokens_per_second":[0-9.e+-]+|"cached_tokens":\d+'
)


def test_bodies_are_those_of_the_engine(chain: Chain, served: tuple[int, int, int]) -> None:
    requests = mixed(24)
    # Once to fill the prefix cache, which changes the last bits of what is computed.
    asyncio.run(send_all(chain.engine, requests, 1))
    straight = asyncio.run(send_all(chain.engine, requests, 1))
    through = asyncio.run(send_all(chain.proxy, requests, 1))
    for request, one, other in zip(requests, straight, through, strict=True):
        assert VARYING.sub(b"", other) == VARYING.sub(b"", one), request
        assert len(one) > 100


def test_a_reply_streams(chain: Chain) -> None:
    with httpx.stream("POST", f"{chain.proxy}{CHAT}", json=chat("billing", "s", stream=True), timeout=60) as answer:
        reads = [bytes(read) for read in answer.iter_raw()]
        assert answer.headers["x-specwatch-arm"] == "speculative"
    assert len(reads) > 3
    assert b"".join(reads).endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in b"".join(reads)


def test_the_openai_client_is_served_unchanged(chain: Chain) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{chain.proxy}/v1", api_key="none")
    messages: Any = chat("product_qa", "client")["messages"]
    whole = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=60)
    parts = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=60, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert text == whole.choices[0].message.content
    assert [model.id for model in client.models.list()] == ["demo"]


def test_the_switch_sends_requests_to_the_plain_engine_and_back(chain: Chain) -> None:
    command = [sys.executable, "-m", "sidecar.cli", "fallback", "-c", str(chain.config)]
    subprocess.run([*command, "autoregressive", "--reason", "drill"], check=True)
    try:
        before, rows = chain.counters(), chain.count_rows()
        answer = httpx.post(f"{chain.proxy}{CHAT}", json=chat("code", "plain"), timeout=60)
        assert answer.headers["x-specwatch-arm"] == "autoregressive"
        chain.wait_rows(rows + 1)
        (row,) = chain.rows("select * from requests order by id desc limit 1")
        assert (row["arm"], row["upstream"]) == ("autoregressive", "autoregressive")
        assert row["acceptance_reason"] == "served without speculation"
        assert chain.counters() == before
        state = chain.api("fallback")
        assert (state["state"], state["mode"], state["reason"]) == ("autoregressive", "autoregressive", "drill")
    finally:
        subprocess.run([*command, "auto", "--reason", "over"], check=True)
    answer = httpx.post(f"{chain.proxy}{CHAT}", json=chat("code", "back"), timeout=60)
    assert answer.headers["x-specwatch-arm"] == "speculative"
    history = chain.api("fallback")["history"]
    assert [(entry["to_state"], entry["reason"]) for entry in history[:2]] == [
        ("speculative", "over"),
        ("autoregressive", "drill"),
    ]


def test_another_draft_is_swapped_in_under_load_and_out_again(chain: Chain, served: tuple[int, int, int]) -> None:
    def swap(draft: str) -> JsonBody:
        command = [sys.executable, "-m", "sidecar.cli", "swap", str(chain.config.parent / "models" / draft)]
        answer = subprocess.run([*command, "-c", str(chain.config), "--json"], check=True, stdout=subprocess.PIPE)
        return dict(json.loads(answer.stdout))

    def under_load(draft: str) -> JsonBody:
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(lambda: asyncio.run(send_all(chain.proxy, mixed(180), 8)))
            time.sleep(1)
            answer = swap(draft)
            assert not load.done(), "nothing was in flight"
            assert len(load.result()) == 180
        return answer

    def rates() -> dict[str, float]:
        # Rows of requests before are under way for a moment.
        time.sleep(2)
        rows = chain.count_rows()
        asyncio.run(send_all(chain.proxy, mixed(60), 8))
        chain.wait_rows(rows + 60)
        last = "select * from requests order by id desc limit 60"
        sums = "sum(accepted_tokens) * 1.0 / sum(draft_tokens) p"
        found = chain.rows(f"select scenario, {sums}, max(draft_model) draft from ({last}) group by scenario")
        print({row["scenario"]: (round(row["p"], 3), row["draft"]) for row in found})
        return {row["scenario"]: row["p"] for row in found}

    generalist = rates()
    there = under_load("draft_specialist")
    specialist = rates()
    back = under_load("draft_generalist")
    again = rates()
    print(there, back)
    assert generalist["fault_report"] < 0.65 < specialist["fault_report"]
    assert specialist["billing"] < generalist["billing"] - 0.1
    for scenario in SCENARIOS:
        assert again[scenario] == pytest.approx(generalist[scenario], abs=0.02)
    (first,), (second,) = (swapped["cores"][0]["workers"] for swapped in (there, back))
    assert first["before"] == second["after"] != first["after"] == second["before"]
    assert chain.api("fallback")["history"][0]["reason"].startswith("draft model swapped for")


def test_status_gives_p(chain: Chain, served: tuple[int, int, int]) -> None:
    command = [sys.executable, "-m", "sidecar.cli", "status", "-c", str(chain.config)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    p = chain.api("summary")["last_100"]["p"]
    assert f"{p:.3f}" in text
    asked = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    assert json.loads(asked)["last_100"]["p"] == pytest.approx(p)


def test_the_dashboard_shows_it(chain: Chain, served: tuple[int, int, int]) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Debian's package chromium is not installed")
    from playwright.sync_api import sync_playwright

    flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    flags += "--disable-component-update --disable-sync"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags.split())
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(chain.dashboard)
        p = chain.api("summary")["last_100"]["p"]
        shown = f"{p:.3f}"
        deadline = time.monotonic() + 60
        while shown not in (text := page.inner_text("body")):
            assert time.monotonic() < deadline, f"{shown} is not on the page: {text}"
            time.sleep(0.5)
        browser.close()
