import json
from collections import Counter
from pathlib import Path

import pytest
from specwatch_engine.demo.prompts import main, prompts
from specwatch_engine.demo.traffic import MIXES
from specwatch_engine.lab.prompts import read, shares


def test_the_lab_reads_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    assert main([str(path), "--number", "400"]) == 0
    assert f"400 prompts are in {path}" in capsys.readouterr().out
    found = read(path)
    assert len(found) == 400
    assert all(prompt.body["messages"][-1]["role"] == "user" for prompt in found)
    assert all((prompt.body["temperature"], prompt.body["max_tokens"]) == (0, 160) for prompt in found)
    by_scenario = shares(found)
    total = sum(MIXES["balanced"].values())
    for name, weight in MIXES["balanced"].items():
        assert by_scenario[name] == pytest.approx(weight / total, abs=0.08)


def test_the_seed_decides() -> None:
    made = [list(prompts(50, {"billing": 1}, seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_mixes_are_those_of_the_traffic(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    assert main([str(path), "--number", "100", "--mix", "code=1,billing=3"]) == 0
    counts = Counter(json.loads(line)["scenario"] for line in path.read_text().splitlines())
    assert set(counts) == {"code", "billing"}
    assert counts["billing"] > counts["code"]
    plain = [row for row in prompts(100, {"billing": 1}) if row["scenario"] == "billing"]
    staged = [row for row in prompts(100, {"billing": 1}, incident=True) if row["scenario"] == "billing"]
    assert plain != staged


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--number", "0"], "--number must be at least 1, not 0"),
        (["--mix", "bogus"], "--mix: unknown mix 'bogus'"),
        (["--mix", "shift"], "--mix: shift changes on the way"),
    ],
)
def test_wrong_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "p"), *argv])
    assert words in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path} cannot be written" in capsys.readouterr().err
