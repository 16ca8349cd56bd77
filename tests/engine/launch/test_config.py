"""Tables of named cases: what a configuration file may say, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from specwatch_engine.launch.config import ConfigError, EngineConfig, load

SEED = """\
model: models/target
tokenizer: models/target
tensor_parallel_size: 2
gpu_memory_utilization: 0.9
speculative_model: models/draft
speculative_draft_tensor_parallel_size: 2
num_speculative_tokens: 4
speculative_disable_by_batch_size: 8
enable-prefix-caching: true
max-num-seqs: 256
gpu-affinity: [2, 3]
request-timeout: 300
"""

VLLM = """\
model: models/target
speculative_config:
  model: models/draft
  method: draft_model
  num_speculative_tokens: 4
"""

DRAFT = "model: big/target\nspeculative_model: small/draft\nnum_speculative_tokens: 4\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("target", "draft"):
        (tmp_path / "models" / name).mkdir(parents=True)
    return tmp_path


def read(folder: Path, text: str) -> EngineConfig:
    path = folder / "speculative_config.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return list(caught.value.problems)


def test_the_seeds_file_is_understood(folder: Path) -> None:
    config = read(folder, SEED)
    assert config.model == str(folder / "models/target")
    assert config.draft_model == str(folder / "models/draft")
    assert config.served_model_names == ("target",)
    assert (config.method, config.num_speculative_tokens) == ("draft_model", 4)
    assert config.target["enable_prefix_caching"] is True
    assert config.gpu_devices == ("2", "3")
    assert config.request_timeout_s == 300
    assert config.offline
    assert config.speculative is not None
    assert config.speculative["draft_tensor_parallel_size"] == 2
    assert config.speculative["num_speculative_tokens_per_batch_size"] == [[1, 8, 0], [9, 256, 4]]
    assert "OFF at batch sizes 1 to 8" in config.notes[0]


def test_vllms_own_file_is_understood(folder: Path) -> None:
    config = read(folder, VLLM)
    assert config.speculative == {
        "model": str(folder / "models/draft"),
        "method": "draft_model",
        "num_speculative_tokens": 4,
    }
    assert (config.url, config.max_num_seqs, config.notes) == ("http://127.0.0.1:8200", 256, ())


@pytest.mark.parametrize(
    ("rule", "table", "smallest"),
    [
        ("speculation_min_batch_size: 9", [[1, 8, 0], [9, 256, 4]], 9),
        ("speculation_max_batch_size: 8", [[1, 8, 4], [9, 256, 0]], 1),
        ("speculative_disable_by_batch_size: 8", [[1, 8, 0], [9, 256, 4]], 9),
        (
            "speculation_min_batch_size: 9\nspeculation_max_batch_size: 64",
            [[1, 8, 0], [9, 64, 4], [65, 256, 0]],
            9,
        ),
        ("speculation_min_batch_size: 1", [[1, 256, 4]], 1),
        ("speculation_max_batch_size: 999", [[1, 256, 4]], 1),
        (
            "speculative_disable_by_batch_size: 8\nspeculation_min_batch_size: 9",
            [[1, 8, 0], [9, 256, 4]],
            9,
        ),
        ("max_num_seqs: 9\nspeculation_min_batch_size: 9", [[1, 8, 0], [9, 9, 4]], 9),
    ],
)
def test_the_batch_size_rule_works_in_both_directions(
    folder: Path, rule: str, table: list[list[int]], smallest: int
) -> None:
    config = read(folder, DRAFT + rule + "\n")
    assert config.speculative is not None
    assert config.speculative["num_speculative_tokens_per_batch_size"] == table
    assert config.smallest_speculating_batch == smallest


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("model: a/b\nspeculative_config: {method: ngram, num_speculative_tokens: 3}\n", "ngram"),
        ("model: a/b\nspeculative_config: {method: mtp}\n", "mtp"),
        ("model: a/b\nspeculative_config: {method: deepseek_mtp, num_speculative_tokens: 1}\n", "mtp"),
        ("model: a/b\nspeculative_config: {method: suffix}\n", "suffix"),
        ("model: a/b\nspeculative_model: org/model-EAGLE3\nnum_speculative_tokens: 3\n", "eagle3"),
        ("model: a/b\n", None),
    ],
)
def test_methods(folder: Path, text: str, method: str | None) -> None:
    config = read(folder, text)
    assert config.method == method
    assert (config.speculative is None) == (method is None)


def test_a_hub_name_stays_as_it_is(folder: Path) -> None:
    config = read(folder, "model: org/model\n")
    assert (config.model, config.served_model_names, config.offline) == ("org/model", ("org/model",), False)


def test_the_same_thing_said_twice_alike_is_fine(folder: Path) -> None:
    config = read(folder, DRAFT + "speculative_config: {num_speculative_tokens: 4}\nspeculative_method: eagle\n")
    assert (config.num_speculative_tokens, config.method) == (4, "eagle")


@pytest.mark.parametrize(
    ("added", "said"),
    [
        pytest.param("max_num_seq: 8", ["4: 'max_num_seq'", "did you mean max_num_seqs?"], id="typo"),
        pytest.param("zzz_qqq: 8", ["'zzz_qqq' is not a known key", "extra_args"], id="unknown"),
        pytest.param(
            "speculative_config:\n  metod: ngram",
            ["5: 'speculative_config.metod'", "did you mean method?"],
            id="nested-typo",
        ),
        pytest.param("speculative_config: {port: 9}", ["'speculative_config.port'", "at the top level"], id="outside"),
        pytest.param("prompt_lookup_max: 3", ["it belongs inside speculative_config"], id="inside"),
        pytest.param(
            "speculative_config: {disable_by_batch_size: 8}",
            ["removed from vLLM", "speculation_max_batch_size"],
            id="removed",
        ),
        pytest.param("api_key: hush", ["VLLM_API_KEY"], id="secret"),
        pytest.param("max_num_seqs: many", ["max_num_seqs must be a whole number, not 'many'"], id="type"),
        pytest.param("max_num_seqs: true", ["must be a whole number, not True"], id="bool-is-no-number"),
        pytest.param("enforce_eager: 1", ["must be true or false, not 1"], id="number-is-no-bool"),
        pytest.param("gpu_memory_utilization: 1.2", ["between 0.01 and 1"], id="range"),
        pytest.param("gpu_memory_utilization: .nan", ["must be a number"], id="nan"),
        pytest.param("port: 70000", ["between 1 and 65535"], id="port"),
        pytest.param("kv_cache_memory_bytes: 1.5G", ["with a unit such as 64M"], id="size"),
        pytest.param("tokenizer:", ["tokenizer has no value"], id="empty"),
        pytest.param("tokenizer: ./nowhere", ["tokenizer: there is no model at"], id="no-folder"),
        pytest.param("tokenizer: models/nowhere", ["tokenizer: there is no model at"], id="no-subfolder"),
        pytest.param(
            "speculative_config: {model: other/draft}",
            ["speculative_model (line 2)", "speculative_config.model (line 4)", "keep one of them"],
            id="two-drafts",
        ),
        pytest.param(
            "max-num-seqs: 8\nmax_num_seqs: 9",
            ["max-num-seqs (line 4) and max_num_seqs (line 5)"],
            id="spelling",
        ),
        pytest.param("port: 1\nport: 2", ["'port' is written twice (first on line 4)"], id="key-twice"),
        pytest.param(
            "speculation_min_batch_size: 9\nspeculation_max_batch_size: 8",
            ["speculation_min_batch_size (line 4)", "speculation_max_batch_size (line 5)", "no batch size"],
            id="empty-band",
        ),
        pytest.param(
            "speculative_disable_by_batch_size: 8\nspeculation_max_batch_size: 64",
            ["point in both directions", "write speculation_min_batch_size: 9"],
            id="both-directions",
        ),
        pytest.param(
            "speculative_disable_by_batch_size: 8\nspeculation_min_batch_size: 8",
            ["contradict each other", "speculation_min_batch_size: 9"],
            id="off-by-one",
        ),
        pytest.param(
            "speculation_min_batch_size: 9\nspeculative_config: {num_speculative_tokens_per_batch_size: [[1, 8, 0]]}",
            ["say the same thing twice"],
            id="table-and-rule",
        ),
        pytest.param("speculation_min_batch_size: 300", ["max_num_seqs is 256"], id="never-reached"),
        pytest.param("data_parallel_size: 2\nspeculation_max_batch_size: 8", ["data_parallel_size > 1"], id="ranks"),
        pytest.param(
            "speculation_max_batch_size: 8\nspeculative_method: suffix",
            ["method suffix always"],
            id="fixed-k",
        ),
        pytest.param(
            "speculative_config: {num_speculative_tokens_per_batch_size: [[2, 8, 0]]}",
            ["row [2, 8, 0] must start at 1"],
            id="table-start",
        ),
        pytest.param(
            "speculative_config: {num_speculative_tokens_per_batch_size: [[1, 8, 4], [8, 9, 0]]}",
            ["overlaps"],
            id="table-overlap",
        ),
        pytest.param(
            "speculative_config: {num_speculative_tokens_per_batch_size: [[1, 8, 5]]}",
            ["between 0 and num_speculative_tokens (4)"],
            id="table-k",
        ),
        pytest.param(
            "tensor_parallel_size: 2\nspeculative_draft_tensor_parallel_size: 1",
            ["speculative_draft_tensor_parallel_size (line 5) is 1", "tensor_parallel_size is 2"],
            id="draft-parallel",
        ),
        pytest.param("tensor_parallel_size: 4\ngpu_devices: '0,1'", ["names 2 devices", "is 4"], id="too-few-devices"),
        pytest.param("gpu_devices: [0, 0]", ["must be a device number"], id="device-twice"),
        pytest.param("speculative_method: draft_modle", ["did you mean draft_model?"], id="method-typo"),
        pytest.param("speculative_config: 4", ["must be a mapping"], id="no-mapping"),
        pytest.param("extra_args: {port: 9}", ["write it at the top level"], id="extra-known"),
        pytest.param("extra_args: {uds: /x}", ["the launcher needs host and port"], id="extra-reserved"),
        pytest.param("extra_args: {a b: 1}", ["is not the name of an argument"], id="extra-name"),
        pytest.param("extra_args: {a: }", ["a value no argument can have"], id="extra-empty"),
    ],
)
def test_each_mistake_is_named_with_its_remedy(folder: Path, added: str, said: list[str]) -> None:
    found = problems(folder, DRAFT + added + "\n")
    for text in said:
        assert any(text in problem for problem in found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: a/b\nnum_speculative_tokens: 4\n", "num_speculative_tokens (line 2) asks for speculation"),
        (
            "model: a/b\nspeculative_model: c/d\n",
            "speculative_model (line 2) is set but num_speculative_tokens",
        ),
        (
            "model: a/b\nspeculative_model: c/d\nnum_speculative_tokens: 0\n",
            "must be between 1 and 1000, not 0",
        ),
        ("model: a/b\nspeculation_max_batch_size: 8\n", "(line 2) asks for speculation"),
        ("model: a/b\nspeculative_config: {}\n", "no draft model"),
        ("port: 8000\n", "model is missing"),
        ("", "the file is empty"),
        ("- model\n", "must be a mapping"),
        ("model: [\n", "not valid YAML"),
        ("1: 2\nmodel: a/b\n", "1 is not a key name"),
        ("when: 2026-99-99\nmodel: a/b\n", "not valid YAML"),
    ],
)
def test_incomplete_files(folder: Path, text: str, said: str) -> None:
    assert any(said in problem for problem in problems(folder, text)), problems(folder, text)


def test_all_mistakes_come_at_once_in_the_files_order(folder: Path) -> None:
    found = problems(folder, "modl: x\nport: no\nmax_num_seqs: 0\nmodel: ./none\n")
    assert [problem.split(":")[0] for problem in found] == ["1", "2", "3", "4"]


def test_the_file_is_named_in_front_of_each_mistake(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"speculative_config\.yaml:1: 'modl'"):
        read(folder, "modl: x\nmodel: a/b\n")


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml")


def test_flags_stand_above_the_file(folder: Path) -> None:
    path = folder / "c.yaml"
    path.write_text("model: a/b\nport: 1\nhost: 10.0.0.1\nlog: logs/e.log\n")
    config = load(path)
    assert (config.url, config.log) == ("http://10.0.0.1:1", folder / "logs/e.log")
    config = load(path, host="::1", port=2, log=Path("/x.log"))
    assert (config.url, config.log) == ("http://[::1]:2", Path("/x.log"))


def test_the_configuration_cannot_be_changed(folder: Path) -> None:
    config = read(folder, SEED)
    with pytest.raises(AttributeError):
        config.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.target["seed"] = 1  # type: ignore[index]
