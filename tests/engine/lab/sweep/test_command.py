"""The command from its line to its files, against an engine whose replies take their steps."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specwatch_engine.lab import prompts as prompt_files
from specwatch_engine.lab import recorded
from specwatch_engine.lab.__main__ import main, parser_of
from specwatch_engine.lab.run import Run
from specwatch_engine.lab.summary import read
from specwatch_engine.lab.sweep import command, engine_file
from specwatch_engine.launch.config import load
from support.steered_engine import TOKEN
from support.stepping_engine import SteppingEngine, serving

P = {"easy": 0.99, "hard": 0.7}
K_8 = "num_speculative_tokens: 8"
#: Every k of 2 to 6 and 0, at batch sizes that 8 in flight do not reach.
ALL = [[1, 11, 6], [12, 12, 5], [13, 13, 4], [14, 14, 3], [15, 15, 2], [16, 16, 0]]


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    lines = [
        {"scenario": name, "messages": [{"role": "user", "content": f"{name} {i}"}], "max_tokens": 16}
        for name in P
        for i in range(30)
    ]
    Path("prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("engine.yaml").write_text(
        "model: org/target\nmax_num_seqs: 16\nspeculative_config:\n  model: org/draft # it\n"
        "  num_speculative_tokens: 10\n"
    )


@pytest.fixture
def engine() -> SteppingEngine:
    return SteppingEngine(P)


@pytest.fixture
def url(engine: SteppingEngine) -> Iterator[str]:
    with serving(engine) as found:
        yield found


def sweep(url: str, *more: str) -> int:
    line = ["sweep", "--engine", url, "--prompts", "prompts.jsonl", "--out", "run", "--k", "1,4"]
    line += ["--concurrencies", "2", "--rounds", "3", "--confirm-rounds", "3", "--batch", "4"]
    return main([*line, *more])


def told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("run/run.json").read_text())
    return found


def cells() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/cells.jsonl").read_text().splitlines()]


def test_a_whole_sweep(engine: SteppingEngine, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine.cap, engine.mode = 7, "hard"
    # So much slower that no busy machine hides it: plain decoding, and k=1 with its step more in each reply.
    engine.a, engine.plain = 8.0, 30.0
    assert sweep(url, "--engine-config", "engine.yaml", "--k", "1,2") == 0
    assert (engine.cap, engine.mode) == (7, "hard")
    run = told()
    assert (run["state"], run["verdict"]) == ("done", "recommended")
    summary = read(run["summary"])
    assert all((Path("run") / file).is_file() for file in summary.files.values())
    (chosen,) = (table.rows for table in summary.tables if "by concurrency" in table.title)
    k = chosen[0][1]
    assert k in (1, 2)
    assert [gate.name for gate in summary.gates] == ["gain at 2 in flight", f"k={k} confirmed at 2 in flight"]
    tuned = load(Path("run/speculative_config.tuned.yaml"))
    assert tuned.speculative is not None
    assert tuned.speculative["num_speculative_tokens_per_batch_size"] == [[1, 16, k]]
    assert "# it" in (text := Path("run/speculative_config.tuned.yaml").read_text())
    assert f"# specwatch sweep: recommended by run {run['id']}, R " in text
    assert f"Sweep of k at 2 in flight: recommended. k={k}" in capsys.readouterr().err
    assert "R measured" in Path("run/report.html").read_text()
    rows = cells()
    served = Counter((row["stage"], row["k"]) for row in rows)
    assert served["sweep", 0] == served["confirm", 0] == 3
    assert {n for stage, n in served if stage == "confirm"} == {0, k - 1, k, min(k + 1, 2)}
    asked = {
        stage: {answer["prompt"] for row in rows if row["stage"] == stage for answer in row["answers"]}
        for stage in ("sweep", "confirm")
    }
    assert not asked["sweep"] & asked["confirm"]
    for row in rows:
        assert all((answer["steps"] is None) == (row["k"] == 0) for answer in row["answers"])
        assert all(answer["drafted"] == row["k"] * answer["steps"] for answer in row["answers"] if row["k"])
    blocks: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        blocks.setdefault((row["stage"], row["round"]), []).append(row)
    for block in blocks.values():
        assert len({tuple(answer["prompt"] for answer in row["answers"]) for row in block}) == 1
        assert [row["place"] for row in block] == list(range(len(block)))
    # Again: it is told without being served.
    assert main(["sweep", "--resume", "run"]) == 0
    assert cells() == rows
    assert main(["sweep", "--resume", "run", "--k", "1-3"]) == 2


def test_no_gain_anywhere(url: str, engine: SteppingEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.a, engine.b, engine.plain = 25.0, 5.0, 1.0
    assert sweep(url) == 1
    run = told()
    assert run["verdict"] == "no gain"
    assert not list(Path("run").glob("speculative_config.*"))
    assert "plain decoding (spec_disabled) wins" in capsys.readouterr().err


def test_an_interrupted_sweep_gives_the_cap_back_and_goes_on(
    engine: SteppingEngine, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.cap = 2
    # Amid the second block: 8 requests warm up, and a block has 16.
    engine.on_request = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 35 else None
    assert sweep(url, "--no-confirm") == 130
    assert engine.cap == 2
    assert told()["state"] == "interrupted"
    assert "specwatch sweep --resume" in capsys.readouterr().err
    before = cells()
    assert sum(row["round"] == 0 for row in before) == 3
    engine.on_request = lambda number: None
    own, engine.draft_model = engine.draft_model, "/models/another"
    assert main(["sweep", "--resume", "run"]) == 2
    assert "has draft /models/another, the run began with" in capsys.readouterr().err
    engine.draft_model = own
    # What it finds is a matter of the machine, which has little time for it.
    assert main(["sweep", "--resume", "run"]) in (0, 2)
    after = cells()
    assert after[: len(before)] == before
    again = after[len(before) :]
    # The block that was cut is served whole, and none that was not.
    assert Counter(row["round"] for row in again) == {1: 3, 2: 3}
    assert engine.cap == 2
    assert told()["state"] == "done"


def test_time_that_is_up_ends_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(url, "--minutes", "0.0001") == 2
    said = capsys.readouterr().err
    assert "at most 3 rounds at 2 in flight, of 3 batches each (all ks, plain decoding); then at most 3 of 4" in said
    assert "warning: --minutes: 0 s are left, and 3 rounds, the least for a verdict, take about" in said
    assert (told()["verdict"], told()["state"]) == ("cannot tell", "done")
    assert "--minutes 0.0001 were up" in " ".join(told()["summary"]["reasons"])


def test_what_is_served_needs_no_time_after_a_resume(
    engine: SteppingEngine, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.plain = 30.0
    assert sweep(url) == 0
    assert main(["sweep", "--resume", "run", "--minutes", "0.0001"]) == 0
    assert "warning: --minutes" not in capsys.readouterr().err
    assert main(["sweep", "--resume", "run", "--minutes", "0.0001", "--confirm-rounds", "4"]) in (0, 2)
    assert "3 rounds with the confirmation take about" in capsys.readouterr().err


def test_plain_decoding_is_at_a_cap_of_zero(engine: SteppingEngine, url: str) -> None:
    # Whoever only opts out is drafted for here.
    engine.obeys = False
    assert sweep(url, "--no-confirm") in (0, 2)
    assert told()["state"] == "done"
    rows = [row for row in cells() if row["k"] == 0]
    assert len(rows) == 3
    assert all(answer["steps"] is None for row in rows for answer in row["answers"])


def test_both_engines_have_a_block_s_prompts_in_their_caches(engine: SteppingEngine, url: str) -> None:
    plain = SteppingEngine(P)
    plain.cap = 0
    with serving(plain) as there:
        assert sweep(url, "--no-confirm", "--plain", there) in (0, 2)
    of_plain, of_other = ([json.loads(body)["max_tokens"] for body in each.bodies if body] for each in (plain, engine))
    assert of_plain == [16] * 4 + ([1] * 4 + [16] * 4) * 3
    assert of_other == [16] * 4 + ([1] * 4 + [16] * 8) * 3


def test_a_plain_engine_that_speculates_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(url, "--plain", url) == 2
    assert f"--plain: the engine at {url} speculates itself" in capsys.readouterr().err.replace("\n", " ")


def test_a_done_run_that_goes_on_runs(engine: SteppingEngine, url: str) -> None:
    engine.plain = 30.0
    assert sweep(url) == 0
    # Amid a block of the confirmation, after the 8 requests that warm up.
    last = engine.asked + 14
    states = []

    def request(number: int) -> None:
        states.append((told()["state"], told()["ended_at"]))
        if number == last:
            os.kill(os.getpid(), signal.SIGINT)

    engine.on_request = request
    assert main(["sweep", "--resume", "run", "--confirm-rounds", "4"]) == 130
    assert states[-1] == ("running", None)
    assert told()["state"] == "interrupted"


def test_a_sweep_of_recorded_traffic_goes_on_with_its_own_prompts(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = prompt_files.read("prompts.jsonl")
    monkeypatch.setattr(recorded, "recorded", lambda source, tell, most, until: there)
    assert sweep(url, "--prompts", "http://127.0.0.1:1", "--minutes", "0.0001") == 2
    assert told()["state"] == "done"
    assert main(["sweep", "--resume", "run"]) == 2
    del there[0]
    capsys.readouterr()
    assert main(["sweep", "--resume", "run"]) == 2
    assert " prompts of http://127.0.0.1:1 are gone: begin a new run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "rows", "noted"),
    [
        ("cpu: Some Processor x 4", None, False),
        ("NVIDIA H200 x 1", None, True),
        ("NVIDIA H200 x 1", "[[1, 16, 10]]", True),
        ("NVIDIA H200 x 1", "[[1, 13, 10], [14, 14, 4], [15, 15, 1], [16, 16, 0]]", False),
    ],
)
def test_ks_without_graphs_of_their_own_are_told_of(
    device: str, rows: str | None, noted: bool, engine: SteppingEngine, url: str
) -> None:
    engine.device = device
    if rows is not None:
        with Path("engine.yaml").open("a") as file:
            file.write(f"  num_speculative_tokens_per_batch_size: {rows}\n")
    assert sweep(url, "--engine-config", "engine.yaml", "--minutes", "0.0001") == 2
    reasons = " ".join(told()["summary"]["reasons"])
    assert ("CUDA graphs" in reasons, "k=0, 1, 4 without full" in reasons) == (noted, noted)


@pytest.mark.parametrize(
    ("name", "change", "more", "says"),
    [
        ("no plugin", {"has_route": False}, (), "start it with `specwatch engine`"),
        ("no speculation", {"method": None}, (), "start it with a draft model"),
        ("k too small", {"most": 4}, ("--k", "5-8"), "configured for 4 draft tokens, fewer than all of these"),
        ("a table of its own", {"table": 2}, (), "a table or rule by batch size in its configuration"),
        (
            "drafts can only be dropped",
            {"method": "suffix", "mode": "soft", "soft_only": "the proposer suffix always drafts 10 tokens"},
            (),
            "no plain decoding to compare with: the proposer suffix always drafts 10 tokens, whatever the cap: give",
        ),
        ("no figures", {"tells": False}, (), "--per-request-spec-decode-metrics detailed"),
        ("cold is not possible", {}, ("--baseline", "cold"), "give --baseline opt-out"),
        ("all fail", {"broken": True}, (), "EngineDeadError"),
        ("too many at once", {}, ("--engine-config", "engine.yaml", "--concurrencies", "1,32"), "max_num_seqs 16"),
        ("no such file", {}, ("--engine-config", "none.yaml"), "there is no file none.yaml"),
        ("a batch too small", {}, ("--batch", "1"), "--batch: 1 prompts never keep 2"),
        (
            "too few prompts",
            {},
            ("--concurrencies", "48", "--batch", "48"),
            "a batch has 40 prompts, which never keep 48 requests in flight",
        ),
    ],
)
def test_refusals_name_the_remedy(
    name: str,
    change: dict[str, Any],
    more: tuple[str, ...],
    says: str,
    engine: SteppingEngine,
    url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine.cap = 3 if engine.most >= 3 else None
    for attribute, value in change.items():
        setattr(engine, attribute, value)
    assert sweep(url, *more) == 2, name
    assert says in capsys.readouterr().err.replace("\n", " ")
    assert told()["state"] == "failed"
    assert engine.cap == 3


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--k", "0-3"), "argument --k: 0 is too small"),
        (("--concurrencies", "x"), "is no list of numbers"),
        (("--rounds", "2"), "must be from 3 to 1000"),
        (("--minutes", "-1"), "must be a number above 0"),
    ],
)
def test_wrong_use(more: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sweep("http://127.0.0.1:1", *more)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("cap", [0, 1])
def test_another_who_steers_ends_it(
    cap: int, engine: SteppingEngine, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def steal(number: int) -> None:
        if engine.cap == cap:
            engine.cap = 9

    engine.on_request = steal
    assert sweep(url) == 2
    assert "something else steers it" in capsys.readouterr().err


def test_a_proposer_of_fixed_length_and_ks_beyond_the_engine_s_are_told_of(engine: SteppingEngine, url: str) -> None:
    engine.method, engine.soft_only = "suffix", "the proposer suffix always drafts 4 tokens"
    engine.mode, engine.most = "soft", 4
    plain = SteppingEngine(P, plain=30.0)
    plain.cap = 0
    with serving(plain) as there:
        assert sweep(url, "--k", "3-6", "--no-confirm", "--plain", there) == 0
    assert told()["verdict"] == "recommended, not confirmed"
    assert {row["k"] for row in cells()} == {0, 3, 4}
    reasons = " ".join(told()["summary"]["reasons"])
    assert "can only drop drafts (the proposer suffix always drafts 4 tokens)" in reasons
    assert "suffix takes no table by batch size" in reasons
    assert "k above 4 was not tried" in reasons


@pytest.mark.parametrize(
    ("name", "text", "k", "table"),
    [
        ("k is raised", "model: a/b\nmax_num_seqs: 16\nspeculative_model: c/d\nnum_speculative_tokens: 4\n", 6, ALL),
        (
            "a rule of its own is out of the way",
            f"model: a/b\nspeculation_min_batch_size: 9\nspeculative_model: c/d\nmax_num_seqs: 16\n{K_8}",
            6,
            ALL,
        ),
        (
            "there is no room for all ks",
            f"model: a/b\nspeculative_model: c/d\nmax_num_seqs: 13\n{K_8}",
            6,
            [[1, 13, 6]],
        ),
        ("a method that takes no table", "model: a/b\nspeculative_config: {method: suffix}\n", None, None),
    ],
)
def test_an_engine_that_is_started_may_draft_every_k(
    name: str, text: str, k: int | None, table: list[list[int]] | None
) -> None:
    Path("own.yaml").write_text(text)
    parser = parser_of("sweep", command)
    args = parser.parse_args(["-c", "own.yaml", "--prompts", "prompts.jsonl", "--k", "2-6"])
    made = Run.create("sweep", {}, Path("run"))
    try:
        options = engine_file.options(args, engine_file.source(args, made), made)
    finally:
        made.close()
    assert options.config is not None
    config = load(options.config)
    assert config.num_speculative_tokens == k, name
    assert config.speculative is not None
    assert config.speculative.get("num_speculative_tokens_per_batch_size") == table


def test_target_and_draft_are_started_with_the_largest_k() -> None:
    for name in ("target", "draft"):
        Path(name).mkdir()
        Path(name, "config.json").touch()
    line = ["--target", "target", "--draft", "draft", "--prompts", "p", "--k", "1,7"]
    args = parser_of("sweep", command).parse_args(line)
    made = Run.create("sweep", {}, Path("run"))
    try:
        options = engine_file.options(args, engine_file.source(args, made), made)
    finally:
        made.close()
    assert (options.target, options.draft) == (None, None)
    assert options.config is not None
    assert load(options.config).num_speculative_tokens == 7


def test_a_file_without_a_draft_has_no_k(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text("model: a/b\n")
    assert main(["sweep", "-c", "own.yaml", "--prompts", "prompts.jsonl", "--out", "run"]) == 2
    assert "own.yaml has no draft model" in capsys.readouterr().err
