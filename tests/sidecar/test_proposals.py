"""What is made of the engine's events: tokenizers read aside, moved tokens named once, recent drafts shown."""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from specwatch_engine.demo.prepare import misalign
from specwatch_engine.demo.weights import CHECKPOINTS
from support.scripted_engine import GREETING, until

from sidecar.api import models
from sidecar.engine_request import EngineRequest, Hello
from sidecar.probes.alignment import Kind, Moved, State
from sidecar.probes.decoder import Decoder
from sidecar.probes.drafts import Step
from sidecar.probes.vocabulary import NoVocabulary, Vocabulary
from sidecar.proposals import MOST_TOKENS, STEPS_A_TURN, Proposals, Texts
from sidecar.tasks import Tasks

TARGET, DRAFT = CHECKPOINTS / "target", CHECKPOINTS / "draft_generalist"
EOT, PAD = 4, 5
VOCABULARY = Vocabulary.read(str(TARGET))
WORDS = {VOCABULARY.text(number): number for number in range(2048)}
HELLO = replace(
    GREETING,
    target_model=str(TARGET),
    target_tokenizer=str(TARGET),
    draft_model=str(DRAFT),
    draft_tokenizer=str(TARGET),
)


def request(
    steps: Sequence[Step], hello: Hello = HELLO, *, output: int | None = None, name: str = "r"
) -> EngineRequest:
    made = EngineRequest(f"{name}-01234567", name, hello, 9)
    for drafted, emitted in steps:
        made.add(list(drafted), list(emitted), 0, 8000)
    made.output_tokens = sum(len(emitted) for _, emitted in steps) if output is None else output
    made.finish_reason = "stop"
    return made


class Ears:
    """Makes `Proposals`, and keeps what they tell."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.told: list[tuple[str | None, Moved, Texts]] = []
        self.made: list[Proposals] = []

    def __call__(self, *folders: Path | None, recent: int = 10) -> Proposals:
        target, draft = folders or (None, None)
        made = Proposals(target, draft, recent, self.tasks.spawn, lambda *told: self.told.append(told))
        self.made.append(made)
        return made


@pytest.fixture
async def ears() -> AsyncIterator[Ears]:
    found = Ears()
    yield found
    await found.tasks.close()
    for made in found.made:
        made.close()
    assert found.tasks.failed == []


def read(proposals: Proposals) -> Callable[[], bool]:
    return lambda: "being read" not in proposals.alignment.state()[1]


async def begun(proposals: Proposals, hello: Hello = HELLO) -> Proposals:
    """With the tokenizers read."""
    proposals.add(request([([], [7])], hello))
    await until(read(proposals), 60)
    return proposals


@pytest.fixture
def misaligned(tmp_path: Path) -> Hello:
    misalign(DRAFT, tmp_path / "draft")
    return replace(HELLO, draft_model=str(tmp_path / "draft"))


async def test_c12_the_moved_end_of_turn_is_named_once(
    ears: Ears, misaligned: Hello, caplog: pytest.LogCaptureFixture
) -> None:
    proposals = await begun(ears(), misaligned)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            proposals.add(request([([], [100]), ([101, PAD, 7, 7], [101, EOT])], misaligned))
        await until(lambda: ears.told)
        await asyncio.sleep(0.05)
    ((draft_model, moved, texts),) = ears.told
    assert (draft_model, moved.kind, moved.target_id, moved.draft_id, moved.count) == (
        misaligned.draft_model,
        Kind.SAME_TEXT,
        EOT,
        PAD,
        3,
    )
    assert texts == ("<|eot|>", "<|eot|>")
    (line,) = [record.getMessage() for record in caplog.records if "seen" in record.getMessage()]
    assert line == "tokenizers: '<|eot|>' is id 4 in the target and 5 in the draft, seen 3 times (same_text)"
    state = models.Alignment(**proposals.state())
    assert (state.state, state.requests, state.rejections, state.same_text_other_id) == ("misaligned", 100, 100, 100)
    assert (state.target_model, state.draft_model) == (str(TARGET), misaligned.draft_model)
    assert [(each.target_text, each.draft_text, each.count) for each in state.moved] == [("<|eot|>", "<|eot|>", 100)]


async def test_without_tokenizers_it_stays_unknown_but_ids_are_watched(
    ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    hello = replace(HELLO, target_tokenizer="/nowhere", draft_model="/nowhere")
    with caplog.at_level(logging.WARNING):
        proposals = await begun(ears(), hello)
    assert "tokenizers: /nowhere: no such folder here" in caplog.text
    assert proposals.alignment.state()[0] is State.UNKNOWN
    for _ in range(30):
        proposals.add(request([([PAD], [EOT])], hello))
    await until(lambda: ears.told)
    assert ears.told[0][1].kind is Kind.NEIGHBOUR
    assert ears.told[0][2] == (None, None)
    (newest, *_) = [models.Draft(**each) for each in await asyncio.to_thread(proposals.drafts, 1)]
    assert (newest.draft_text, newest.final_text, newest.p) == (None, None, 0.0)
    assert "/nowhere: no such folder here" in (newest.reason or "")
    assert [each.model_dump() for each in newest.steps[0]] == [
        {"mark": "rejected", "draft_id": PAD, "draft": None, "target_id": EOT, "target": None}
    ]


async def test_settings_win_over_what_the_engine_says(ears: Ears, tmp_path: Path) -> None:
    hello = replace(HELLO, target_tokenizer="/in/a/container", draft_tokenizer=None, draft_model=None)
    misalign(DRAFT, tmp_path / "draft")
    proposals = await begun(ears(TARGET, tmp_path / "draft"), hello)
    for _ in range(3):
        proposals.add(request([([PAD], [EOT])], hello))
    assert proposals.alignment.state()[0] is State.MISALIGNED


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("a head of the target", {"method": "eagle3", "draft_model": "/e", "draft_tokenizer": None}, "0 draft pos"),
        ("no draft model", {"method": "ngram", "draft_model": None, "draft_tokenizer": None}, "0 draft pos"),
        ("the model's own folder", {"draft_tokenizer": None}, "0 draft pos"),
        ("which is not here", {"draft_model": "/nowhere"}, "/nowhere: no such folder"),
        ("ids that vLLM maps", {"draft_model": "/nowhere", "draft_tokenizer": "/nowhere"}, "0 draft pos"),
        ("no speculation", {"method": None}, "the engine does not speculate"),
        ("no names", {"target_model": None, "target_tokenizer": None}, "set target_tokenizer, draft_tokenizer"),
    ],
)
async def test_whose_tokenizers(name: str, changes: dict[str, Any], reason: str, ears: Ears) -> None:
    proposals = await begun(ears(), replace(HELLO, **changes))
    state, said = proposals.alignment.state()
    assert (state, reason in said) == (State.UNKNOWN, True), (name, said)


async def test_another_draft_is_judged_from_new_on(ears: Ears, misaligned: Hello) -> None:
    proposals = await begun(ears())
    proposals.add(request([([1], [1, 2])]))
    proposals.add(request([([1], [1, 2])], replace(HELLO, engine=1, pid=124)))
    assert proposals.alignment.requests == 2, "another core of the same engine"
    proposals.add(request([([1], [1, 2])], replace(HELLO, pid=200)))
    assert proposals.alignment.requests == 1, "the engine was started anew"
    await until(read(proposals), 60)
    assert misaligned.draft_model is not None
    proposals.swapped(misaligned.draft_model)
    await until(read(proposals), 60)
    assert proposals.state()["draft_model"] == misaligned.draft_model
    for _ in range(3):
        proposals.add(request([([PAD], [EOT])], replace(HELLO, pid=200)))
    assert proposals.alignment.state()[0] is State.MISALIGNED
    assert len(proposals.drafts(10)) == 3


async def test_what_the_draft_proposed(ears: Ears) -> None:
    proposals = await begun(ears())
    the, your, may, bill = (WORDS[text] for text in (" the", " your", " May", " bill"))
    steps: list[Step] = [([], [the]), ([your, may, your], [your, bill]), ([may], [may, EOT]), ([-1], [may])]
    for number in range(3):
        proposals.add(request(steps, output=5, name=f"chatcmpl-{number}"))
    newest, older = [models.Draft(**each) for each in await asyncio.to_thread(proposals.drafts, 2)]
    assert (newest.request_id, older.request_id) == ("chatcmpl-2", "chatcmpl-1")
    assert (newest.draft_tokens, newest.accepted_tokens, newest.p) == (5, 2, 0.4)
    assert (newest.output_tokens, newest.finish_reason, newest.reason) == (5, "stop", None)
    assert newest.draft_text == " the your May May"
    assert newest.final_text == " the your bill May"
    assert [[(each.mark, each.draft, each.target) for each in step] for step in newest.steps] == [
        [("not_drafted", None, " the")],
        [("accepted", " your", " your"), ("rejected", " May", " bill"), ("discarded", " your", None)],
        [("accepted", " May", " May"), ("bonus", None, "<|eot|>")],
    ]


async def test_texts_that_cannot_be_whole_say_why(ears: Ears) -> None:
    proposals = await begun(ears())
    unseen = request([([-1, -1], [100])])
    long = request([([1] * 4, [1, 2])] * 2000)
    proposals.add(unseen)
    proposals.add(long)
    found = [models.Draft(**each) for each in await asyncio.to_thread(proposals.drafts, 2)]
    assert not long.ids_complete
    assert [(each.draft_text is None, each.reason) for each in found] == [
        (False, "the reply is longer than what is kept of it"),
        (True, "the engine could not see the draft ids"),
    ]


async def test_a_long_reply_is_looked_at_in_turns(ears: Ears, misaligned: Hello) -> None:
    proposals = await begun(ears(), misaligned)
    steps: list[Step] = [([1], [1, 2])] * 1000 + [([PAD], [EOT])] * 3
    proposals.add(request(steps, misaligned))
    assert proposals.alignment.positions == STEPS_A_TURN
    await until(lambda: ears.told)
    assert (proposals.alignment.requests, proposals.alignment.positions) == (1, 1003)
    proposals.add(request(steps, misaligned, output=2001))
    await until(lambda: proposals.alignment.positions == 2004)
    assert (proposals.alignment.requests, proposals.alignment.rejections) == (2, 4)


async def test_answers_and_memory_are_bounded(ears: Ears) -> None:
    proposals = await begun(ears(recent=4))
    for number in range(9):
        proposals.add(request([([100] * 4, [100] * 5)] * (MOST_TOKENS // 20), name=str(number)))
    assert len(proposals.drafts(1)) == 1
    assert [each["request_id"] for each in proposals.drafts(9)] == ["8", "7"]
    none = await begun(ears(recent=0))
    assert none.drafts(5) == []


async def test_the_decoder_comes_back_after_it_was_killed() -> None:
    decoder = Decoder(str(TARGET), str(DRAFT))
    assert decoder.words([EOT, 99_999], []) == (["<|eot|>", None], [])
    assert decoder._child._process is not None
    os.kill(decoder._child._process.pid, signal.SIGKILL)
    with pytest.raises(NoVocabulary, match="gave no answer"):
        decoder.words([EOT], [])
    assert decoder.words([], [PAD]) == ([], ["<|pad|>"])
    process = decoder._child._process
    decoder.close()
    assert process.wait(10) == -signal.SIGKILL
    with pytest.raises(NoVocabulary, match="was closed"):
        decoder.words([], [])


async def test_the_decoder_ends_a_question_when_it_is_closed(tmp_path: Path) -> None:
    shutil.copy(TARGET / "tokenizer.json", tmp_path)
    decoder = Decoder(str(tmp_path), str(tmp_path))
    asked = asyncio.create_task(asyncio.to_thread(decoder.draft_ids))  # noqa: TID251
    await until(lambda: decoder._child._process is not None)
    decoder.close()
    with pytest.raises(NoVocabulary):
        await asked
