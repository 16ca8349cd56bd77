import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.alerts import alert, notification

from alerts.config import Command
from alerts.message import webhook_body
from alerts.notifiers.command import CommandNotifier
from alerts.notifiers.error import NotifyError, Reason
from alerts.redact import Redactor


def command(script: str, *words: str, secrets: tuple[str, ...] = (), timeout: str = "20s") -> CommandNotifier:
    """`script` is for /bin/sh, `words` are its $1, $2, …"""
    fields = {"name": "retrain", "command": ["/bin/sh", "-c", script, "sh", *words], "timeout": timeout}
    return CommandNotifier(Command.model_validate(fields), Redactor(secrets))


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_program_gets_the_webhooks_json_and_its_words_as_they_are(tmp_path: Path) -> None:
    one = notification(*(alert(scenario=str(n), annotations={"summary": "x" * 1_000}) for n in range(64)))
    took = tmp_path / "took"
    await command('cat > "$1"; echo "$2" >> "$1"', str(took), "$(touch harm); `touch harm`").send(one)
    body, words = took.read_text().splitlines()
    assert json.loads(body) == webhook_body(one)
    assert len(body) > 65_536, "more than a pipe holds"
    assert words == "$(touch harm); `touch harm`"


async def test_a_program_that_does_not_read_what_it_gets_is_well() -> None:
    await command("exec 0<&-; exit 0").send(notification(alert()))


ENDS: list[tuple[str, str, str, Reason, str]] = [
    ("exit code", "echo one; echo two >&2; exit 3", "20s", Reason.FAILED, "ended with 3; the log has its last output"),
    ("signal", "kill -9 $$", "20s", Reason.FAILED, "ended with -9; the log has its last output"),
    ("too long", "echo going; sleep 60", "300ms", Reason.TIMEOUT, "was ended after 0.3 s"),
    ("too long, writes on", "while :; do echo y; done", "300ms", Reason.TIMEOUT, "was ended after 0.3 s"),
    ("too long, in silence", "exec >&- 2>&-; sleep 60", "300ms", Reason.TIMEOUT, "was ended after 0.3 s"),
    ("too long, deaf", "trap '' TERM; while :; do sleep 0.1; done", "300ms", Reason.TIMEOUT, "was ended after 0.3 s"),
]


@pytest.mark.parametrize(("script", "limit", "reason", "says"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS])
async def test_how_it_ended_is_told_and_it_is_not_tried_again(
    script: str, limit: str, reason: Reason, says: str
) -> None:
    with pytest.raises(NotifyError) as raised:
        await asyncio.wait_for(command(script, timeout=limit).send(notification(alert())), 20)
    assert (raised.value.reason, raised.value.recoverable) == (reason, False)
    assert raised.value.message == f"the command {says}"


async def test_a_program_that_cannot_be_started_is_a_failure_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "retrain.sh"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o755)
    notifier = CommandNotifier(Command(name="retrain", command=(str(script), "--key", "S3cret")), Redactor([]))
    with pytest.raises(NotifyError) as raised:
        await notifier.send(notification(alert()))
    assert (raised.value.reason, raised.value.recoverable) == (Reason.FAILED, False)
    assert raised.value.message == "the command cannot be started: No such file or directory"


async def test_the_end_of_its_output_is_logged_on_one_line_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script = "seq 100000; printf 'a\\033[31mb\\377\\n'; echo key=$1 >&2; echo last"
    await command(script, "S3cret-key", secrets=("S3cret-key",)).send(notification(alert()))
    (line,) = [each for each in caplog.messages if "last output" in each]
    assert line.startswith("command of receiver retrain: ended with 0; its last output: ")
    assert line.endswith("99999 | 100000 | a [31mb\N{REPLACEMENT CHARACTER} | key=*** | last")
    assert len(line) < 2_100


async def test_all_that_it_started_ends_with_it_when_it_takes_too_long(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = 'sleep 60 & echo $! >> "$1"; (trap "" TERM; while :; do sleep 0.1; done) & echo $! >> "$1"; wait'
    with pytest.raises(NotifyError):
        await command(script, str(pids), timeout="500ms").send(notification(alert()))
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    await until(lambda: not any(runs(pid) for pid in started))


async def test_what_it_leaves_running_on_purpose_goes_on_and_is_not_waited_for(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    script = '(trap "" HUP; exec sleep 60) & echo $! > "$1"; exit 0'
    await asyncio.wait_for(command(script, str(left)).send(notification(alert())), 10)
    pid = int(left.read_text())
    assert runs(pid)
    os.kill(pid, 9)


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_closing_and_cancelling_end_it(tmp_path: Path, how: str) -> None:
    file = tmp_path / "pid"
    notifier = command('trap "" TERM; echo $$ > "$1.new"; mv "$1.new" "$1"; while :; do sleep 0.1; done', str(file))
    send = asyncio.ensure_future(notifier.send(notification(alert())))
    await until(file.exists)
    pid = int(file.read_text())
    assert runs(pid)
    if how == "cancel":
        send.cancel()
    await notifier.close()
    assert not runs(pid)
    with pytest.raises((NotifyError, asyncio.CancelledError)):
        await send


async def test_a_program_holds_the_loop_up_for_nothing() -> None:
    send = asyncio.ensure_future(command("sleep 0.5").send(notification(alert())))
    turns = 0
    while not send.done():
        await asyncio.sleep(0.005)
        turns += 1
    await send
    assert turns > 10
