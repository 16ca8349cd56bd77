"""The engine's table and its file: every result is loaded by the launcher itself."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specwatch_engine.lab.sweep.table import KEY, TableError, most, ranges, shown, snippet, tuned, with_every
from specwatch_engine.launch.__main__ import main as launch
from specwatch_engine.launch.config import load
from specwatch_engine.launch.speculation import table_problem

TABLE = [[1, 2, 5], [3, 16, 3]]


@pytest.mark.parametrize(
    ("name", "chosen", "max_num_seqs", "table"),
    [
        ("three sizes", {1: 5, 4: 3, 8: 0}, 16, [[1, 2, 5], [3, 5, 3], [6, 16, 0]]),
        ("the same k is one range", {1: 4, 4: 4, 8: 4}, 16, [[1, 16, 4]]),
        ("one concurrency speaks for all", {4: 3}, 256, [[1, 256, 3]]),
        ("plain decoding at small batches", {1: 0, 16: 4}, 256, [[1, 4, 0], [5, 256, 4]]),
        ("neighbouring sizes", {1: 5, 2: 4, 3: 3}, 3, [[1, 1, 5], [2, 2, 4], [3, 3, 3]]),
        ("sizes beyond the engine's are left out", {1: 5, 8: 3, 64: 1}, 16, [[1, 2, 5], [3, 16, 3]]),
    ],
)
def test_ranges(name: str, chosen: dict[int, int], max_num_seqs: int, table: list[list[int]]) -> None:
    assert ranges(chosen, max_num_seqs) == table, name


@given(st.dictionaries(st.integers(1, 300), st.integers(0, 10), min_size=1), st.integers(0, 200))
def test_any_table_is_valid_whole_and_true_at_the_measured_sizes(chosen: dict[int, int], more: int) -> None:
    max_num_seqs = max(chosen) + more
    table = ranges(chosen, max_num_seqs)
    assert table_problem(table, 10) is None
    assert (table[0][0], table[-1][1]) == (1, max_num_seqs)
    assert all(table[i][1] + 1 == table[i + 1][0] for i in range(len(table) - 1))
    for size, k in chosen.items():
        assert next(row[2] for row in table if row[0] <= size <= row[1]) == k


@pytest.mark.parametrize(
    ("name", "ks", "table", "busiest", "found"),
    [
        ("a flat one", [1, 2, 3], [[1, 16, 3]], 8, [[1, 13, 3], [14, 14, 2], [15, 15, 1], [16, 16, 0]]),
        ("one k", [3], [[1, 16, 3]], 8, [[1, 15, 3], [16, 16, 0]]),
        ("the engine's own rows stay", [1, 4], [[1, 4, 4], [5, 16, 2]], 8, [[1, 4, 4], [5, 14, 2], [15, 15, 1],
         [16, 16, 0]]),
        ("rows at the top are made anew", [1, 4], [[1, 15, 4], [16, 16, 0]], 8, [[1, 14, 4], [15, 15, 1],
         [16, 16, 0]]),
        ("a table that ends early keeps its last k", [4], [[1, 4, 4], [5, 8, 0]], 8, [[1, 4, 4], [5, 16, 0]]),
        ("just room", [1, 2, 3], [[1, 16, 3]], 12, [[1, 13, 3], [14, 14, 2], [15, 15, 1], [16, 16, 0]]),
        ("no room", [1, 2, 3], [[1, 16, 3]], 13, None),
    ],
)  # fmt: skip
def test_every_k_is_in_the_table_at_sizes_that_no_run_reaches(
    name: str, ks: list[int], table: list[list[int]], busiest: int, found: list[list[int]] | None
) -> None:
    assert with_every(ks, table, busiest, 16) == found, name
    assert found is None or table_problem(found, 4) is None


def test_the_engine_keeps_room_for_the_largest_k() -> None:
    assert most(TABLE) == 5
    assert most([[1, 16, 0]]) == 1


def test_the_snippet_is_what_the_launcher_takes(tmp_path: Path) -> None:
    file = tmp_path / "speculative_config.yaml"
    file.write_text("model: org/target\nspeculative_model: org/draft\n" + snippet(TABLE, "run 7"))
    config = load(file)
    assert config.speculative is not None
    assert config.speculative[KEY] == TABLE
    assert config.num_speculative_tokens == 5


PLAIN_FILE = """\
# What we serve.
model: models/target   # 24 layers
served_model_name: demo
port: 8200
max_num_seqs: 16
log: engine.log
speculative_config:
  method: draft_model
  model: models/draft  # the generalist
  num_speculative_tokens: 4   # of the old days
# the end
"""

FILES = {
    "block": PLAIN_FILE,
    "no end of line": PLAIN_FILE.rstrip("\n"),
    "a table on one line": PLAIN_FILE.replace("# the end", "  num_speculative_tokens_per_batch_size: [[1, 16, 2]]"),
    "a table of many lines": PLAIN_FILE.replace(
        "  method:",
        "  num_speculative_tokens_per_batch_size:\n    - [1, 8, 2]\n    # above:\n    - [9, 16, 1]\n\n  method:",
    ),
    "a rule": "speculation_min_batch_size: 9\n" + PLAIN_FILE,
    "the seed's rule": PLAIN_FILE + "speculative_disable_by_batch_size: 8 # off for few\n",
    "in braces": "model: models/target\nmax_num_seqs: 16\n"
    "speculative_config: {model: models/draft, num_speculative_tokens: 4}\n",
    "the seed's flat keys": "model: models/target\nmax-num-seqs: 16\nspeculative_model: models/draft\n"
    "num_speculative_tokens: 4  # k\n",
    "JSON": json.dumps(
        {"model": "models/target", "speculative_config": {"model": "models/draft", "num_speculative_tokens": 4}}
    ),
    "in braces over lines": "model: models/target\nspeculative_config: {\n  model: models/draft,\n"
    "  num_speculative_tokens: 4 }\nmax_num_seqs: 16\n",
    "anchors": "model: &m models/target\ntokenizer: *m\nspeculative_config:\n  model: models/draft\n"
    "  num_speculative_tokens: 4\n",
    "with dashes": "model: models/target\nspeculative-config:\n    num-speculative-tokens: 4\n"
    "    model: models/draft\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("target", "draft"):
        (tmp_path / "models" / name).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_any_file_becomes_the_same_engine_with_the_table(name: str, folder: Path) -> None:
    source = folder / "speculative_config.yaml"
    source.write_text(FILES[name])
    before = load(source)
    # Another folder: relative paths must not be lost.
    there = folder / "elsewhere" / "tuned.yaml"
    there.write_text(tuned(source, TABLE, "run 7"))
    after = load(there)
    assert after.speculative is not None
    assert after.speculative[KEY] == TABLE
    assert after.num_speculative_tokens == 5
    assert after.target == before.target
    assert (after.model, after.draft_model, after.port) == (before.model, before.draft_model, before.port)
    assert after.served_model_names == before.served_model_names
    assert there.read_text().count("# specwatch sweep: run 7") == (not name.startswith("in braces"))


def test_comments_and_order_are_kept(folder: Path) -> None:
    source = folder / "speculative_config.yaml"
    source.write_text(PLAIN_FILE)
    found = tuned(source, TABLE, "run 7")
    for comment in ("# What we serve.", "# 24 layers", "# the generalist", "# of the old days", "# the end"):
        assert comment in found
    assert [line for line in found.splitlines() if line not in PLAIN_FILE.splitlines()] == [
        f"model: {folder}/models/target   # 24 layers",
        f"log: {folder}/engine.log",
        "  # specwatch sweep: run 7",
        f"  {KEY}: {shown(TABLE)}",
        f"  model: {folder}/models/draft  # the generalist",
        "  num_speculative_tokens: 5   # of the old days",
    ]


def test_a_rule_becomes_a_comment(folder: Path) -> None:
    source = folder / "speculative_config.yaml"
    source.write_text(FILES["the seed's rule"])
    assert "# (in place of this: the table) speculative_disable_by_batch_size: 8" in tuned(source, TABLE, "run 7")


def test_the_launcher_s_dry_run_has_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder / "speculative_config.yaml"
    source.write_text(PLAIN_FILE)
    there = folder / "tuned.yaml"
    there.write_text(tuned(source, TABLE, "run 7"))
    assert launch(["-c", str(there), "--dry-run"]) == 0
    assert '"num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 3]]' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no YAML", "model: [\n"),
        ("nothing", ""),
        ("a method that takes no table", "model: a/b\nspeculative_config: {method: suffix}\n"),
    ],
)
def test_a_file_that_cannot_have_a_table_says_so(name: str, text: str, folder: Path) -> None:
    source = folder / "speculative_config.yaml"
    source.write_text(text)
    with pytest.raises(TableError, match="/speculative_config"):
        tuned(source, TABLE, "run 7")


def test_a_file_that_is_gone_says_so(folder: Path) -> None:
    with pytest.raises(TableError, match="cannot be read"):
        tuned(folder / "none.yaml", TABLE, "run 7")


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("JSON", "anchors")])
def test_tuning_again_changes_nothing(name: str, folder: Path) -> None:
    source = folder / "speculative_config.yaml"
    source.write_text(FILES[name])
    source.write_text(once := tuned(source, TABLE, "run 7"))
    assert tuned(source, TABLE, "run 8").replace("run 8", "run 7") == once


NAMES = st.text("abcdefghij -_#:'", min_size=1, max_size=8).filter(lambda name: name.strip())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=4), st.booleans(), st.booleans())
def test_any_comment_and_layout_is_survived(lines: list[tuple[str, bool]], flow: bool, end: bool) -> None:
    inner = (
        "{model: org/draft, num_speculative_tokens: 4}" if flow else "\n  model: org/draft\n  num_speculative_tokens: 4"
    )
    text = f"model: org/target\nspeculative_config: {inner}\nmax_num_seqs: 16"
    for comment, before in lines:
        text = f"# {comment}\n{text}" if before else f"{text}  # {comment}\n"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "a.yaml"
        source.write_text(text + "\n" * end)
        found = tuned(source, TABLE, "run 7")
    assert all(f"# {comment}" in found for comment, _ in lines)
