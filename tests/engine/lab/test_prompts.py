import asyncio
import gzip
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.prompts import (
    CHAT,
    COMPLETIONS,
    Prompt,
    PromptError,
    greedy,
    limited,
    parse,
    read,
    sample,
    shares,
)
from specwatch_engine.lab.recorded import messages
from specwatch_engine.lab.run import Run
from support.upstream import json_reply
from support.way import answering, way

ASK = [{"role": "user", "content": "Where is my order?"}]


def one(row: Any) -> Prompt:
    (prompt,) = parse(json.dumps(row), "f")
    return prompt


# ---- formats


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param({"messages": ASK}, Prompt("line 1", "default", {"messages": ASK}, CHAT), id="plain"),
        pytest.param(
            {"messages": ASK, "scenario": " billing ", "max_tokens": 9, "temperature": 0.5, "tools": [], "id": 7},
            Prompt("7", "billing", {"messages": ASK, "max_tokens": 9, "temperature": 0.5, "tools": []}, CHAT),
            id="with parameters",
        ),
        pytest.param(
            {"prompt": "Once", "metadata": {"scenario": "tales", "user": "u"}},
            Prompt("line 1", "tales", {"prompt": "Once"}, COMPLETIONS),
            id="completion",
        ),
        pytest.param({"prompt": [1, 2]}, Prompt("line 1", "default", {"prompt": [1, 2]}, COMPLETIONS), id="tokens"),
        pytest.param(
            {"messages": ASK, "model": "m", "stream": False, "stream_options": {}, "n": 4, "best_of": 5},
            Prompt("line 1", "default", {"messages": ASK}, CHAT),
            id="what the lab sets itself",
        ),
        pytest.param(
            {"messages": ASK, "vllm_xargs": {"speculative": False, "a": 1}},
            Prompt("line 1", "default", {"messages": ASK, "vllm_xargs": {"a": 1}}, CHAT),
            id="an opt-out of its own",
        ),
        pytest.param(
            {"custom_id": "r-1", "method": "POST", "url": CHAT, "body": {"model": "gpt", "messages": ASK, "top_p": 1}},
            Prompt("r-1", "default", {"messages": ASK, "top_p": 1}, CHAT),
            id="batch",
        ),
        pytest.param(
            {"custom_id": "r-2", "url": COMPLETIONS, "body": {"prompt": "Once", "metadata": {"scenario": "tales"}}},
            Prompt("r-2", "tales", {"prompt": "Once"}, COMPLETIONS),
            id="batch of completions",
        ),
        pytest.param(
            {
                "id": "x_0",
                "conversations": [
                    {"from": "system", "value": "Be brief."},
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "Hello"},
                    {"from": "human", "value": "Bye"},
                    {"from": "gpt", "value": "See you"},
                ],
            },
            Prompt(
                "x_0",
                "default",
                {
                    "messages": [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": "Hi"},
                        {"role": "assistant", "content": "Hello"},
                        {"role": "user", "content": "Bye"},
                    ]
                },
                CHAT,
            ),
            id="ShareGPT",
        ),
    ],
)
def test_each_format_is_read(row: Any, expected: Prompt) -> None:
    assert one(row) == expected
    # The same in a list, as ShareGPT comes.
    (listed,) = parse(json.dumps([row], indent=1), "f")
    assert (listed.body, listed.scenario, listed.endpoint) == (expected.body, expected.scenario, expected.endpoint)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "f:1: is no JSON"),
        ('{"messages": [], "x": NaN}', "f:1: is no JSON"),
        ("3", "must be a JSON object, not 3"),
        ("{}", "messages: a request has either messages or prompt"),
        ('{"messages": [{"role": "user", "content": "a"}], "prompt": "a"}', "either messages or prompt"),
        ('{"messages": []}', "messages: must be a list with at least one message"),
        ('{"messages": "hi"}', 'messages: must be a list with at least one message, not "hi"'),
        ('{"messages": [{"content": "a"}]}', r"messages\[0\]: must be an object with a role"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\]\.content: must be a text or a list of parts, not null"),
        ('{"prompt": ""}', "prompt: must be one text"),
        ('{"prompt": ["a", "b"]}', "prompt: must be one text, or a list of token ids"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens: must be a whole number of at least 1, not 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens: must be a whole number"),
        ('{"prompt": "a", "temperature": -1}', "temperature: must be a number of at least 0, not -1"),
        ('{"prompt": "a", "scenario": 3}', "scenario: must be a name, not 3"),
        ('{"prompt": "a", "metadata": {"scenario": " "}}', 'metadata.scenario: must be a name, not " "'),
        ('{"custom_id": "a", "body": 3}', "body: must be the JSON object of a request, not 3"),
        ('{"custom_id": "a", "body": {"messages": 1}}', "body.messages: must be a list"),
        (
            '{"custom_id": "a", "url": "/v1/embeddings", "body": {"prompt": "a"}}',
            "url: must be /v1/chat/completions or",
        ),
        (
            '{"url": "/v1/completions", "body": {"messages": [{"role": "user", "content": "a"}]}}',
            "url: .* takes prompt",
        ),
        ('{"method": "GET", "body": {"prompt": "a"}}', 'method: must be POST, not "GET"'),
        ('{"conversations": {}}', "conversations: must be a list of turns"),
        ('{"conversations": [{"from": "martian", "value": "a"}]}', r"conversations\[0\]: must be"),
        ('{"conversations": [{"from": "gpt", "value": "a"}]}', "nobody asks anything"),
        ("[" * 100_000, "no JSON list"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("", "has no prompts"),
        ("[]", "has no prompts"),
        ("[1,\n2", "f:2: is no JSON list"),
    ],
)
def test_a_fault_names_its_place_and_the_remedy(line: str, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        parse(line, "f")


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ("a secret", "f:1: must be a JSON object"),
        ({"messages": "a secret"}, "f:1: messages: must be a list with at least one message"),
        ({"prompt": ["a secret"]}, "f:1: prompt: must be one text, or a list of token ids"),
        ({"prompt": "a", "scenario": ["a secret"]}, "f:1: scenario: must be a name"),
        (
            {"conversations": [{"from": "martian", "value": "a secret"}]},
            'f:1: conversations[0]: must be {"from": "human", "gpt" or "system", "value": "…"}',
        ),
    ],
)
def test_what_stands_there_is_told_and_is_not_for_keeping(row: Any, rule: str) -> None:
    with pytest.raises(PromptError) as raised:
        parse(json.dumps(row), "f")
    assert "a secret" in str(raised.value)
    assert raised.value.plain == rule


def test_the_first_ten_faults_are_told_and_no_more() -> None:
    lines = [json.dumps({"prompt": "a"}), *["{}"] * 30]
    with pytest.raises(PromptError) as raised:
        parse("\n".join(lines), "f")
    assert [fault.partition(": ")[0] for fault in raised.value.faults] == [f"f:{line}" for line in range(2, 12)]


def test_ids_are_unique() -> None:
    rows = [json.dumps({"custom_id": "a", "body": {"prompt": "x"}})] * 2
    with pytest.raises(PromptError, match='f:2: custom_id "a" is that of line 1 too'):
        parse("\n".join(rows), "f")


def test_lines_are_numbered_as_in_the_file() -> None:
    text = "\n\r\n" + json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False) + "\r\n"
    (prompt,) = parse(text, "f")
    assert (prompt.id, prompt.body) == ("line 3", {"prompt": "a\u2028b"})


_NAMES = (
    *("messages", "prompt", "conversations", "body", "url", "method", "custom_id", "id", "scenario", "metadata"),
    *("role", "content", "from", "value", "max_tokens", "temperature", "vllm_xargs", "speculative"),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=3), inner),
    max_leaves=12,
)


@given(st.lists(_JSON, max_size=4).map(lambda rows: "\n".join(map(json.dumps, rows))) | st.text())
def test_whatever_stands_there_it_is_prompts_or_faults(text: str) -> None:
    try:
        prompts = parse(text, "f")
    except PromptError as error:
        assert error.faults
        assert all(fault.startswith("f:") for fault in error.faults)
        return
    assert len({prompt.id for prompt in prompts}) == len(prompts) > 0
    for prompt in prompts:
        assert prompt.scenario
        assert ("messages" if prompt.endpoint == CHAT else "prompt") in prompt.body
        assert not {"model", "stream", "stream_options", "n"} & set(prompt.body)
        # What was read can be written, and read again as the same.
        again = one({**prompt.body, "scenario": prompt.scenario})
        assert (again.body, again.scenario) == (prompt.body, prompt.scenario)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(("system", "user")), "content": _TEXT}), min_size=1)


@given(st.lists(_MESSAGES, min_size=1, max_size=5))
def test_one_conversation_is_the_same_prompt_in_every_format(conversations: list[list[dict[str, str]]]) -> None:
    names = {"user": "human", "system": "system"}
    asked = [each for each in conversations if any(message["role"] == "user" for message in each)]
    if not asked:
        return
    plain = "\n".join(json.dumps({"messages": each}, ensure_ascii=False) for each in asked)
    batch = "\n".join(json.dumps({"custom_id": f"{n}", "body": {"messages": each}}) for n, each in enumerate(asked))
    shared = json.dumps(
        [
            {
                "id": f"{number}",
                "conversations": [
                    *({"from": names[each["role"]], "value": each["content"]} for each in messages),
                    {"from": "gpt", "value": "a reply"},
                ],
            }
            for number, messages in enumerate(asked)
        ]
    )
    for text in (plain, batch, shared):
        assert [prompt.body for prompt in parse(text, "f")] == [{"messages": each} for each in asked]


# ---- files


def test_a_file_is_read_with_or_without_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"prompt": "你"}, ensure_ascii=False).encode())
    assert read(path) == read(str(path)) == [Prompt("line 1", "default", {"prompt": "你"}, COMPLETIONS)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "is a folder: name a file in it"),
        (lambda path: None, "there is no file"),
        (lambda path: path.write_bytes(gzip.compress(b"{}")), "gzip: unpack it first"),
        (lambda path: path.write_bytes("ä".encode("latin-1")), "no UTF-8 text: convert it first"),
    ],
)
def test_what_is_no_file_of_prompts_is_said(tmp_path: Path, make: Any, words: str) -> None:
    make(tmp_path / "p")
    with pytest.raises(PromptError, match=f"--prompts: .*{words}"):
        read(tmp_path / "p")


# ---- samples


def made(**counts: int) -> list[Prompt]:
    return [
        Prompt(f"{name}-{number}", name, {"prompt": "a"}, COMPLETIONS)
        for name, count in counts.items()
        for number in range(count)
    ]


def test_a_sample_has_the_files_shares_and_enough_of_each_scenario() -> None:
    prompts = made(common=9_000, seldom=900, rare=100)
    assert shares(prompts) == {"common": 0.9, "seldom": 0.09, "rare": 0.01}
    counts = Counter(prompt.scenario for prompt in sample(prompts, 1_000, 0))
    assert counts == {"common": 900, "seldom": 90, "rare": 50}
    assert Counter(prompt.scenario for prompt in sample(prompts, 1_000, 0, least=500))["rare"] == 100


def test_a_sample_depends_on_the_seed_alone() -> None:
    prompts = made(a=500, b=500)
    assert sample(prompts, 100, 1) == sample(prompts, 100, 1)
    assert sample(prompts, 100, 1) != sample(prompts, 100, 2)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60), min_size=1),
    st.integers(1, 400),
    st.integers(),
    st.integers(0, 80),
)
def test_a_sample_takes_no_prompt_twice(counts: dict[str, int], number: int, seed: int, least: int) -> None:
    prompts = made(**counts)
    found = sample(prompts, number, seed, least)
    assert len({prompt.id for prompt in found}) == len(found)
    by_scenario = Counter(prompt.scenario for prompt in found)
    for name, there in counts.items():
        share = round(number * there / len(prompts))
        assert by_scenario[name] == min(max(share, least), there)


def test_changes_leave_the_prompts_themselves_alone() -> None:
    before = made(a=1)
    assert greedy(before)[0].body == {"prompt": "a", "temperature": 0}
    assert limited(before, 7)[0].body == {"prompt": "a", "max_tokens": 7}
    assert before[0].body == {"prompt": "a"}
    named = [Prompt("a", "a", {"prompt": "a", "max_completion_tokens": 3}, COMPLETIONS)]
    assert limited(named, 7) == named


# ---- recorded traffic


async def test_recorded_prompts_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", "control-it")
    reply = json_reply({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})
    options = {"store_text": True, "admin_token": "control-it", "admin_read_token": "read-it", "engine": False}
    image = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    long_one = "word " * 40_000
    bodies: list[tuple[bytes, dict[str, Any]]] = [
        (b"/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, *ASK], "temperature": 0.7}),
        (b"/v1/completions", {"prompt": "Once upon\na time"}),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": image}]}),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": long_one}]}),
        (b"/v1/responses", {"input": "hello"}),
    ]
    told: list[str] = []
    async with way(tmp_path, answering(reply), spool=tmp_path / "spool", admin_per_second=10, **options) as made:
        for number, (path, body) in enumerate(bodies):
            extra = b"X-Scenario: billing\r\nX-Request-Id: id-%d\r\n" % (number if number != 1 else 0)
            await made.ask(body, path, extra)
        url = f"http://{made.sidecar.settings.admin}"

        async def found() -> list[Prompt]:
            told.clear()
            return await asyncio.to_thread(read, url, told.append)

        for _ in range(50):
            try:
                prompts = await found()
            except PromptError:
                prompts = []
            # Rows come before their texts.
            if len(prompts) == 2 and "cut when" in told[-1] and "images" in told[-1]:
                break
            await asyncio.sleep(0.2)
        once, order = prompts
        assert (once.id, once.scenario, once.body) == ("id-0", "billing", {"prompt": "Once upon\na time"})
        assert once.endpoint == COMPLETIONS
        assert order.id.startswith("id-0 of 20")
        assert order.body == {"messages": [{"role": "system", "content": "Be brief."}, *ASK], "temperature": 0.7}
        for words in ("cut when they were stored", "images and tool calls", "of the endpoint responses"):
            assert words in told[-1]
        assert len(await asyncio.to_thread(read, url, told.append, 1)) == 1
        monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", "read-it")
        with pytest.raises(PromptError, match="refuses the token: set SPECWATCH_ADMIN_TOKEN to its control token"):
            await found()
        monkeypatch.delenv("SPECWATCH_ADMIN_TOKEN")
        with pytest.raises(PromptError, match="SPECWATCH_ADMIN_TOKEN is not set"):
            await found()


async def test_a_run_goes_on_with_the_recorded_prompts_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", "control-it")
    reply = json_reply({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})
    options = {"store_text": True, "admin_token": "control-it", "engine": False}
    async with way(tmp_path, answering(reply), spool=tmp_path / "spool", admin_per_second=50, **options) as made:
        url = f"http://{made.sidecar.settings.admin}"

        async def stored(number: int) -> None:
            await made.ask({"messages": ASK}, b"/v1/chat/completions", b"X-Request-Id: id-%d\r\n" % number)
            for _ in range(50):
                await asyncio.sleep(0.2)
                with suppress(PromptError):
                    if len(await asyncio.to_thread(read, url)) == number:
                        return

        await stored(1)
        run = Run.create("qualify", {}, tmp_path / "run")
        assert [each.id for each in await asyncio.to_thread(read, url, run=run)] == ["id-1"]
        assert "order" not in (run.folder / "samples.jsonl").read_text()
        await stored(2)
        assert [each.id for each in await asyncio.to_thread(read, url, run=run)] == ["id-1"]
        run.close()
        other = Run.create("qualify", {}, tmp_path / "other")
        other.append("samples", {"source": url, "until": "2100-01-01T00:00:00+00:00", "ids": ["id-1", "id-0"]})
        with pytest.raises(PromptError, match=f"1 of the 2 prompts of {url} are gone: begin a new run"):
            await asyncio.to_thread(read, url, run=other)
        other.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user: Hi", [("user", "Hi")]),
        ("system: Be brief.\nuser: Hi\nyou", [("system", "Be brief."), ("user", "Hi\nyou")]),
        ("user: a\nassistant: b\nuser: c\nassistant: d", [("user", "a"), ("assistant", "b"), ("user", "c")]),
        ("no role\nuser: Hi", [("user", "no role"), ("user", "Hi")]),
        ("just text", [("user", "just text")]),
        ("", [("user", "")]),
    ],
)
def test_stored_chats_become_messages(text: str, expected: list[tuple[str, str]]) -> None:
    assert messages(text) == [{"role": role, "content": content} for role, content in expected]


async def test_what_is_no_admin_port_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.upstream import replying, running

    monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", "control-it")
    for reply, words in (
        (json_reply([]), "answered 200, not as a sidecar's admin port does"),
        (json_reply({"error": {}}, b"401 Unauthorized"), "refuses the token"),
        (json_reply({"requests": [], "next_cursor": None}), "has no stored prompts: set store_text"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnope", "not as a sidecar's"),
    ):
        async with running(replying(reply)) as upstream:
            with pytest.raises(PromptError, match=words):
                await asyncio.to_thread(read, upstream.url)
    with pytest.raises(PromptError, match="does not answer"):
        await asyncio.to_thread(read, upstream.url)


def test_a_number_beyond_all_is_refused_as_nan_is() -> None:
    with pytest.raises(PromptError, match="1e999 is no number that a server takes"):
        parse('{"prompt": "a", "top_p": 1e999}', "f")
