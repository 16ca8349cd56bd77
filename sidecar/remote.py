"""Commands that talk to a running sidecar's admin port."""

from datetime import UTC, datetime
from typing import Any

import httpx

from .settings import Settings, split_address


class RemoteError(Exception):
    """The sidecar cannot be asked, or refused; the message says what to do."""


def summary(settings: Settings) -> dict[str, Any]:
    return _ask(settings, "GET", "/api/v1/summary")


def state_line(settings: Settings) -> str:
    """How requests are served, which needs no database."""
    found = _ask(settings, "GET", "/api/v1/fallback")
    return f"{found['state']} (mode {found['mode']}): {found['reason']}"


def set_mode(settings: Settings, mode: str, reason: str) -> dict[str, Any]:
    return _ask(settings, "PUT", "/api/v1/fallback", {"mode": mode, "reason": reason or "specwatch fallback"})


def engines(settings: Settings) -> list[dict[str, Any]]:
    """The engines; none where steering is of no concern, as no token is set."""
    answer = _ask(settings, "GET", "/api/v1/engine")
    return [engine for engine in answer["engines"] if engine["reachable"] or settings.engine_token is not None]


def set_cap(settings: Settings, cap: int | None, mode: str | None, reason: str) -> dict[str, Any]:
    order = {"cap": cap, "mode": mode, "reason": reason or "specwatch cap"}
    return _ask(settings, "PUT", "/api/v1/engine", order, timeout_s=60)


def swap(settings: Settings, checkpoint: str, reason: str) -> dict[str, Any]:
    order = {"checkpoint": checkpoint, "reason": reason or "specwatch swap"}
    return _ask(settings, "PUT", "/api/v1/engine/draft", order, timeout_s=1000)


def core_line(core: dict[str, Any]) -> str:
    """An engine core in a sentence."""
    most = core["num_speculative_tokens"]
    if core["method"] is None:
        return "does not speculate"
    if core["cap"] is None:
        return f"drafts up to {most} tokens a step, as configured (mode {core['mode']})"
    zero = f": {core['at_zero']}" if core["cap"] == 0 else ""
    return f"capped at {core['cap']} of {most} draft tokens a step (mode {core['mode']}){zero}"


def _ask(settings: Settings, method: str, path: str, body: object = None, *, timeout_s: float = 10) -> dict[str, Any]:
    host, port = split_address(settings.admin)
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    token = settings.admin_token or settings.admin_read_token
    # As bytes: httpx refuses text that is not ASCII.
    headers = {b"authorization": b"Bearer " + token.get_secret_value().encode()} if token else {}
    try:
        # The environment's proxies are for the outside.
        with httpx.Client(trust_env=False, timeout=timeout_s) as client:
            answer = client.request(method, url + path, json=body, headers=headers)
    except httpx.ReadTimeout:
        raise RemoteError(
            f"the sidecar on {url} gave no answer in {timeout_s:g} s: its database may hang; see its log"
        ) from None
    except httpx.HTTPError as error:
        raise RemoteError(
            f"no sidecar answers on {url} ({type(error).__name__}): start one with `specwatch up` or "
            "`specwatch sidecar`, or name its address with the setting admin"
        ) from None
    try:
        value = answer.json()
    except ValueError:
        value = None
    if answer.status_code == 401:
        reading = ", or SPECWATCH_ADMIN_READ_TOKEN" if method == "GET" else ""
        given = "another token" if token else "a token"
        raise RemoteError(f"the sidecar wants {given}: set SPECWATCH_ADMIN_TOKEN{reading} to one that it takes")
    if answer.status_code != 200 or not isinstance(value, dict):
        error_value = value.get("error") if isinstance(value, dict) else None
        message = error_value.get("message") if isinstance(error_value, dict) else answer.text[:200]
        raise RemoteError(f"{url}{path} answered {answer.status_code}: {message}")
    return value


def print_status(answer: dict[str, Any], steered: list[dict[str, Any]]) -> None:
    """The summary, and the engines, as lines for a terminal."""
    from rich.console import Console
    from rich.table import Table

    fallback, recent, window = answer["fallback"], answer["last_100"], answer["acceptance"]
    traffic, latency = answer["traffic"], answer["latency"]
    table = Table(show_header=False, box=None, pad_edge=False)
    since = datetime.fromisoformat(fallback["since"]).astimezone(UTC)
    table.add_row("state", f"{fallback['state']} (mode {fallback['mode']}) since {since:%Y-%m-%d %H:%M:%S} UTC")
    table.add_row("why", _shown(fallback["reason"]))
    if fallback.get("fleet") is not None:
        by = f"; decided by {fallback['decided_by']}" if fallback["decided_by"] else ""
        alone = "shared" if fallback["shared"] else "alone: the database cannot be asked"
        table.add_row("fleet", _shown(f"{fallback['fleet']}: {alone}{by}"))
    if fallback.get("certificate") is not None:
        table.add_row("certificate", _shown(fallback["certificate"]["words"]))
    for each in fallback["slices"]:
        table.add_row(_shown(each["slice"]), _shown(f"{each['state']}: {each['reason']}"))
    for each in answer["alerts"]:
        table.add_row(f"alert, {each['severity']}", _shown(_alert(each)))
    between = "" if recent["p_low"] is None else f" ({recent['p_low']:.3f} to {recent['p_high']:.3f})"
    table.add_row(
        "acceptance rate p", f"{_ratio(recent['p'])}{between} over the last {recent['requests']} speculating requests"
    )
    table.add_row("mean acceptance length", _number(recent["mean_acceptance_length"], " tokens"))
    table.add_row("p, last hour", f"{_ratio(window['p'])} over {window['requests']} requests")
    for side in ("speculative", "autoregressive"):
        figures = latency[side]
        text = f"{_number(figures['p95_ms'], ' ms')} over {figures['requests']} requests"
        table.add_row(f"p95 latency, {side}", text)
    table.add_row(
        "latency ratio", _number(latency["ratio"], "") if latency["ratio"] else latency["ratio_reason"] or "-"
    )
    outcomes = ", ".join(f"{count} {name}" for name, count in traffic["outcomes"].items() if count)
    table.add_row("requests, last hour", f"{traffic['requests']}" + (f" ({outcomes})" if outcomes else ""))
    table.add_row("similarity", _shown(_similarity(answer["similarity"])))
    table.add_row("output flags", _shown(_flags(answer["quality"])))
    for each in answer["coverage"]["engines"]:
        if each["coverage"] is not None:
            table.add_row(f"coverage, {each['upstream']}", f"rows tell of {each['coverage']:.1%} of its draft tokens")
    alignment = answer["alignment"]
    tokens = f"{alignment['state']}: {alignment['reason']}{_tokens(alignment['moved'])}"
    table.add_row("tokenizers", _shown(tokens))
    static = alignment["static"]
    table.add_row("tokenizers, by files", _shown(": ".join([static["verdict"], *static["sentences"][:1]])))
    for engine in steered:
        if not engine["reachable"]:
            table.add_row(f"engine, {engine['upstream']}", _shown(f"cannot be steered: {engine['reason']}"))
        for core in engine["cores"]:
            name = engine["upstream"] + (f" {core['engine']}" if len(engine["cores"]) > 1 else "")
            table.add_row(f"engine, {name}", core_line(core))
    table.add_row("database", answer["database"])
    Console().print(table)


def _shown(text: str) -> str:
    """Neither markup nor control characters of a terminal: clients name scenarios and models."""
    from rich.markup import escape

    return escape("".join(each if each.isprintable() else " " for each in text))


def _alert(told: dict[str, Any]) -> str:
    """A firing alert in a sentence, with the labels that tell it from others of its name."""
    group = ", ".join(
        f"{name}={value}" for name, value in told["labels"].items() if name not in ("alertname", "severity", "instance")
    )
    since = datetime.fromisoformat(told["since"]).astimezone(UTC)
    what = told["name"] + (f" ({group})" if group else "") + (f": {told['summary']}" if told["summary"] else "")
    return f"{what}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _tokens(moved: list[dict[str, Any]]) -> str:
    told = ", ".join(f"{each['target_text'] or '?'} ({each['target_id']}, draft {each['draft_id']})" for each in moved)
    return f": {told}" if told else ""


def _similarity(told: dict[str, Any]) -> str:
    figures = told["draft"]
    if figures["mean"] is None:
        return told["reason"] or "no data"
    below = f"{figures['warning']} warnings, {figures['critical']} critical"
    return f"{figures['mean']:.3f} mean of the last {figures['pairs']} drafts with their replies ({below})"


def _flags(told: dict[str, Any]) -> str:
    seen = [f"{each['total']} {each['flag']}" for each in told["flags"] if each["total"]]
    return f"{', '.join(seen) or 'none'} of {told['requests']} replies" if told["requests"] else "no data"


def _ratio(value: float | None) -> str:
    return "no data" if value is None else f"{value:.3f}"


def _number(value: float | None, unit: str) -> str:
    return "no data" if value is None else f"{value:.2f}{unit}"
