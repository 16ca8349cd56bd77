"""What logs tell of a crash, an engine that does not start, and a plugin that stands down."""

from collections.abc import Iterator

from ..facts import Facts, LogFacts, Unseen
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: Of diagnoses, those that are of memory.
_MEMORY = ("gpu-out-of-memory", "kv-cache-too-small", "gpu-memory-taken", "host-memory-short", "killed", "child-died")
#: A log that nobody wrote to for so long is of an engine that has ended, s.
_QUIET_S = 900.0


def crash(facts: Facts) -> Iterator[Result]:
    """Why an engine ended, by its log. An engine that serves has got over what its log tells."""
    if not facts.logs:
        yield NotLooked(
            "engine-log",
            f"no log: none was given, and {facts.settings.run_dir} has none",
            "specwatch doctor --log FILE",
        )
        return
    answers = any(each.server.serves for each in facts.engines.values())
    ours = [log for log in facts.logs if not (isinstance(log.diagnosis, Unseen) and log.diagnosis.code == "other")]
    for log in ours:
        yield from _crash(log, answers)
    if not ours:
        yield NotLooked("engine-log", "none of the logs is an engine's", "specwatch doctor --log FILE")


def _crash(log: LogFacts, answers: bool) -> Iterator[Result]:
    told = log.diagnosis
    if isinstance(told, Unseen):
        yield NotLooked("engine-log", f"{log.path}: {told.why}")
        return
    if told["name"] == "unknown":
        yield fine("engine-log", f"{log.path} tells of no crash that is known")
        return
    memory = told["name"] in _MEMORY
    name = "out-of-memory" if memory else f"engine-{told['name']}"
    seen = (f"{log.path}: {told['evidence']}" if told["evidence"] else str(log.path), f"last written {_ago(log.age_s)}")
    title = f"the engine ended: {told['cause']}"
    command = f"python -m specwatch_engine.launch --diagnose {log.path}"
    if answers:
        # It was started again, or the log is of another one.
        yield note(
            name, f"an engine ended some time ago: {told['cause']}", *seen, remedy=told["remedy"], command=command
        )
    else:
        yield fault(name, title, *seen, cause=told["cause"], remedy=told["remedy"], command=command)


def stands_down(facts: Facts) -> Iterator[Result]:
    """The plugin's own line, which it writes once."""
    for log in facts.logs:
        line = next((line for line in log.tail if "Specwatch stands down" in line), None)
        if line is None:
            continue
        yield warning(
            "plugin-stood-down",
            "the engine plugin stands down",
            f"{log.path}: {line.partition('Specwatch stands down')[2].strip(', ')[:300]}",
            cause="it knows other versions of vLLM than this one, or a part of vLLM is not as it expects",
            remedy="serve with the vLLM that this Specwatch names (pip install 'specwatch[engine]'), or go without the "
            "plugin: start the engine with --per-request-spec-decode-metrics detailed, and set add_usage",
            command=f"grep 'Specwatch stands down' {log.path}",
        )
        return
    if not facts.logs:
        yield NotLooked("plugin-stood-down", "whether the plugin stood down: there is no log to read")
    else:
        yield fine("plugin-stood-down", "no log tells that the plugin stands down")


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


CHECKS = (Check("engine-log", crash), Check("plugin-stood-down", stands_down))
