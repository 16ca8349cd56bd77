"""The checks of the parts: engine, sidecar, database, machine, GPU, logs, settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from support.doctor import AWAY, NOW, SERVER, at, engine, facts, row, side, told

from sidecar.control.engine import EngineState
from sidecar.doctor.checks import connections, database, gpu, logs, machine, settings, sidecar, tokenizers
from sidecar.doctor.checks import engine as engines
from sidecar.doctor.facts import (
    CertificateFacts,
    DatabaseFacts,
    Disk,
    Gpu,
    Kind,
    Listener,
    LogFacts,
    Machine,
    Server,
    SpoolFacts,
    Unseen,
)
from sidecar.doctor.findings import Check, NotLooked, run
from sidecar.doctor.order import ALL
from sidecar.settings import Settings
from sidecar.store.upgrade import HEAD


def test_whatever_is_away_nothing_is_called_fine_that_was_not_seen() -> None:
    """Of what cannot be seen, all checks but those of settings say why."""
    made = facts(machine=AWAY, engines={"speculative": engine(server=Server("http://h:1", Kind.NOTHING, "nothing"))})
    found = run(ALL, made)
    assert {each.id for each in found.findings if each.severity == "fine"} <= {
        *("fallback_upstream", "engine-file", "access", "certificates", "baseline", "notifications"),
        *("engine-events", "spool", "clocks"),
    }
    assert len(found.not_looked) > 25
    assert all(each.why for each in found.not_looked)


def test_a_check_that_fails_is_told_and_the_others_go_on() -> None:
    def breaks(_facts: object) -> Any:
        raise KeyError("rows")

    found = run([Check("a", breaks), Check("b", lambda _: []), *settings.CHECKS], facts())
    assert found.not_looked[:2] == [
        NotLooked("a", "the check itself failed: KeyError: 'rows'"),
        NotLooked("b", "there was nothing to look at"),
    ]
    assert found.findings


# ---- connections

DRAFTS = "vllm:spec_decode_num_draft_tokens_total 7\n"
PLAIN = replace(engine(), name="autoregressive", server=replace(SERVER, url="http://127.0.0.1:8201"))


@pytest.mark.parametrize(
    ("plain", "text", "expected"),
    [
        (PLAIN, "", {"fallback_upstream-answers": "fine"}),
        (
            PLAIN,
            "vllm:spec_decode_num_draft_tokens_total 7\n",
            {"fallback_upstream-answers": "fine", "fallback-drafts": "fault"},
        ),
        (
            replace(PLAIN, server=replace(PLAIN.server, models=("other",))),
            "",
            {"fallback_upstream-answers": "fine", "fallback-other-model": "fault"},
        ),
        (
            replace(PLAIN, server=replace(PLAIN.server, version="0.31.0")),
            "",
            {"fallback_upstream-answers": "fine", "upstream-versions": "note"},
        ),
        (replace(PLAIN, server=SERVER), "", {"fallback_upstream-answers": "fine", "fallback-is-upstream": "fault"}),
        (
            replace(PLAIN, server=replace(PLAIN.server, kind=Kind.NOTHING, words="nothing listens")),
            "",
            {"fallback_upstream-wrong": "fault"},
        ),
    ],
    ids=["well", "it drafts", "another model", "another version", "the same", "away"],
)
def test_the_fallback_engine(plain: Any, text: str, expected: dict[str, str]) -> None:
    told_text = engine(text)
    plain = replace(plain, text=told_text.text, samples=told_text.samples)
    made = facts(
        engines={"speculative": engine(), "autoregressive": plain}, settings=Settings(fallback_upstream="http://h:1")
    )
    assert told([connections.CHECKS[1]], made) == expected


HTTP = Server("http://127.0.0.1:8001", Kind.OTHER, "another server (nginx): GET /v1/models gives 404")
NOBODY = replace(HTTP, kind=Kind.NOTHING)
OTHERS = Listener(7, "nginx: master process", sidecar=False, engine=False)


@pytest.mark.parametrize(
    ("ports", "listeners", "expected"),
    [
        ({"admin": NOBODY}, {}, {"ports": "fine"}),
        ({"admin": HTTP}, {}, {"admin-port-taken": "fault"}),
        (
            {"admin": NOBODY, "dashboard": HTTP},
            {},
            {"dashboard-port-taken": "warning", "ports": "fine"},
        ),
        ({"admin": NOBODY}, {8000: OTHERS}, {"listen-port-taken": "fault"}),
    ],
)
def test_ports_that_others_have(ports: Any, listeners: Any, expected: dict[str, str]) -> None:
    assert told([connections.CHECKS[3]], facts(ports=ports, machine=Machine(listeners=listeners))) == expected


# ---- engine

COUNTS = (
    'vllm:generation_tokens_total{engine="0"} 9\nvllm:spec_decode_num_draft_tokens_total{engine="0"} 9\n'
    'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 9\n'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (COUNTS, {"engine-metrics": "fine"}),
        ('vllm:generation_tokens_total{engine="0"} 9\n', {"no-speculation": "fault"}),
        ("python_info 1\n", {"metrics-off": "warning"}),
        (Unseen("GET /metrics gives 404", "missing"), {"metrics-missing": "warning"}),
    ],
)
def test_the_engines_counters(text: str | Unseen, expected: dict[str, str]) -> None:
    assert told([engines.CHECKS[0]], facts(engines={"speculative": engine(text)})) == expected


def core(**fields: Any) -> EngineState:
    return EngineState(**{"engine": 0, "method": "draft_model", "num_speculative_tokens": 4, **fields})


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ([core()], {"cap": "fine"}),
        ([core(cap=0, mode="hard")], {"cap-zero": "warning"}),
        ([core(cap=2)], {"cap-set": "note"}),
        ([core(), core(engine=1, method=None)], {"no-method": "fault"}),
        (AWAY, {"cap": "unseen"}),
    ],
)
def test_the_cap(cores: Any, expected: dict[str, str]) -> None:
    assert told([engines.CHECKS[1]], facts(engines={"speculative": engine(cores=cores)})) == expected


@pytest.mark.parametrize(
    ("running", "waiting", "usage", "preempted", "expected"),
    [
        (2, 0, 0.1, 0, {"crowding": "fine"}),
        (2, 40, 0.1, 0, {"requests-wait": "warning"}),
        (64, 40, 0.1, 0, {"crowding": "fine"}),
        (2, 0, 0.99, 0, {"kv-cache-full": "warning"}),
        (2, 0, 0.5, 50, {"preemptions": "warning"}),
        (2, 0, 0.5, 5, {"crowding": "fine"}),
    ],
)
def test_a_crowded_engine(running: int, waiting: int, usage: float, preempted: int, expected: dict[str, str]) -> None:
    text = (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\nvllm:kv_cache_usage_perc {usage}\n"
        f"vllm:num_preemptions_total {preempted}\nvllm:request_success_total 1000\n"
    )
    assert told([engines.CHECKS[2]], facts(engines={"speculative": engine(text)})) == expected


# ---- sidecar


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("specwatch_writer_queue_length 3\n", {"records": "fine"}),
        ('specwatch_records_dropped_total{stage="spool"} 7\n', {"records-dropped": "fault"}),
        ("specwatch_writer_queue_length 9000\nspecwatch_spool_records 8000\n", {"records-wait": "warning"}),
        ("specwatch_spool_records 90000\nspecwatch_spool_bytes 4e8\n", {"spool-filling": "fault"}),
        ("specwatch_tap_failures_total 2\n", {"records": "fine", "tap-failures": "warning"}),
        ("specwatch_event_loop_lag_seconds 2.5\n", {"records": "fine", "sidecar-slow": "warning"}),
    ],
)
def test_records(metrics: str, expected: dict[str, str]) -> None:
    assert told([sidecar.CHECKS[1]], facts(sidecar=side(metrics))) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"sidecar": "fine"}),
        ({"ready": {"status": "ready", "failed_tasks": ["counters"]}}, {"tasks-died": "fault"}),
        ({"ready": {"status": "not_ready", "failed_tasks": []}}, {"sidecar-not-ready": "fault"}),
        ({"open_without_token": True}, {"sidecar": "fine", "admin-open": "fault"}),
        ({"fallback": Unseen("it wants a token", "locked")}, {"sidecar": "fine", "admin-token": "warning"}),
    ],
)
def test_the_sidecar(fields: dict[str, Any], expected: dict[str, str]) -> None:
    assert told([sidecar.CHECKS[0]], facts(sidecar=side(**fields))) == expected


VERSIONS = [(NOW - 1000, "one", "specwatch", "0.1.0"), (NOW - 1000, "one", "settings.baseline_share", "0.1")]


@pytest.mark.parametrize(
    ("more", "rows", "counted", "expected"),
    [
        ([], 50, 50, {"instance": "fine"}),
        ([(NOW - 500, "one", "specwatch", "0.1.0")], 50, 50, {"instance-twice": "fault"}),
        ([(NOW - 500, "two", "specwatch", "0.1.0")], 50, 50, {"instance": "fine"}),
        ([], 90, 50, {"instance-twice": "fault"}),
    ],
    ids=["alone", "another started later", "another with its own name", "another writes"],
)
def test_two_sidecars_of_one_name(more: Any, rows: int, counted: int, expected: dict[str, str]) -> None:
    made = facts(
        sidecar=side(
            f"process_start_time_seconds {NOW - 1001}\nspecwatch_requests_total {counted}\n",
            summary={"instance": "one"},
        ),
        database=DatabaseFacts("sqlite", "/f", versions=more + VERSIONS),
        rows=[row(started_at=at(-100)) for _ in range(rows)],
    )
    assert told([sidecar.CHECKS[2]], made) == expected


def test_other_settings_than_those_of_the_sidecar_that_runs() -> None:
    base = DatabaseFacts("sqlite", "/f", versions=VERSIONS)
    running = side(summary={"instance": "one"})
    # The tests' own spool.
    same = Settings(baseline_share=0.1, spool=Settings.model_fields["spool"].default)
    assert told([sidecar.CHECKS[3]], facts(sidecar=running, database=base, settings=same)) == {
        "settings-running": "fine"
    }
    made = facts(sidecar=running, database=base, settings=same.model_copy(update={"baseline_share": 0.3}))
    (finding,) = run([sidecar.CHECKS[3]], made).findings
    assert (finding.severity, finding.seen) == ("note", ("baseline_share: 0.1 there, 0.3 here",))


@pytest.mark.parametrize(
    ("ours", "seen"),
    [
        ({"engine": Path("e.yaml")}, None),
        ({"engine": Path("e.yaml"), "num_speculative_tokens": 8}, "num_speculative_tokens: 4 there, 8 here"),
        ({}, "num_speculative_tokens: 4 there, default here"),
    ],
)
def test_what_up_takes_from_the_engine_s_file_is_no_other_setting(ours: dict[str, Any], seen: str | None) -> None:
    began = VERSIONS[0][0]
    added = [(began, "one", "settings.num_speculative_tokens", "4"), (began, "one", "settings.draft_model", "d")]
    base = DatabaseFacts("sqlite", "/f", versions=[*VERSIONS, *added])
    here = Settings(baseline_share=0.1, spool=Settings.model_fields["spool"].default, **ours)
    found = run([sidecar.CHECKS[3]], facts(sidecar=side(summary={"instance": "one"}), database=base, settings=here))
    assert [each for finding in found.findings for each in finding.seen if "tokens" in each] == ([seen] if seen else [])


# ---- database


@pytest.mark.parametrize(
    ("revision", "expected"),
    [(HEAD, "fine"), ("0005", "warning"), ("9999", "fault"), (None, "note")],
)
def test_migrations(revision: str | None, expected: str) -> None:
    made = facts(database=DatabaseFacts("sqlite", "/f", revision=revision))
    assert list(told([database.CHECKS[1]], made).values()) == [expected]


def test_a_database_that_only_the_sidecar_sees_is_no_fault() -> None:
    missing = DatabaseFacts("sqlite", "/f", Unseen("there is no file /f yet", "missing"))
    assert told([database.CHECKS[0]], facts(database=missing)) == {"database-new": "note"}
    assert told([database.CHECKS[0]], facts(database=missing, sidecar=side())) == {"database": "unseen"}
    ill = side(ready={"status": "ready", "database": "unavailable", "failed_tasks": []})
    assert told([database.CHECKS[0]], facts(database=missing, sidecar=ill)) == {"database-gone": "fault"}


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (50 << 30, 100 << 30, "disks"),
        (1 << 30, 100 << 30, "disk-low"),
        (100 << 20, 100 << 30, "disk-full"),
        (1 << 30, 8 << 30, "disks"),
    ],
)
def test_disks(free: int, total: int, expected: str) -> None:
    made = facts(machine=Machine(disks=[Disk("database_url", Path("/d"), free, total)]))
    assert list(told([database.CHECKS[2]], made)) == [expected]


@pytest.mark.parametrize(
    ("spool", "runs", "expected"),
    [
        (SpoolFacts(Path("/s"), 0, 0, 0, True), False, {"spool": "fine"}),
        (SpoolFacts(Path("/s"), 9000, 2, 0, True), False, {"spool-left": "warning"}),
        (SpoolFacts(Path("/s"), 9000, 2, 0, True), True, {"spool": "fine"}),
        (SpoolFacts(Path("/s"), 0, 0, 0, False), True, {"spool-not-writable": "fault"}),
        (SpoolFacts(Path("/s"), 0, 0, 3, True), True, {"spool": "fine", "rows-refused": "warning"}),
    ],
)
def test_the_spool(spool: SpoolFacts, runs: bool, expected: dict[str, str]) -> None:
    made = facts(machine=Machine(spool=spool), sidecar=side() if runs else AWAY)
    assert told([database.CHECKS[3]], made) == expected


def test_clocks() -> None:
    check = [database.CHECKS[4]]
    base = DatabaseFacts("postgresql", "h/d", skew_s=-7.0)
    assert told(check, facts(database=base)) == {"clock-skew-database": "warning"}
    assert told(check, facts(rows=[row(started_at=at(300))])) == {"clock-skew-instance": "warning"}
    assert told(check, facts(rows=[row(started_at=at(3))])) == {"clocks": "fine"}
    late = engine(server=replace(SERVER, skew_s=-60.0))
    assert told(check, facts(engines={"speculative": late})) == {"clock-skew-engine": "note"}


# ---- tokenizers, live


def test_tokens_of_live_requests() -> None:
    moved = {"target_text": "<|eot|>", "target_id": 4, "draft_id": 5, "count": 30}
    base = {"reason": "why", "moved_tokens": 1, "moved": [moved]}
    for state, severity in (("aligned", "fine"), ("unknown", "unseen"), ("misaligned", "fault")):
        found = told([tokenizers.CHECKS[1]], facts(sidecar=side(alignment={"state": state, **base})))
        assert list(found.values()) == [severity]


# ---- GPU, machine, settings, logs

GPU = Gpu("H200", 100_000, 143_771, 40, (), 50)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([GPU], {"gpu": "fine"}),
        ([replace(GPU, used_mib=143_500)], {"gpu-memory": "warning"}),
        ([replace(GPU, throttled=("temperature (hardware)",))], {"gpu-slowed": "warning"}),
        ([replace(GPU, processes=((9, "/usr/bin/blender", 900),))], {"gpu-shared": "note"}),
        ([replace(GPU, processes=((9, "VLLM::EngineCore", 900),))], {"gpu": "fine"}),
        ([], {"gpu": "unseen"}),
        (Unseen("there is no nvidia-smi here"), {"gpu": "unseen"}),
    ],
)
def test_gpus(found: Any, expected: dict[str, str]) -> None:
    assert told(gpu.CHECKS, facts(gpus=found)) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Machine(open_files=20_000), {"environment": "fine"}),
        (Machine(open_files=1024), {"open-files": "warning"}),
        (Machine(open_files=20_000, proxies=("HTTP_PROXY",)), {"environment": "fine", "proxy-variables": "note"}),
        (Machine(open_files=20_000, proxies=("HTTP_PROXY",), no_proxy="a, 127.0.0.1"), {"environment": "fine"}),
    ],
)
def test_the_environment(made: Machine, expected: dict[str, str]) -> None:
    assert told(machine.CHECKS, facts(machine=made)) == expected


@pytest.mark.parametrize(
    ("days", "problem", "expected"),
    [
        (90, None, "certificates"),
        (3, None, "certificate-ends"),
        (-1, None, "certificate-expired"),
        (None, "it cannot be read", "certificate-unread"),
    ],
)
def test_certificates(days: float | None, problem: str | None, expected: str) -> None:
    each = CertificateFacts("certificate", Path("/c"), None if days is None else NOW + days * 86_400, problem)
    assert list(told([settings.CHECKS[1]], facts(certificates=[each]))) == [expected]


def test_who_may_reach_it() -> None:
    def of(**fields: Any) -> dict[str, str]:
        return told([settings.CHECKS[0]], facts(settings=Settings(**fields)))

    assert of() == {"access": "fine"}
    assert of(admin="0.0.0.0:8001", admin_token=SecretStr("x" * 40)) == {"access": "fine"}
    assert of(admin="0.0.0.0:8001", admin_token=SecretStr("short")) == {"token-short": "warning"}
    assert of(admin="0.0.0.0:8001", admin_read_token=SecretStr("x" * 40)) == {"no-control-token": "note"}
    assert of(listen="0.0.0.0:8000") == {"listen-open": "note"}


def log(name: str = "gpu-out-of-memory", *tail: str) -> LogFacts:
    diagnosis = {"name": name, "cause": "memory", "evidence": "a line", "remedy": "less", "permanent": True}
    return LogFacts(Path("/e.log"), 10, 60.0, tail, diagnosis)


def test_logs() -> None:
    away = {"speculative": engine(server=replace(SERVER, kind=Kind.NOTHING))}
    check = [logs.CHECKS[0]]
    assert told(check, facts(logs=[log()], engines=away)) == {"out-of-memory": "fault"}
    # An engine that serves has got over it.
    assert told(check, facts(logs=[log()])) == {"out-of-memory": "note"}
    assert told(check, facts(logs=[log("port-taken")], engines=away)) == {"engine-port-taken": "fault"}
    assert told(check, facts(logs=[log("unknown")])) == {"engine-log": "fine"}
    other = replace(log(), diagnosis=Unseen("it is no engine's log", "other"))
    assert told(check, facts(logs=[other])) == {"engine-log": "unseen"}
    down = log("unknown", "WARNING … Specwatch stands down, the engine serves without it: vLLM 9 is not known")
    assert told([logs.CHECKS[1]], facts(logs=[down])) == {"plugin-stood-down": "warning"}
    assert told([logs.CHECKS[1]], facts(logs=[log()])) == {"plugin-stood-down": "fine"}
