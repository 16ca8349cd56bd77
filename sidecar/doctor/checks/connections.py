"""Whether what the settings point to is what they mean: engines, ports, and who else is there."""

from collections.abc import Iterable, Iterator

from ..facts import EngineFacts, Facts, Kind, Server, SidecarFacts, Unseen
from ..findings import Check, Result, fault, fine, note, warning
from ..findings import NotLooked as Unlooked
from ..looks.servers import is_here, port_of


def upstream(facts: Facts) -> Iterator[Result]:
    """The engine that speculates."""
    engine = facts.engine
    assert engine is not None
    yield from _points_to_an_engine(facts, "upstream", engine.server)


def fallback(facts: Facts) -> Iterator[Result]:
    """The engine that does not: it must be another one, of the same target, and draft nothing."""
    engine = facts.engines.get("autoregressive")
    if engine is None:
        yield fine("fallback_upstream", "no fallback_upstream is set: fallback and baseline are by opt-out")
        return
    for result in _points_to_an_engine(facts, "fallback_upstream", engine.server):
        yield result
        if not engine.server.serves:
            return
    main = facts.engine
    assert main is not None
    if main.server.url == engine.server.url:
        yield fault(
            "fallback-is-upstream",
            f"fallback_upstream is the upstream itself, {engine.server.url}",
            cause="the setting names the engine that speculates, so that nothing falls back",
            remedy="start an engine of the same target without a draft and name it, or leave fallback_upstream out: "
            "then requests opt out at the one engine",
        )
        return
    yield from _is_plain(engine)
    yield from _same_target(main.server, engine.server)


def _is_plain(engine: EngineFacts) -> Iterator[Result]:
    samples = engine.samples
    if isinstance(samples, Unseen):
        yield Unlooked("fallback-drafts", f"whether the fallback engine drafts: {samples.why}")
    elif drafted := samples.total("vllm:spec_decode_num_draft_tokens"):
        yield fault(
            "fallback-drafts",
            "the engine of fallback_upstream speculates itself",
            f"vllm:spec_decode_num_draft_tokens_total is {drafted:.0f} at {engine.server.url}",
            cause="fallback_upstream points to an engine that was started with a draft model",
            remedy="start it without speculative_config, or name the one that is",
            command=f"curl -s {engine.server.url}/metrics | grep spec_decode",
        )


def _same_target(main: Server, plain: Server) -> Iterator[Result]:
    ours, theirs = set(main.models), set(plain.models)
    if ours and theirs and not ours & theirs:
        yield fault(
            "fallback-other-model",
            "the two upstreams serve no model in common",
            f"{main.url} serves {', '.join(sorted(ours))}; {plain.url} serves {', '.join(sorted(theirs))}",
            cause="the fallback engine has another model, or the same by another name: its replies would be 404s",
            remedy="give both the same served_model_name, and the same target",
            command=f"curl -s {plain.url}/v1/models",
        )
    elif main.version and plain.version and main.version != plain.version:
        yield note(
            "upstream-versions",
            f"the upstreams run vLLM {main.version} and {plain.version}",
            cause="latencies with and without speculation are compared across versions",
        )


def _points_to_an_engine(facts: Facts, setting: str, server: Server) -> Iterator[Result]:
    if server.serves:
        yield fine(f"{setting}-answers", f"{setting} {server.url} is {server.words}")
        return
    better = _candidate(facts)
    listener = _listener(facts, server)
    seen = [f"{server.url}: {server.words}", *([f"there listens {listener}"] if listener else [])]
    seen += [f"{each.url}: {each.words}" for each in facts.neighbours if each.kind is not Kind.SILENT][:5]
    remedy = _remedy(facts, setting, better)
    command = f"curl -si {server.url}/v1/models"
    match server.kind:
        case Kind.SELF:
            title, cause = f"{setting} is the sidecar's own data port", "a request would go round for ever"
        case Kind.PROXY:
            title = f"{setting} is another sidecar, not an engine"
            cause = "two sidecars in a row record each request twice, and what one decides the other does not know"
        case Kind.ADMIN | Kind.DASHBOARD:
            title = f"{setting} is {server.words}, not an engine"
            cause = "the setting names the wrong one of Specwatch's ports"
        case Kind.NOTHING:
            title = f"nothing answers at {setting} {server.url}"
            cause = "the engine does not run, or listens on another port or host"
        case Kind.SILENT:
            title = f"{setting} {server.url} takes connections and does not answer"
            cause = "the engine hangs or is overloaded, or what listens there is no engine"
        case Kind.NO_HTTP:
            title = f"{setting} {server.url} does not speak HTTP with us"
            cause = "another protocol is spoken on that port, or http and https are mixed up"
        case _:
            title = f"{setting} {server.url} is not OpenAI-compatible"
            cause = "another server listens on that port"
    yield fault(f"{setting}-wrong", title, *seen, cause=cause, remedy=remedy, command=command)


def _candidate(facts: Facts) -> Server | None:
    """The most likely engine: where the engine file says, else a vLLM, else any."""
    others = [each for each in facts.neighbours if each.serves]
    wanted = facts.described.get("url")
    others.sort(key=lambda each: (each.url != wanted, each.kind is not Kind.VLLM))
    return others[0] if others else None


def _remedy(facts: Facts, setting: str, better: Server | None) -> str:
    if better is not None:
        return f"set {setting}: {better.url} ({better.words})"
    file = facts.settings.engine if setting == "upstream" else facts.settings.fallback_engine
    if file is not None:
        return f"start the engine: specwatch engine -c {file} (the file's port is {_port(facts)})"
    return f"start the engine (specwatch engine -c FILE), or set {setting} to its address"


def _port(facts: Facts) -> str:
    url = facts.described.get("url")
    return str(port_of(url)) if url else "not known"


def _listener(facts: Facts, server: Server) -> str | None:
    if isinstance(facts.machine, Unseen) or not is_here(server.url):
        return None
    found = facts.machine.listeners.get(port_of(server.url))
    return f"process {found.pid}: {found.words}" if found is not None else None


def engine_files(facts: Facts) -> Iterator[Result]:
    """What the settings' engine files say, against what the settings say."""
    if not facts.engine_files:
        yield fine("engine-file", "no engine file is set: an engine is started elsewhere")
        return
    for setting, told in facts.engine_files.items():
        file = getattr(facts.settings, setting)
        if isinstance(told, Unseen):
            if told.code == "wrong":
                yield fault(
                    "engine-file-wrong",
                    f"{setting}: {file} cannot be used",
                    *told.why.splitlines()[:5],
                    cause="the launcher refuses it",
                    remedy="correct what it names",
                    command=f"specwatch engine -c {file} --dry-run",
                )
            else:
                yield Unlooked("engine-file", f"{setting} {file}: {told.why}")
            continue
        upstream_url = facts.settings.upstream if setting == "engine" else facts.settings.fallback_upstream
        engine = facts.engines.get("speculative" if setting == "engine" else "autoregressive")
        url = str(told["url"])
        if upstream_url is not None and engine is not None and port_of(url) != port_of(upstream_url):
            if engine.server.serves and is_here(upstream_url):
                yield note(
                    "engine-file-port",
                    f"{setting} says port {port_of(url)}, {engine.server.url} answers",
                    cause="`specwatch up` takes the file's port; a sidecar started alone takes the setting's",
                    remedy="make both the same",
                )
        else:
            yield fine("engine-file", f"{setting} {file} is sound, and of {url}")


def ports(facts: Facts) -> Iterator[Result]:
    """Whether the sidecar's own ports are its own."""
    settings = facts.settings
    running = isinstance(facts.sidecar, SidecarFacts)
    admin = facts.ports.get("admin")
    if admin is not None and not running and admin.kind not in (Kind.NOTHING, Kind.ADMIN):
        who = _listener(facts, admin)
        yield fault(
            "admin-port-taken",
            f"something else listens on admin {settings.admin}",
            f"{admin.url}: {admin.words}",
            *([who] if who else []),
            cause="another program has the port, so that no sidecar can start with these settings (nor Prometheus "
            "scrape it)",
            remedy="stop it, or set admin to a free port, and Prometheus' target with it",
            command=f"ss -ltnp 'sport = :{port_of(admin.url)}'",
        )
    dashboard = facts.ports.get("dashboard")
    if dashboard is not None and dashboard.kind not in (Kind.NOTHING, Kind.DASHBOARD):
        yield warning(
            "dashboard-port-taken",
            f"something else listens on dashboard {settings.dashboard}",
            f"{dashboard.url}: {dashboard.words}",
            *filter(None, [_listener(facts, dashboard)]),
            cause="another program has the port: `specwatch up` would not start",
            remedy="stop it, or set dashboard to a free port",
            command=f"ss -ltnp 'sport = :{port_of(dashboard.url)}'",
        )
    if isinstance(facts.machine, Unseen):
        yield Unlooked("ports", f"who listens on this machine: {facts.machine.why}")
        return
    listen = facts.machine.listeners.get(int(settings.listen.rpartition(":")[2]))
    if not running and listen is not None and not listen.sidecar:
        yield fault(
            "listen-port-taken",
            f"something else listens on listen {settings.listen}",
            f"process {listen.pid}: {listen.words}",
            cause="another program has the port, so that no sidecar can start with these settings",
            remedy="stop it, or set listen to a free port",
            command=f"ss -ltnp 'sport = :{settings.listen.rpartition(':')[2]}'",
        )
        return
    if running or (admin is not None and admin.kind is Kind.NOTHING):
        yield fine("ports", "the ports of listen, admin and dashboard are the sidecar's, or free")


def buffering(facts: Facts) -> Iterable[Result]:
    """What stands between clients and the sidecar is out of sight."""
    scheme = "https" if facts.settings.tls_certificate else "http"
    return [
        Unlooked(
            "buffering",
            "whether a proxy before the sidecar (nginx, a load balancer) holds streams back: send one stream through "
            "it "
            "and one past it, and compare when their first events come; nginx needs `proxy_buffering off` or the "
            "field X-Accel-Buffering: no",
            "curl -N -s -o /dev/null -w '%{time_starttransfer} s\\n' "
            f"{scheme}://{facts.settings.listen}/v1/chat/completions "
            '-H \'content-type: application/json\' -d \'{"model":"…","stream":true,"messages":[…]}\'',
        )
    ]


CHECKS = (
    Check("upstream", upstream),
    Check("fallback_upstream", fallback),
    Check("engine-file", engine_files),
    Check("ports", ports),
    Check("buffering", buffering),
)
