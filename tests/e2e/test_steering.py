"""An engine with the plugin and a sidecar beside it, each started by its own command, on a draft with moved ids."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from specwatch_engine.demo.dialogues import SCENARIOS, dialogue
from specwatch_engine.demo.prepare import prepare
from support.engine import SMALL, Engine, engine
from support.sidecar import Sidecar

K = 4
ENDPOINTS = {
    "completions": ("/v1/completions", {"prompt": "My bill is wrong", "max_tokens": 24}),
    "chat_completions": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "My bill is wrong"}], "max_tokens": 24},
    ),
    "responses": ("/v1/responses", {"input": "My bill is wrong", "max_output_tokens": 24}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "My bill is wrong"}], "max_tokens": 24}),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Sidecar]]:
    folder = tmp_path_factory.mktemp("steering")
    models = prepare(folder / "models", layers=4)
    config = {
        "model": str(models["target"]),
        **SMALL,
        "speculative_config": {
            "method": "draft_model",
            "model": str(models["draft_misaligned"]),
            "num_speculative_tokens": K,
        },
    }
    with engine(folder, config) as running:
        sidecar = Sidecar(folder, running, recent_drafts=20)
        try:
            yield running, sidecar
        finally:
            sidecar.stop()


def chat(at: int, **more: Any) -> dict[str, Any]:
    messages = dialogue(f"steering-{at}", SCENARIOS[at % len(SCENARIOS)], "en").messages[:-1]
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 120, **more}


def test_the_moved_id_is_named_within_a_hundred_requests(both: tuple[Engine, Sidecar]) -> None:
    _, sidecar = both
    with httpx.Client(timeout=120) as client, ThreadPoolExecutor(8) as pool:
        for sent in range(8, 101, 8):
            bodies = [chat(at) for at in range(sent - 8, sent)]
            list(pool.map(lambda body: client.post(f"{sidecar.proxy}/v1/chat/completions", json=body), bodies))
            time.sleep(0.3)
            found = sidecar.api("alignment")
            if found["state"] == "misaligned":
                break
    print(f"named after {found['requests']} requests: {found['moved']}")
    assert found["state"] == "misaligned", found
    assert found["requests"] <= 100
    (moved,) = found["moved"]
    assert (moved["target_text"], moved["draft_text"]) == ("<|eot|>", "<|eot|>")
    assert abs(moved["target_id"] - moved["draft_id"]) == 1
    deadline = time.monotonic() + 10
    while not (rows := sidecar.rows("select * from alignments")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (rows[0]["target_id"], rows[0]["draft_id"]) == (moved["target_id"], moved["draft_id"])
    assert "<|eot|>" in sidecar.command("status").stdout
    (draft, *_) = sidecar.api("drafts")["drafts"]
    assert draft["draft_text"]
    assert draft["final_text"]
    assert "specwatch_tokenizer_aligned 0.0" in httpx.get(f"{sidecar.admin}/metrics").text


def test_fallback_without_a_second_engine(both: tuple[Engine, Sidecar]) -> None:
    running, sidecar = both
    turned = sidecar.command("fallback", "autoregressive", "--reason", "drill")
    assert turned.returncode == 0, turned.stderr
    try:
        before, last = running.counters(), sidecar.last_row()
        for path, body in ENDPOINTS.values():
            ask = {"model": "demo", "temperature": 0, "vllm_xargs": {"seen": 1}, **body}
            answer = httpx.post(sidecar.proxy + path, json=ask, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-specwatch-arm"] == "autoregressive"
        rows = sidecar.fresh_rows(last, len(ENDPOINTS))
        assert [row["endpoint"] for row in rows] == list(ENDPOINTS)
        for row in rows:
            assert (row["arm"], row["upstream"]) == ("autoregressive", "speculative")
            assert row["acceptance_reason"] == "served without speculation"
            assert row["completion_tokens"] > 1
        assert running.counters() == before
    finally:
        sidecar.command("fallback", "auto")
    metrics = httpx.get(f"{sidecar.admin}/metrics").text
    assert "specwatch_opt_out_ineffective_total 0.0" in metrics


def test_rows_and_counters_agree_on_every_endpoint_and_for_several_replies(both: tuple[Engine, Sidecar]) -> None:
    running, sidecar = both
    before, last = running.counters(), sidecar.last_row()
    several = {"model": "demo", "prompt": ["one", "two"], "n": 2, "temperature": 0.5, "seed": 2}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", chat(1, n=3, temperature=0.5, seed=1)),
        ("/v1/completions", several),
        ("/v1/chat/completions", chat(2, stop=["e"])),
    ]
    for stream in (False, True):
        asked += [
            (path, {"model": "demo", "temperature": 0, "stream": stream, **body}) for path, body in ENDPOINTS.values()
        ]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: httpx.post(sidecar.proxy + each[0], json=each[1], timeout=60), asked))
    assert [answer.status_code for answer in answers] == [200] * len(asked)
    rows = sidecar.fresh_rows(last, len(asked))
    counted = tuple(now - then for now, then in zip(running.counters(), before, strict=True))
    for row in rows:
        if row["completion_tokens"] > 1:
            assert row["acceptance_source"] == "engine", row
            assert row["prompt_tokens"] > 0
    sums = tuple(sum(row[name] or 0 for row in rows) for name in ("verify_steps", "draft_tokens", "accepted_tokens"))
    print(f"rows {sums}, engine {counted}")
    assert sums == counted


def test_the_cap_as_an_operator_sets_it(both: tuple[Engine, Sidecar]) -> None:
    running, sidecar = both
    assert sidecar.command("cap", "2", "--reason", "a full batch").returncode == 0
    last = sidecar.last_row()
    answer = httpx.post(f"{sidecar.proxy}/v1/chat/completions", json=chat(3), timeout=60)
    assert answer.status_code == 200
    (row,) = sidecar.fresh_rows(last, 1)
    assert "cap 2" in row["fingerprint"]
    assert max(at for at, count in enumerate(json.loads(row["acceptance_histogram"])) if count) <= 2
    assert row["draft_tokens"] <= 2 * row["verify_steps"]
    assert "cap" in sidecar.command("status").stdout
    assert [core["cap"] for core in sidecar.api("engine")["engines"][0]["cores"]] == [2]
    refused = sidecar.command("cap", str(K + 1))
    assert refused.returncode == 1
    assert f"from 0 to {K}" in refused.stderr
    assert sidecar.command("cap", "default").returncode == 0
    assert running.state()["cap"] is None


def test_a_swap_that_would_move_ids_is_refused(both: tuple[Engine, Sidecar]) -> None:
    running, sidecar = both
    before = running.state()["draft_model"]
    refused = sidecar.command("swap", before.replace("draft_misaligned", "draft_generalist"))
    assert refused.returncode == 1
    assert "gives tokens another id" in refused.stderr
    assert running.state()["draft_model"] == before


def test_the_feed_resumes_after_a_sidecar_was_killed(both: tuple[Engine, Sidecar]) -> None:
    running, sidecar = both
    sidecar.stop(signal.SIGKILL)
    for at in range(3):
        assert running.complete(prompt=f"nobody listens {at}", max_tokens=24)["choices"]
    dropped = running.state()["events"]
    assert dropped["dropped"] > 0
    assert not dropped["connected"]
    sidecar.start()
    deadline = time.monotonic() + 20
    while not running.state()["events"]["connected"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    last = sidecar.last_row()
    httpx.post(f"{sidecar.proxy}/v1/chat/completions", json=chat(4), timeout=60)
    (row,) = sidecar.fresh_rows(last, 1)
    assert row["acceptance_source"] == "engine"
    assert row["draft_tokens"] > 0
