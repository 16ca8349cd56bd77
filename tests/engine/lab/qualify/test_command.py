import asyncio
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.lab import recorded
from specwatch_engine.lab.__main__ import parser_of
from specwatch_engine.lab.limits import Limits
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.prompts import CHAT, Prompt, PromptError
from specwatch_engine.lab.qualify import certificate, command
from specwatch_engine.lab.qualify.outputs import Outputs
from specwatch_engine.lab.run import Run, RunError, State
from specwatch_engine.lab.stand import Engine, StandError
from specwatch_engine.lab.summary import Summary, read
from specwatch_engine.lab.sweep.table import KEY
from specwatch_engine.launch.config import load
from support.steered_engine import TOKEN
from support.upstream import running


def options(*argv: str) -> Namespace:
    # Step times are the machine's: what is made of them is tested without one.
    return parser_of("qualify", command).parse_args(["--step-prompts", "2", "--similarity", "none", *argv])


async def qualified(url: str, prompts: Path, out: Path, *argv: str) -> tuple[int, Summary]:
    """Exit status and summary of a run in `out`, which is gone on with where it is there."""
    plain = ["--number", "40", "--pairs", "12", "--concurrency", "2", "--concurrencies", "2"]
    args = options("--engine", url, "--prompts", str(prompts), *plain, *argv)

    def whole() -> int:
        run = Run.resume(out) if (out / "run.json").exists() else Run.create("qualify", vars(args), out)
        try:
            return command.run(args, run, Say())
        finally:
            run.close()

    code = await asyncio.to_thread(whole)
    return code, read(json.loads((out / "run.json").read_text())["summary"])


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", TOKEN)


def row_of(summary: Summary, name: str) -> dict[str, Any]:
    table = summary.tables[0]
    return next(dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] == name)


async def test_the_weak_scenario_is_found_though_the_global_p_passes(
    drafting: Any, prompt_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    async with running(drafting.handler) as upstream:
        code, summary = await qualified(upstream.url, prompt_file, out, "--p", "0.6", "--sign-off", "Ada")
    said = capsys.readouterr().err
    assert "p is measured with 80 prompts at 2 in flight; then step times with at most 2, and both ways are" in said
    assert "the rest takes about" in said
    assert row_of(summary, "billing")["standing"] == "good enough"
    assert row_of(summary, "faults")["standing"] == "rejected"
    assert summary.tables[0].rows[0][0] == "faults"
    gates = {gate.name: gate.passed for gate in summary.gates}
    assert (gates["p"], gates["replies"], gates["draft step"]) == (True, True, None)
    # The tokenizers of a pair that exists on paper only cannot be compared.
    assert (gates["tokenizers"], summary.verdict, code) == (None, "cannot tell", 2)
    document = certificate.read((out / "certificate.json").read_bytes())
    assert (document["signed_off_by"], document["verdict"]) == ("Ada", "cannot tell")
    assert {name: each["certified"] for name, each in document["scenarios"].items()} == {
        "billing": False,
        "faults": False,
    }
    assert document["limits"] == {"p": 0.6, "draft_step": Limits().draft_step}
    assert {"report.html", "report.md", "run.json"} <= {path.name for path in out.iterdir()}
    # Texts stay out of the rows, and the engine is left as it was.
    assert not any("q17" in path.read_text() for path in out.glob("*.jsonl"))
    assert (drafting.cap, drafting.mode) == (None, "hard")


def rows_of(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


async def test_a_run_goes_on_where_it_was_cut(drafting: Any, prompt_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    drafting.fails = {f"q{i}" for i in range(120)} - {"q1", "q2", "q3"}
    async with running(drafting.handler) as upstream:
        with pytest.raises(StandError, match="failed"):
            await qualified(upstream.url, prompt_file, out, "--number", "120")
        drafting.fails, drafting.refuses_plain = {"q7"}, True
        with pytest.raises(StandError, match="failed"):
            await qualified(upstream.url, prompt_file, out, "--number", "120")
        answered = [row["prompt"] for row in rows_of(out, "speculative") if row["outcome"] == "ok"]
        # Each was answered once, in the one run or the other.
        assert len(answered) == len(set(answered)) == 119
        assert len(rows_of(out, "steps")) == 2
        drafting.refuses_plain = False
        code, summary = await qualified(upstream.url, prompt_file, out, "--number", "120")
        assert len(rows_of(out, "steps")) == 2
        drafting.asked.clear()
        assert await qualified(upstream.url, prompt_file, out, "--number", "120") == (code, summary)
    assert drafting.asked == []
    assert any("1 of 120 requests failed (1 upstream_error)" in reason for reason in summary.reasons)


def test_replies_that_were_compared_twice_count_once(tmp_path: Path) -> None:
    run = Run.create("qualify", {}, tmp_path / "run")
    run.append("facts", {})
    for identical in (False, True):
        # The end of the process came between a round's replies and its pairs, and the round was served again.
        run.append("outputs", msgspec.to_builtins(Outputs("a", "s", identical, concurrency=4)))
    run.append("outputs", msgspec.to_builtins(Outputs("a", "s", True, concurrency=1)))
    assert [each.identical for each in command.evidence(run, Limits()).outputs] == [True, True]


def test_recorded_traffic_that_is_gone_ends_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [Prompt(f"p{i}", "s", {"messages": []}, CHAT) for i in range(31)]
    monkeypatch.setattr(recorded, "recorded", lambda source, tell, most, until: there[:30])
    run = Run.create("qualify", {}, tmp_path / "run")
    args = options("--prompts", "http://127.0.0.1:1", "--engine", "http://127.0.0.1:1")
    with pytest.raises(StandError, match="nothing answers"):
        command._measure(args, run, Say())
    monkeypatch.setattr(recorded, "recorded", lambda source, tell, most, until: there[1:])
    with pytest.raises(PromptError, match="begin a new run"):
        command._measure(args, run, Say())
    run.close()


async def test_what_will_not_be_told_is_said_before_an_engine_is_looked_for(
    prompt_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StandError, match="nothing answers"):
        await qualified("http://127.0.0.1:9", prompt_file, tmp_path / "run")
    said = capsys.readouterr().err
    assert "warning: --step-prompts: 2 are too few" in said
    assert "warning: --pairs: whether it is slower than plain decoding will be told of none: give at least 45" in said
    few = tmp_path / "few.jsonl"
    lines = (await asyncio.to_thread(prompt_file.read_text)).splitlines(keepends=True)
    few.write_text("".join(lines[:11]))
    with pytest.raises(RunError, match="--prompts: 11 are too few for any verdict"):
        await qualified("http://127.0.0.1:9", few, tmp_path / "other")


async def test_a_run_that_ended_is_only_signed(drafting: Any, prompt_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    async with running(drafting.handler) as upstream:
        await qualified(upstream.url, prompt_file, out)
        unsigned = certificate.read((out / "certificate.json").read_bytes())
        drafting.asked.clear()
        await qualified(upstream.url, prompt_file, out, "--sign-off", "Grace Hopper")
    assert drafting.asked == []
    signed = certificate.read((out / "certificate.json").read_bytes())
    assert signed == unsigned | {"signed_off_by": "Grace Hopper", "sha256": signed["sha256"]}
    assert "signed off by Grace Hopper" in (out / "report.md").read_text()


async def test_replies_that_differ_are_told_by_the_letter_without_an_embedder(
    drafting: Any, prompt_file: Path, tmp_path: Path
) -> None:
    drafting.says = {f"q{i}": "other" for i in range(1, 120)}
    async with running(drafting.handler) as upstream:
        _, summary = await qualified(upstream.url, prompt_file, tmp_path / "run")
    gate = next(gate for gate in summary.gates if gate.name == "replies")
    assert gate.passed is None
    assert "--similarity is none" in gate.words


async def test_without_the_plugin_p_is_told_and_the_rest_said_to_be_missing(
    drafting: Any,
    prompt_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SPECWATCH_ENGINE_TOKEN")
    async with running(drafting.handler) as upstream:
        code, summary = await qualified(upstream.url, prompt_file, tmp_path / "run")
    gates = {gate.name: gate for gate in summary.gates}
    assert (code, gates["p"].passed) == (2, True)
    assert gates["draft step"].passed is None
    assert "SPECWATCH_ENGINE_TOKEN" in gates["draft step"].words
    said = capsys.readouterr().err
    assert "warning: the draft can be rejected, but not qualified: there is no plain decoding to measure with" in said
    assert not any(plain for _, plain in drafting.asked)


async def test_an_engine_that_drafts_whatever_the_cap_is_not_compared_with_itself(
    drafting: Any, prompt_file: Path, tmp_path: Path
) -> None:
    drafting.mode = "soft"
    async with running(drafting.handler) as upstream:
        code, summary = await qualified(upstream.url, prompt_file, tmp_path / "run")
    assert code == 2
    assert not any(plain for _, plain in drafting.asked)
    words = "were not compared with plain decoding: this engine drafts whatever the cap"
    assert any(words in reason for reason in summary.reasons)


# ---- tokenizers and the engine's table


def test_drafts_of_no_model_have_no_tokenizer_to_compare(tmp_path: Path) -> None:
    engine = Engine("http://h", "m", TOKEN, target="/models/target", fingerprint={"method": "ngram"})
    assert command.tokenizers(options(), engine) == {"report": None, "reason": None}
    run = Run.create("qualify", {}, tmp_path / "run")
    run.append("facts", {})
    run.append("tokenizers", {"report": None, "reason": None})
    assert command.evidence(run, Limits()).tokenizers is None
    run.close()


def test_a_head_drafts_in_the_targets_ids(tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text('{"vocab_size": 100}')

    def found(method: str) -> dict[str, Any]:
        target = str(CHECKPOINTS / "target")
        engine = Engine("http://h", "m", TOKEN, target=target, draft=str(head), fingerprint={"method": method})
        return command.tokenizers(options(), engine)

    assert found("eagle3")["report"]["verdict"] == "aligned"
    assert "holds no tokenizer.json" in found("draft_model")["reason"]


def test_tokenizers_of_an_engine_elsewhere_are_named_by_options() -> None:
    engine = Engine("http://h", "m", TOKEN, target="/at/its/host/t", draft="/at/its/host/d")
    reason = command.tokenizers(options(), engine)["reason"]
    assert reason == "/at/its/host/t: no such folder here: give --target-tokenizer, --draft-tokenizer, or both"
    given = ["--target-tokenizer", str(CHECKPOINTS / "target"), "--draft-tokenizer", str(CHECKPOINTS / "target")]
    assert command.tokenizers(options(*given), engine)["report"]["verdict"] == "aligned"
    silent = Engine("http://h", "m", TOKEN, target="t")
    words = "the engine does not tell its draft: give --draft-tokenizer"
    assert command.tokenizers(options(), silent)["reason"] == words
    words = "the engine does not tell its target: set SPECWATCH_ENGINE_TOKEN, or give --target-tokenizer"
    assert command.tokenizers(options(), Engine("http://h", "m", None))["reason"] == words


@pytest.mark.parametrize(
    ("name", "speculative", "expected"),
    [
        ("flat", {"num_speculative_tokens": 4}, [[1, 30, 4], [31, 31, 1], [32, 32, 0]]),
        ("its own", {"num_speculative_tokens": 4, KEY: [[1, 4, 4], [5, 32, 0]]}, [[1, 4, 4], [5, 31, 0], [32, 32, 1]]),
        ("a method of one length", {"method": "suffix", "num_speculative_tokens": 4}, None),
        ("no draft", None, None),
    ],
)
def test_an_engine_of_its_own_has_a_table_with_each_k_that_is_timed(
    name: str, speculative: dict[str, Any] | None, expected: list[list[int]] | None, tmp_path: Path
) -> None:
    source = tmp_path / "engine.yaml"
    written: dict[str, Any] = {"model": "org/target", "max_num_seqs": 32}
    if speculative is not None:
        model = {} if "method" in speculative else {"model": "org/draft"}
        written["speculative_config"] = model | speculative
    source.write_text(yaml.safe_dump(written))
    run = Run.create("qualify", {}, tmp_path / "run")
    found, every_k = command._options(options("-c", str(source), "--prompts", "p"), run, Say())
    assert every_k is (expected is not None)
    assert found.config is not None
    table = (load(found.config).speculative or {}).get(KEY)
    assert table == expected
    # There is no room beside so many requests.
    many = options("-c", str(source), "--prompts", "p", "--concurrencies", "30")
    assert command._options(many, run, Say())[1] is False
    assert command._options(options("--engine", "http://h"), run, Say())[1] is False
    run.close()


def test_a_file_that_the_launcher_does_not_take_is_for_the_launcher_to_refuse(tmp_path: Path) -> None:
    source = tmp_path / "engine.yaml"
    source.write_text("modle: x\n")
    run = Run.create("qualify", {}, tmp_path / "run")
    found, every_k = command._options(options("-c", str(source)), run, Say())
    assert (found.config, every_k) == (source, False)
    run.close()


async def test_another_engine_cannot_go_on_with_a_run(drafting: Any, prompt_file: Path, tmp_path: Path) -> None:
    drafting.fails = {f"q{i}" for i in range(120)}
    async with running(drafting.handler) as upstream:
        with pytest.raises(StandError):
            await qualified(upstream.url, prompt_file, tmp_path / "run")
        drafting.draft_model = "/models/draft_b"
        with pytest.raises(StandError, match="has draft /models/draft_b, the run began with /models/draft_a"):
            await qualified(upstream.url, prompt_file, tmp_path / "run")


async def test_an_engine_that_another_capped_meanwhile_is_not_qualified(
    drafting: Any, prompt_file: Path, tmp_path: Path
) -> None:
    run = Run.create("qualify", {}, tmp_path / "run")
    async with running(drafting.handler) as upstream:
        engine = Engine(upstream.url, "m", TOKEN, k=4)
        await asyncio.to_thread(command.undisturbed, run, engine)
        drafting.cap = 1
        with pytest.raises(StandError, match="may draft 1 tokens a step now, not the 4 of its configuration"):
            await asyncio.to_thread(command.undisturbed, run, engine)
    with pytest.raises(StandError, match="begin a new run"):
        command._measure(options("--prompts", str(prompt_file)), run, Say())


def test_a_run_without_measurements_is_not_judged(tmp_path: Path) -> None:
    run = Run.create("qualify", {}, tmp_path / "run")
    with pytest.raises(RunError, match="no measurements"):
        command.evidence(run, command.Limits())
    assert run.told["state"] == State.RUNNING
    run.close()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--p", "1.2"], "--p: must be a number between 0 and 1, not '1.2'"),
        (["--p", "nan"], "--p: must be a number between 0 and 1"),
        (["--draft-step", "0"], "--draft-step: must be a number between 0 and 1"),
        (["--concurrencies", "1,x"], "--concurrencies: must be whole numbers of at least 1, as 1,4,16, not '1,x'"),
        (["--concurrency", "0"], "--concurrency: must be a whole number"),
        (["--valid-days", "9999"], "--valid-days: must be a number of days, 3660 at most"),
        (["--similarity", "bleu"], "--similarity: invalid choice"),
    ],
)
def test_a_wrong_option_is_named(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*argv)
    assert said in capsys.readouterr().err
