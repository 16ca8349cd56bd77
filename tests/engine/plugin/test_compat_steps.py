"""The hooks over a scripted scheduler: what is told of a step, and that vLLM goes on where the plugin fails."""

import logging
import socket
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace as Thing
from typing import Any

import msgspec
import pytest
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.plugin import events
from specwatch_engine.plugin.compat import hooks
from specwatch_engine.plugin.compat.orders import commit
from specwatch_engine.plugin.compat.scheduler import EVENTS, Watch
from specwatch_engine.plugin.identity import digest, processor
from support.event_reader import Reader
from support.scripted_scheduler import Scheduler, config, order, request, run


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "version", lambda: "0.32.0")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Any]]]:
    """Somebody listens: gives the packets that have come, the hello left out."""
    with (
        tempfile.TemporaryDirectory(prefix="sw") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one,
    ):
        one.bind(f"{folder}/s")
        one.listen()
        one.setblocking(False)
        monkeypatch.setenv(EVENTS, f"{folder}/s")
        connections: list[socket.socket] = []

        def read() -> list[Any]:
            found = []
            try:
                if not connections:
                    connections.append(one.accept()[0])
                    connections[0].setblocking(False)
                while packet := connections[0].recv(1 << 18):
                    found.append(msgspec.msgpack.decode(packet))
            except BlockingIOError:
                pass
            return [packet for packet in found if packet[0] == "steps"]

        yield read
        for each in connections:
            each.close()


@pytest.fixture
def log() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        emit = records.append  # type: ignore[assignment]

    handler = Keep()
    hooks.log.addHandler(handler)
    yield records
    hooks.log.removeHandler(handler)


# ---- events


def test_a_step_is_told_as_it_was_before_vllm_cut_it(steps: Callable[[], list[Any]]) -> None:
    scheduler = Scheduler(config())
    scheduler.add_request(request("a"))
    scheduler.add_request(request("b", 0))
    scheduler.stops = {"a": "stop"}
    run(scheduler, a=[0, 1, 9], b=[])
    rows = [[["a", 7], ["b", 7]], ["a", "b"], [[0, 1, 9], []], {"a": [0, 1, 2, 3]}, None, [["a", 3, "stop"]]]
    assert steps() == [["steps", 1, 0, [rows]]]


def test_ids_that_the_worker_saw_take_the_place_of_placeholders(steps: Callable[[], list[Any]]) -> None:
    scheduler = Scheduler(config())
    for name in "ab":
        scheduler.add_request(request(name))
        scheduler.requests[name].spec_token_ids = [-1, -1]
    output = scheduler.schedule()
    output.num_invalid_spec_tokens = {"b": 1}
    emitted = Thing(req_ids=["a", "b"], sampled_token_ids=[[5], [6]], specwatch_drafts={"a": [8, 9]})
    scheduler.stops = {"b": "length"}
    scheduler.update_from_output(output, emitted)
    (_, _, _, (row,)) = steps()[0]
    assert row[3:5] == [{"a": [8, 9], "b": [-1, -1]}, {"b": 1}]


def test_rows_of_requests_that_were_aborted_or_set_back_meanwhile_are_left_out(
    steps: Callable[[], list[Any]],
) -> None:
    scheduler = Scheduler(config())
    for name in ("gone", "kept", "lingers", "reset"):
        scheduler.add_request(request(name))
    output = scheduler.schedule()
    scheduler.free("gone", "abort")
    scheduler.delays = True
    scheduler.free("lingers", "abort")
    scheduler.requests["reset"].num_stale_output_tokens, scheduler.requests["reset"].drop_stale_output = 5, True
    assert [packet[3][0][5] for packet in steps()] == [[["gone", 0, "abort"]], [["lingers", 0, "abort"]]]
    scheduler.stops, scheduler.delays = {"kept": "stop"}, False
    names = ["gone", "kept", "lingers", "reset"]
    scheduler.update_from_output(output, Thing(req_ids=names, sampled_token_ids=[[1], [2], [3], [4]]))
    (packet,) = steps()
    assert packet == ["steps", 3, 0, [[[], ["kept"], [[2]], {"kept": [0, 1, 2, 3]}, None, [["kept", 1, "stop"]]]]]
    scheduler._free_blocks(scheduler.requests["lingers"])
    watch = scheduler._specwatch
    assert watch is not None
    assert not watch.lingering


def test_a_step_whose_counts_are_not_vllms_is_dropped(steps: Callable[[], list[Any]]) -> None:
    scheduler = Scheduler(config())
    scheduler.add_request(request("a"))
    scheduler.counts = 0
    run(scheduler, a=[0, 9])
    scheduler.counts = None
    scheduler.stops = {"a": "stop"}
    run(scheduler, a=[0, 9])
    assert steps() == [["steps", 2, 1, [[[], ["a"], [[0, 9]], {"a": [0, 1, 2, 3]}, None, [["a", 4, "stop"]]]]]]
    assert order(scheduler)["events"] == {"sent": 1, "dropped": 1, "connected": True}


def test_a_finish_between_two_steps_is_sent_at_once(steps: Callable[[], list[Any]]) -> None:
    scheduler = Scheduler(config())
    scheduler.add_request(request("a"))
    scheduler.free("a", "abort")
    assert steps() == [["steps", 1, 0, [[[["a", 7]], [], [], {}, None, [["a", 0, "abort"]]]]]]
    assert scheduler._specwatch._started == []  # type: ignore[union-attr]


def test_empty_steps_are_not_told(steps: Callable[[], list[Any]]) -> None:
    scheduler = Scheduler(config())
    for _ in range(40):
        run(scheduler)
    assert order(scheduler)["step"] == 0
    assert steps() == []


def test_where_nobody_listens_only_counts_are_kept() -> None:
    scheduler = Scheduler(config())
    for number in range(30):
        scheduler.add_request(request(str(number)))
        run(scheduler, **{str(number): [0, 9]})
        scheduler.free(str(number), "abort")
    assert order(scheduler)["events"] == {"sent": 0, "dropped": 60, "connected": False}
    watch = scheduler._specwatch
    assert watch is not None
    assert (watch._started, watch._finished, watch.lingering, watch._out) == ([], [], set(), set())


# ---- standing down

BREAKS = {
    "a new request": "add",
    "before a step": "before_schedule",
    "before its output": "before_update",
    "after its output": "after_update",
    "a finish": "finish",
}


@pytest.mark.parametrize("name", BREAKS)
def test_where_the_plugin_fails_vllm_goes_on_with_its_own_table(
    name: str, log: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = [4, 4, 3]
    scheduler = Scheduler(config(), table)
    order(scheduler, cap=0, mode="cold")
    log.clear()

    def broken(*_: Any) -> None:
        raise RuntimeError("a name has moved")

    monkeypatch.setattr(Watch, BREAKS[name], broken)
    scheduler.add_request(request("a"))
    for _ in range(3):
        run(scheduler, a=[0, 9])
    assert scheduler.running[0].num_output_tokens == 6
    scheduler.free("a", "abort")
    assert not scheduler.requests
    assert [call for call in scheduler.calls if call != "stats"] == ["add", *["schedule", "update"] * 3]
    assert len(log) == 1
    assert "stands down" in log[0].getMessage()
    assert scheduler._specwatch is None
    assert scheduler.dynamic_sd_lookup is table
    assert "plugin has failed" in order(scheduler, cap=0)["refused"]
    scheduler.add_request(request("b"))
    assert not hasattr(run(scheduler, b=[1]), "specwatch_skip")


def test_a_step_in_which_the_plugin_fails_is_drafted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(config())
    order(scheduler, cap=0, mode="cold")
    monkeypatch.setattr(Watch, "before_schedule", lambda *_: 1 / 0)
    assert not hasattr(scheduler.schedule(), "specwatch_skip")
    assert scheduler.found == [(None, {})]


def test_an_engine_that_the_plugin_does_not_understand_starts_without_it(log: list[logging.LogRecord]) -> None:
    engine = config()
    del engine.speculative_config.draft_model_config
    scheduler = Scheduler(engine)
    scheduler.add_request(request("a"))
    run(scheduler, a=[1])
    assert len(log) == 1
    assert scheduler.calls == ["add", "schedule", "update", "stats"]


def test_what_runs_is_told_with_its_content_and_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = config()
    engine.model_config = Thing(**vars(engine.model_config) | {"model": str(CHECKPOINTS / "target")})
    engine.speculative_config.draft_model_config = Thing(model=str(CHECKPOINTS / "draft_generalist"), tokenizer="t")
    engine.parallel_config.world_size_across_dp = 2
    for platform, device in (
        (Thing(device_type="cpu"), processor()),
        (Thing(device_type="cuda", get_device_name=lambda: "NVIDIA H200"), "NVIDIA H200 x 2"),
        (Thing(device_type="cuda", get_device_name=lambda: 1 / 0), None),
    ):
        monkeypatch.setattr(hooks, "find", lambda module, name, found=platform: found)
        scheduler = Scheduler(engine)
        state = order(scheduler)
        assert state["target_model"] == str(CHECKPOINTS / "target")
        assert state["target_digest"] == digest(CHECKPOINTS / "target") is not None
        assert state["draft_digest"] == digest(CHECKPOINTS / "draft_generalist") is not None
        assert state["device"] == device
    commit(Thing(scheduler=scheduler, collective_rpc=lambda *_: ["/new"]), "/new", "0123456789abcdef")
    assert order(scheduler)["draft_digest"] == "0123456789abcdef"
    assert order(scheduler)["target_digest"] == state["target_digest"]


def test_a_checkpoint_in_the_hubs_cache_is_told_as_one_in_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = config()
    engine.model_config.revision = "main"
    asked = []

    def download(name: str, **how: object) -> str:
        asked.append((name, how))
        return str(CHECKPOINTS / "draft_specialist")

    monkeypatch.setattr(hooks, "find", lambda module, name: download if name == "snapshot_download" else 1 / 0)
    assert order(Scheduler(engine))["target_digest"] == digest(CHECKPOINTS / "draft_specialist")
    assert asked == [("a/model", {"revision": "main", "local_files_only": True})] * 2


def test_what_drafts_without_a_model_names_none(steps: Callable[[], list[Any]]) -> None:
    """In its place vLLM has the target's own configuration."""
    assert order(Scheduler(config("ngram")))["draft_model"] is None
    assert order(Scheduler(config("ngram")))["draft_digest"] is None
    assert order(Scheduler(config("draft_model")))["draft_model"] == "a/model"


@pytest.mark.parametrize(("tokenizer", "then"), [("a/tokenizer", "a/tokenizer"), ("a/model", "/new")])
def test_who_connects_after_a_swap_is_told_of_the_new_draft_model(
    tokenizer: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "RETRY_S", 0.0)
    engine = config()
    engine.speculative_config.draft_model_config.tokenizer = tokenizer
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        monkeypatch.setenv(EVENTS, f"{folder}/s")
        reader = Reader(f"{folder}/s")
        scheduler = Scheduler(engine)
        before = reader.packets()[0][1]
        commit(Thing(scheduler=scheduler, collective_rpc=lambda *_: ["/new"]), "/new")
        assert reader.packets() == [], "the connection goes on"
        assert reader.connection is not None
        reader.connection.close()
        reader.connection = None
        for name in "ab":
            scheduler.add_request(request(name))
            scheduler.free(name, "stop")
        assert reader.packets()[0] == ["hello", before | {"draft_model": "/new", "draft_tokenizer": then}]
        reader.close()
