"""The three incidents, on real vLLM: seen, acted on, and over again. What is measured is printed with -s.

A shift of the traffic to a scenario that the draft model hardly knows; a draft whose end of turn has another id; a
temperature raised. On this build of vLLM a temperature above 0 spoils the figures of all that share its batch, so
sampled requests are sent one by one.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from specwatch_engine.demo.dialogues import dialogue
from specwatch_engine.demo.prepare import prepare
from support.chain import free_ports
from support.engine import SMALL, Engine, engine
from support.sidecar import Sidecar

K = 4
GOOD = ("billing", "address_confirmation", "code", "product_qa")
#: Decisions that a test need not wait a minute for.
QUICK = {"fallback_triggers": ["acceptance"], "fallback_dwell_s": 3, "fallback_probe_share": 0.3, "fallback_probes": 20}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare(tmp_path_factory.mktemp("models"), layers=4)


def config(models: dict[str, Path], draft: str) -> dict[str, Any]:
    speculation = {"method": "draft_model", "model": str(models[draft]), "num_speculative_tokens": K}
    return {"model": str(models["target"]), **SMALL, "speculative_config": speculation}


@pytest.fixture(scope="module")
def aligned(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engine(tmp_path_factory.mktemp("aligned"), config(models, "draft_generalist")) as running:
        yield running


def chat(at: int, scenario: str, **more: Any) -> dict[str, Any]:
    messages = dialogue(f"incident-{at}", scenario, "en").messages[:-1]
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 120, **more}


@dataclass
class Traffic:
    """Requests to a sidecar, counted."""

    sidecar: Sidecar
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    arms: Counter[str] = field(default_factory=Counter)

    def send(self, count: int, scenarios: Sequence[str], concurrency: int = 8, **more: Any) -> None:
        with httpx.Client(timeout=120) as client, ThreadPoolExecutor(concurrency) as pool:

            def one(at: int) -> None:
                scenario = scenarios[at % len(scenarios)]
                headers = {"x-scenario": scenario, "x-request-id": f"{scenario}-{at}"}
                url = f"{self.sidecar.proxy}/v1/chat/completions"
                answer = client.post(url, json=chat(at, scenario, **more), headers=headers)
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {answer.text}")
                self.arms[answer.headers["x-specwatch-arm"]] += 1

            list(pool.map(one, range(self.sent, self.sent + count)))
        self.sent += count

    def until(self, reached: Callable[[], Any], scenarios: Sequence[str], most: int, at_a_time: int = 8) -> int:
        """Send requests until something is reached; how many it took."""
        before = self.sent
        while not reached():
            assert self.sent - before < most, (self.sidecar.api("fallback"), self.sidecar.log)
            self.send(at_a_time, scenarios)
        return self.sent - before


class Drafting:
    """When the engine drafted tokens, by its own counters, read every few milliseconds."""

    def __init__(self, engine: Engine) -> None:
        self._url = engine.url
        self._stop = Event()
        self._times: list[float] = []
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Drafting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before = -1.0
        with httpx.Client(timeout=30) as client:
            while not self._stop.wait(0.02):
                asked, now = time.time(), before
                for line in client.get(f"{self._url}/metrics").text.splitlines():
                    if line.startswith("vllm:spec_decode_num_draft_tokens_total{"):
                        now = float(line.rsplit(" ", 1)[1])
                if now > before:
                    before = now
                    self._times.append(asked)

    def after(self, decided: Sequence[dict[str, Any]]) -> float:
        """How long after the first decision tokens were drafted, until the next one, s."""
        at, *later = (unix(row["at"]) for row in decided)
        return max((time - at for time in self._times if at < time < min(later, default=time + 1)), default=0.0)


def decisions(sidecar: Sidecar, name: str = "") -> list[dict[str, Any]]:
    """Rows of a slice's decisions, oldest first, once they are written."""
    time.sleep(0.5)
    return [
        row for row in sidecar.api("fallback")["history"][::-1] if row["slice"] == name and row["trigger"] != "engine"
    ]


def unix(text: str) -> float:
    """Of a time as rows and answers have it, which is UTC."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def states(sidecar: Sidecar) -> dict[str, str]:
    """By slice; the whole is empty."""
    found = sidecar.api("fallback")
    return {"": found["state"]} | {each["slice"]: each["state"] for each in found["slices"]}


@pytest.fixture
def beside(aligned: Engine, models: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., Sidecar]]:
    """Starts a sidecar before the aligned engine, of settings to be given."""
    made: list[Sidecar] = []

    def start(**settings: Any) -> Sidecar:
        made.append(Sidecar(tmp_path, aligned, **settings))
        able(made[-1])
        return made[-1]

    yield start
    for each in made:
        each.stop()
    aligned.cap(None)
    answer = aligned.order("PUT", "draft", {"checkpoint": str(models["draft_generalist"])})
    assert answer.status_code == 200, answer.text


def able(sidecar: Sidecar) -> None:
    deadline = time.monotonic() + 60
    while not sidecar.api("fallback")["can_fall_back"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("actuator", "slices", "name"),
    [("opt_out", [], ""), ("cap", [], ""), ("opt_out", ["scenario"], "scenario=fault_report")],
    ids=["whole", "whole by cap", "slice"],
)
def test_traffic_shifts_to_the_weak_scenario(
    beside: Callable[..., Sidecar],
    aligned: Engine,
    models: dict[str, Path],
    actuator: str,
    slices: list[str],
    name: str,
) -> None:
    sidecar = beside(**QUICK, fallback_actuator=actuator, fallback_slices=slices)
    traffic = Traffic(sidecar)
    traffic.send(120, GOOD)
    assert states(sidecar) == {"": "speculative"}
    with Drafting(aligned) as drafting:
        traffic.until(lambda: states(sidecar).get(name, "speculative") != "speculative", ["fault_report"], 100)
        traffic.send(16, ["fault_report"])
    decided = decisions(sidecar, name)
    opened = decided[0]
    assert (opened["to_state"], opened["trigger"]) == ("autoregressive", "acceptance")
    at = unix(opened["at"])
    weak = "select started_at, latency_ms from requests where scenario = 'fault_report' and arm = 'speculative'"
    ends = [unix(row["started_at"]) + row["latency_ms"] / 1e3 for row in sidecar.rows(weak)]
    ended = sum(end <= at + 0.01 for end in ends)
    evidence = opened["evidence"]
    told = f"{name or 'all traffic'} by {actuator}: decided after {ended} requests of the weak scenario had ended, "
    told += f"p {evidence['p']:.3f} over {evidence['requests']}, last draft {drafting.after(decided):.2f} s later; "
    assert 10 <= ended <= 100
    assert evidence["p"] < 0.65
    if slices:
        # All others go on with speculation.
        before = traffic.arms["speculative"]
        traffic.send(24, GOOD)
        assert traffic.arms["speculative"] == before + 24
        # And the slice is back once a draft model is there that knows it.
        swapped = sidecar.command("swap", str(models["draft_specialist"]))
        assert swapped.returncode == 0, swapped.stderr
    back = traffic.until(
        lambda: set(states(sidecar).values()) == {"speculative"}, ["fault_report"] if slices else GOOD, 600
    )
    rows = [row["to_state"] for row in decisions(sidecar, name)]
    assert rows[-2:] == ["probing", "speculative"]
    told += f"back after {back} more requests; decisions: {', '.join(rows)}; "
    print(f"\n{told}{len(traffic.failures)} of {traffic.sent} failed; served: {dict(traffic.arms)}")
    assert not traffic.failures


def test_the_moved_end_of_turn(models: dict[str, Path], tmp_path: Path) -> None:
    """Named by the static check and by live requests; decoding falls back, and returns when the engine has another."""
    (port,) = free_ports(1)
    with engine(tmp_path, config(models, "draft_misaligned") | {"port": port}) as running:
        sidecar = Sidecar(tmp_path, running, **QUICK | {"fallback_triggers": ["misalignment"]})
        try:
            able(sidecar)
            traffic = Traffic(sidecar)
            with Drafting(running) as drafting:
                took = traffic.until(lambda: states(sidecar)[""] != "speculative", GOOD, 100, at_a_time=1)
                traffic.send(8, GOOD)
            decided = decisions(sidecar)
            opened = decided[0]
            assert opened["trigger"] == "misalignment"
            silent = drafting.after(decided)
            while (found := sidecar.api("alignment"))["state"] != "misaligned":
                traffic.send(1, GOOD)
                assert traffic.sent < 100
            static = found["static"]
            assert static["verdict"] == "misaligned"
            assert [(each["text"], each["target_id"], each["draft_id"]) for each in static["report"]["moved"]] == [
                ("<|eot|>", 4, 5),
                ("<|pad|>", 5, 4),
            ]
            running.process.send_signal(signal.SIGINT)
            running.process.wait(60)
            with engine(tmp_path, config(models, "draft_generalist") | {"port": port}):
                able(sidecar)
                back = traffic.until(lambda: states(sidecar)[""] == "speculative", GOOD, 600)
                rows = [row["to_state"] for row in decisions(sidecar)]
                told = f"decided after {took} requests ({opened['reason']}), last draft {silent:.2f} s later; with an "
                told += f"aligned draft back after {back} more; decisions: {', '.join(rows)}; "
                told += f"{len(traffic.failures)} of {traffic.sent} failed; by files: {static['sentences']}"
                print(f"\nmoved end of turn: {told}")
                assert not traffic.failures
        finally:
            sidecar.stop()


def test_a_temperature_is_raised(beside: Callable[..., Sidecar], aligned: Engine) -> None:
    sidecar = beside(**QUICK, fallback_slices=["scenario", "temperature"])
    traffic = Traffic(sidecar)
    traffic.send(120, GOOD)
    hot = {"temperature": 2.0, "concurrency": 1}
    name = "temperature=>1"
    with Drafting(aligned) as drafting:
        took = 0
        while name not in states(sidecar):
            assert took < 100, (sidecar.api("fallback"), sidecar.log)
            traffic.send(1, GOOD, **hot)
            took += 1
        traffic.send(8, GOOD, **hot)
    decided = decisions(sidecar, name)
    opened = decided[0]
    assert {each for each, state in states(sidecar).items() if state != "speculative"} == {name}
    before = traffic.arms["speculative"]
    traffic.send(24, GOOD)
    assert traffic.arms["speculative"] == before + 24
    print(
        f"\ntemperature 2: decided after {took} requests (p {opened['evidence']['p']:.3f} over "
        f"{opened['evidence']['requests']}), last draft {drafting.after(decided):.2f} s later, "
        f"only {name} switched; {len(traffic.failures)} of {traffic.sent} failed"
    )
    assert not traffic.failures


def test_what_the_probes_tell_of_real_traffic(beside: Callable[..., Sidecar]) -> None:
    """Similarity, coverage, windows and places: they agree with each other and with what is known of the models."""
    sidecar = beside(
        similarity="sentence-transformers",
        similarity_share=1,
        similarity_per_minute=6000,
        baseline_share=0.2,
        counters_every_s=1,
    )
    traffic = Traffic(sidecar)
    began = time.monotonic()
    traffic.send(120, (*GOOD, "fault_report"))
    took = time.monotonic() - began
    assert not traffic.failures
    assert 8 <= traffic.arms["baseline"] <= 45
    compared = wait_for(lambda: settled(sidecar))
    # The model takes some seconds to load, and 64 pairs wait for it at most; others are counted.
    assert len(compared) >= 60
    assert all(row["score"] is not None for row in compared)
    scores = {
        name: [row["score"] for row in compared if row["request_id"].startswith(f"chatcmpl-{name}-")]
        for name in (*GOOD, "fault_report")
    }
    means = {name: sum(found) / len(found) for name, found in scores.items()}
    ends = {
        row["request_id"]: unix(row["started_at"]) + row["latency_ms"] / 1e3
        for row in sidecar.rows("select * from requests")
    }
    lags = sorted(unix(row["at"]) - ends[row["request_id"].removeprefix("chatcmpl-")] for row in compared)
    summary = sidecar.api("summary")
    print(
        f"\nsimilarity of {len(compared)} pairs while {traffic.sent} requests took {took:.1f} s: "
        f"{ {name: round(mean, 3) for name, mean in means.items()} }; lag p50 {lags[len(lags) // 2]:.2f} s, most "
        f"{lags[-1]:.2f} s; dropped {summary['similarity']['dropped']}"
    )
    # Where every guess is right, both texts are the same; the scenario that the draft does not know is the least like.
    assert means["code"] > 0.99
    assert min(means, key=means.__getitem__) == "fault_report"
    assert all(0 < score <= 1.0001 for found in scores.values() for score in found)

    def covered() -> Any:
        (engine,) = sidecar.api("summary")["coverage"]["engines"]
        return engine if engine["coverage"] is not None and engine["coverage"] > 0.99 else None

    engine = wait_for(covered)
    assert engine["rows_draft_tokens"] == engine["draft_tokens"]
    windows = sidecar.api("windows", by="scenario")
    # One takes the last 100 that ended, the other the last 100 that began: requests at once part them a little.
    assert windows["whole"]["requests"] == summary["last_100"]["requests"]
    assert windows["whole"]["p"] == pytest.approx(summary["last_100"]["p"], abs=0.03)
    by_scenario = {each["group"]: each for each in windows["slices"]}
    assert by_scenario["fault_report"]["p"] < 0.65 < by_scenario["billing"]["p"]
    places = sidecar.api("places")["places"]
    rows = sidecar.rows("select sum(draft_tokens) d, sum(accepted_tokens) a from requests")
    assert (sum(each["draft_tokens"] for each in places), sum(each["accepted_tokens"] for each in places)) == (
        rows[0]["d"],
        rows[0]["a"],
    )
    print(
        f"coverage {engine['coverage']:.4f}; {[(each['place'], round(each['p'], 3)) for each in places if each['p']]}"
    )


def settled(sidecar: Sidecar) -> list[dict[str, Any]] | None:
    """All pairs of texts, once no more of them come."""
    rows = sidecar.rows("select * from similarities")
    time.sleep(3)
    return rows if rows and len(sidecar.rows("select id from similarities")) == len(rows) else None


def wait_for(found: Callable[[], Any], limit_s: float = 120) -> Any:
    deadline = time.monotonic() + limit_s
    while (value := found()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value
