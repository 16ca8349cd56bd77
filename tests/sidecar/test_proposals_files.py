"""The served pair by its files: compared in the decoder's process, told by state, log and trigger. C11, C12, C13."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file
from specwatch_engine.demo.prepare import misalign
from support.scripted_engine import until

from sidecar.api import models
from sidecar.engine_request import Hello
from sidecar.proposals import Proposals

from .probes.tokenizer_check.test_files import WORDS, save
from .test_proposals import DRAFT, EOT, HELLO, PAD, Ears, ears, request

__all__ = ["ears"]


def known(proposals: Proposals) -> Callable[[], bool]:
    return lambda: not any("being" in each for each in proposals.state()["static"]["sentences"])


async def begun(proposals: Proposals, hello: Hello) -> models.StaticCheck:
    proposals.add(request([([], [0])], hello))
    await until(known(proposals), 60)
    return told(proposals)


def told(proposals: Proposals) -> models.StaticCheck:
    return models.Alignment(**proposals.state()).static


def pair(target: str, draft: str | None, **changes: Any) -> Hello:
    return replace(
        HELLO, target_model=target, target_tokenizer=target, draft_model=draft, draft_tokenizer=target, **changes
    )


async def test_c11_an_id_beyond_the_tokens_is_a_warning(
    ears: Ears, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = save(tmp_path / "target", ["w0", *"abcd"], {"vocab_size": 8})
    hello = pair(target, save(tmp_path / "draft", ["w0", *"abcd"], {"vocab_size": 12}))
    proposals = ears()
    found = await begun(proposals, hello)
    assert found.report is not None
    assert (found.verdict, found.severity, found.report["padding_only"]) == ("aligned", "none", True)
    assert (found.unknown_ids, proposals.misaligned[0]) == (0, False)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            proposals.add(request([([1], [1, 4]), ([], [9])], hello))
    assert [each.getMessage() for each in caplog.records] == [
        "tokenizers: the target said id 9, its tokenizer ends at 4"
    ]
    assert told(proposals).unknown_ids == 2


async def test_c12_moved_tokens_are_weighed_by_the_traffic(
    ears: Ears, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    misalign(DRAFT, tmp_path / "draft")
    hello = replace(HELLO, draft_model=str(tmp_path / "draft"))
    proposals = ears()
    with caplog.at_level(logging.INFO):
        found = await begun(proposals, hello)
    assert (found.verdict, found.severity, found.share_at_moved) == ("misaligned", "high", None)
    assert "tokenizers: misaligned by their files: of the target's 2048 tokens 2046 have the same id" in caplog.text
    assert "tokenizers: high: 2 of 6 special tokens that both have are known to the draft by another id" in caplog.text
    # Only what is critical by the files alone ends speculation; the rest must show.
    assert proposals.misaligned[0] is False
    proposals.add(request([([100, 101, PAD], [100, 101, EOT]), ([102], [102, 103])], hello))
    assert told(proposals).share_at_moved == 0.25
    for _ in range(2):
        proposals.add(request([([PAD], [EOT])], hello))
    assert proposals.misaligned == (True, "1 token has another id in the draft than in the target")


async def test_all_ids_moved_is_known_before_the_first_draft(ears: Ears, tmp_path: Path) -> None:
    target = save(tmp_path / "target", WORDS)
    proposals = ears()
    found = await begun(proposals, pair(target, save(tmp_path / "draft", ["w", *WORDS])))
    assert (found.verdict, found.severity) == ("misaligned", "critical")
    wrong, why = proposals.misaligned
    assert (wrong, why) == (True, found.sentences[0])
    # A draft that fits takes its place.
    proposals.swapped(save(tmp_path / "better", WORDS))
    await until(known(proposals), 60)
    assert (told(proposals).verdict, proposals.misaligned[0]) == ("aligned", False)


async def test_c13_the_table_of_a_head(ears: Ears, tmp_path: Path) -> None:
    target = save(tmp_path / "target", WORDS[:10], {"vocab_size": 10})
    for name, tensors, verdict, severity in (
        ("good", {"d2t": numpy.array([0, 2, 3, 5])}, "aligned", "none"),
        ("zero", {"d2t": numpy.zeros(4, numpy.int64)}, "unknown", "high"),
        ("none", {"lm_head.weight": numpy.zeros(4)}, "misaligned", "critical"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"vocab_size": 10, "draft_vocab_size": 4}')
        save_file(tensors, tmp_path / name / "model.safetensors")
        proposals = ears()
        hello = replace(pair(target, str(tmp_path / name), method="eagle3"), draft_tokenizer=None)
        found = await begun(proposals, hello)
        assert (found.verdict, found.severity) == (verdict, severity), name
        assert proposals.misaligned[0] is (severity == "critical")


async def test_two_families_are_judged_by_what_the_engine_does(ears: Ears, tmp_path: Path) -> None:
    target = save(tmp_path / "target", [f"w{number}" for number in range(300)])
    draft = save(tmp_path / "draft", [*(f"w{number}" for number in range(299, 100, -1)), *"abcdefgh"])
    found = await begun(ears(), pair(target, draft))
    assert (found.verdict, found.severity) == ("misaligned", "critical")
    mapped = replace(pair(target, draft), draft_tokenizer=draft)
    found = await begun(ears(), mapped)
    assert found.report is not None
    assert (found.verdict, found.report["coverage"]) == ("aligned", 199 / 300)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("copies of the text", {"method": "ngram", "draft_model": None}, "there is no draft model (method ngram)"),
        ("no speculation", {"method": None}, "the engine does not speculate"),
        ("a head elsewhere", {"method": "eagle3", "draft_model": "/nowhere"}, "/nowhere: no such folder here"),
        ("a draft elsewhere", {"draft_model": "/nowhere"}, "/nowhere: no such folder here"),
        ("no names", {"target_model": None, "target_tokenizer": None}, "the engine does not name its models"),
    ],
)
async def test_what_is_not_known_says_why(name: str, changes: dict[str, Any], sentence: str, ears: Ears) -> None:
    proposals = ears()
    assert proposals.state()["static"]["sentences"] == ["no engine has told its models yet"]
    found = await begun(proposals, replace(HELLO, **changes))
    assert (found.verdict, found.severity, found.report) == ("unknown", None, None), name
    assert found.sentences[0].startswith(sentence), name
    assert proposals.misaligned[0] is False
