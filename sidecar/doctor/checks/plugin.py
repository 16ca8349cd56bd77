"""The engine's plugin: whether it is there, knows this vLLM, and its events arrive."""

from collections.abc import Iterator

from ..facts import EngineFacts, Facts, Kind, SidecarFacts, Unseen
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: Versions of vLLM that the plugin knows; `specwatch_engine.plugin.compat.hooks.KNOWN`, as a test sees to.
KNOWN = ("0.32.0",)
#: Of the steps that an engine's core told, those that may be lost.
_LOST = 0.01


def version(facts: Facts) -> Iterator[Result]:
    engine = facts.engine
    assert engine is not None
    found = engine.server.version
    if engine.server.kind is not Kind.VLLM or found is None:
        yield NotLooked("engine-version", f"the engine's version: {engine.server.url} is {engine.server.words}")
        return
    plain = found.partition("+")[0]
    if plain in KNOWN:
        yield fine("engine-version", f"vLLM {found} is known to the engine plugin")
        return
    older = _number(plain) < _number(KNOWN[0])
    yield warning(
        "engine-version",
        f"vLLM {found} is {'older than' if older else 'another than'} the plugin knows",
        f"the plugin knows {', '.join(KNOWN)}",
        cause="in any other version the plugin stands down: no events, no cap, no swap, no opt-out"
        + (
            "; and vLLM may not know --per-request-spec-decode-metrics yet, so that replies tell no figures"
            if older
            else ""
        ),
        remedy=f"serve with vLLM {KNOWN[0]} (pip install 'specwatch[engine]'); until then figures come with usage "
        "(add_usage, where vLLM knows --per-request-spec-decode-metrics), and fallback needs a fallback_upstream",
        command=f"curl -s {engine.server.url}/version",
    )


def control(facts: Facts) -> Iterator[Result]:
    """The control route, where these settings mean to use it."""
    engine, settings = facts.engine, facts.settings
    assert engine is not None
    if not engine.server.serves:
        yield NotLooked("engine-control", f"the control route: {engine.server.url} is no engine")
        return
    cores = engine.cores
    if not isinstance(cores, Unseen):
        yield fine("engine-control", f"the plugin answers in {len(cores)} engine cores")
        return
    command = "specwatch status"
    match cores.code:
        case "no_engine_token" if settings.engine_token is None:
            yield NotLooked(
                "engine-control",
                "whether the engine has the plugin: engine_token is not set here (nor needed, where nothing is "
                "steered)",
            )
        case "refused" | "engine_failed":
            yield fault(
                "plugin-fails",
                "the engine plugin does not work in this engine",
                cores.why,
                cause="it has failed in an engine core, or does not know a part of this vLLM",
                remedy=f"look for Specwatch in the engine's log; serve with vLLM {KNOWN[0]}",
                command=command,
            )
        case "wrong_engine_token" | "no_engine_token":
            yield fault(
                "engine-token",
                "the engine does not take the engine_token that is set here",
                cores.why,
                cause="SPECWATCH_ENGINE_TOKEN differs between engine and sidecar, or one of them has none",
                remedy="start both with the same SPECWATCH_ENGINE_TOKEN; `specwatch up` does",
                command=command,
            )
        case "no_plugin" | "not_vllm":
            yield warning(
                "no-plugin",
                "the engine has no control route, though engine_token is set",
                cores.why,
                cause="it was started without the plugin's middleware, or the plugin is not installed where vLLM is",
                remedy="start it with `specwatch engine -c FILE`, or with --middleware "
                "specwatch_engine.plugin.control.Control",
                command=command,
            )
        case _:
            yield NotLooked("engine-control", f"the control route: {cores.why}")


def events(facts: Facts) -> Iterator[Result]:
    """Whether the engine's events reach the sidecar."""
    engine, side = facts.engine, facts.sidecar
    assert engine is not None
    path = facts.settings.engine_events
    if path is None:
        yield from _nobody_listens(engine)
        return
    if not isinstance(side, SidecarFacts) or isinstance(side.samples, Unseen):
        why = side.why if isinstance(side, Unseen) else "its /metrics is out of reach"
        yield NotLooked("engine-events", f"the engine's events: {why}")
        return
    samples = side.samples
    connected = samples.total("specwatch_engine_feed_connected_cores")
    steps, lost = (samples.total(f"specwatch_engine_feed_{name}") or 0 for name in ("steps", "steps_dropped"))
    command = f"curl -s {side.url}/metrics | grep engine_feed"
    if connected is None:
        yield note(
            "engine-events-unset",
            "the running sidecar listens for no events, though engine_events is set here",
            remedy="restart it with these settings",
            command=command,
        )
    elif not connected:
        cores = engine.cores
        elsewhere = not isinstance(cores, Unseen) and any(core.events.connected for core in cores)
        yield fault(
            "engine-events-missing",
            "no engine core sends its events",
            f"the sidecar listens on {path}; {steps:.0f} steps came since its start",
            *(["the engine's plugin is connected to another listener"] if elsewhere else []),
            cause="the engine has another SPECWATCH_ENGINE_EVENTS, sees another file system (a container), runs "
            "without "
            "the plugin, or has not stepped since the sidecar's start",
            remedy=f"start the engine with SPECWATCH_ENGINE_EVENTS={path} (a volume of both, in containers); an idle "
            "engine connects with its next request",
            command=command,
        )
    elif steps and lost / (steps + lost) > _LOST:
        yield warning(
            "engine-events-lost",
            f"{lost:.0f} of {steps + lost:.0f} steps of the engine were lost",
            cause="the sidecar is too slow to take them, or was away for a while",
            remedy="give the sidecar a core of its own; figures of those requests come from their usage alone",
            command=command,
        )
    else:
        yield fine("engine-events", f"{connected:.0f} engine cores send their events: {steps:.0f} steps so far")


def _nobody_listens(engine: EngineFacts) -> Iterator[Result]:
    cores = engine.cores
    if isinstance(cores, Unseen) or not any(core.method for core in cores):
        yield fine("engine-events", "engine_events is not set: figures come with the replies' usage")
    elif any(core.events.connected for core in cores):
        yield note(
            "engine-events-elsewhere",
            "the engine's plugin sends its events to another listener",
            cause="another sidecar has its socket",
            remedy="name that sidecar's settings, or set engine_events here to have them",
        )
    else:
        yield note(
            "engine-events-unheard",
            "the engine has the plugin, and nobody listens to its events",
            remedy="set engine_events to the path of the engine's SPECWATCH_ENGINE_EVENTS: then every reply has its "
            "figures, "
            "alignment and similarity can be watched",
        )


def _number(version_: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version_.split(".")[:3])


CHECKS = (Check("engine-version", version), Check("engine-control", control), Check("engine-events", events))
