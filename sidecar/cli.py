"""The `specwatch` command. No logic: it reads flags and calls."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from msgspec import to_builtins

from .settings import Settings, SettingsError, load, split_address

app = typer.Typer(
    help="Watches, and steers, the quality of speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
db = typer.Typer(help="The database.", no_args_is_help=True)
app.add_typer(db, name="db")
alerts = typer.Typer(
    help="Alert rules: whether a file of them is sound, and does what it should.", no_args_is_help=True
)
app.add_typer(alerts, name="alerts")

Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of settings.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _option(name: str) -> str:
    return Settings.model_fields[name].description or ""


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(f"specwatch: {message}", err=True)
    raise typer.Exit(code)


def _load(config: Path | None, **flags: object) -> Settings:
    try:
        return load(config, **flags)
    except SettingsError as error:
        _fail(str(error))


@app.command()
def up(
    config: Config = None,
    incident: Annotated[
        int | None,
        typer.Option(min=0, help="Stage the demo's incident so many seconds after the start.", metavar="SECONDS"),
    ] = None,
) -> None:
    """Start engine(s), sidecar and dashboard as configured; Ctrl-C stops all."""
    from alerts.config import ConfigError
    from alerts.config import load as load_alerts

    from .up import Up

    settings = _load(config)
    if incident is not None and not settings.demo:
        _fail("--incident: is staged in the demo alone, set demo: true")
    try:
        # The sidecar would say so when the engine has loaded its models.
        load_alerts(settings.alerts)
    except ConfigError as error:
        _fail(str(error))
    raise typer.Exit(Up(settings, config, incident).run())


@app.command()
def sidecar(
    config: Config = None,
    upstream: Annotated[str | None, typer.Option(help=_option("upstream"))] = None,
    fallback_upstream: Annotated[str | None, typer.Option(help=_option("fallback_upstream"))] = None,
    listen: Annotated[str | None, typer.Option(help=_option("listen"))] = None,
    admin: Annotated[str | None, typer.Option(help=_option("admin"))] = None,
    database_url: Annotated[str | None, typer.Option(help=_option("database_url"))] = None,
    draft_model: Annotated[str | None, typer.Option(help=_option("draft_model"))] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(help=_option("num_speculative_tokens"))] = None,
) -> None:
    """The proxy, probes and record alone, before any OpenAI-compatible server."""
    from .app import serve
    from .recorder import StartError

    settings = _load(
        config,
        upstream=upstream,
        fallback_upstream=fallback_upstream,
        listen=listen,
        admin=admin,
        database_url=database_url,
        draft_model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
    )
    try:
        serve(settings)
    except SettingsError as error:
        _fail(str(error))
    except StartError as error:
        _fail(str(error), 1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def engine(
    context: typer.Context,
    config: Annotated[Path, typer.Option("--config", "-c", help="speculative_config.yaml of the engine.")],
) -> None:
    """vLLM with a target and a draft model; further flags as `--describe`, `--dry-run`."""
    _exec("specwatch_engine.launch", "-c", str(config), *context.args)


@app.command()
def dashboard(
    api: Annotated[
        str, typer.Option(help="URL of a sidecar's admin port.", envvar="SPECWATCH_API")
    ] = "http://127.0.0.1:8001",
    listen: Annotated[str, typer.Option(help="Where to serve the pages.")] = "127.0.0.1:8501",
) -> None:
    """The dashboard alone. A token comes from SPECWATCH_ADMIN_TOKEN, or SPECWATCH_ADMIN_READ_TOKEN to read only."""
    try:
        host, port = split_address(listen)
    except ValueError:
        _fail("--listen: must be host:port, as in 127.0.0.1:8501")
    _exec("dashboard", "--api", api, "--host", host, "--port", str(port))


@contextmanager
def _asking() -> Iterator[None]:
    """Ends the command with exit code 1 where the sidecar cannot be asked, or refuses."""
    from .remote import RemoteError

    try:
        yield
    except RemoteError as error:
        _fail(str(error), 1)


@app.command()
def status(config: Config = None, as_json: Json = False) -> None:
    """State, acceptance rate and latency of the last hour."""
    from .remote import RemoteError, engines, print_status, state_line, summary

    settings = _load(config)
    with _asking():
        try:
            answer, steered = summary(settings), engines(settings)
        except RemoteError:
            if not as_json:
                typer.echo(state_line(settings))
            raise
    if as_json:
        typer.echo(json.dumps(answer | {"engines": steered}, indent=2))
    else:
        print_status(answer, steered)


@app.command()
def fallback(
    mode: Annotated[str, typer.Argument(help="auto, speculative or autoregressive.")],
    reason: Annotated[str, typer.Option(help="Why; kept with the change.")] = "",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Switch how requests are served, at once and for all that come after."""
    from .remote import set_mode

    if mode not in ("auto", "speculative", "autoregressive"):
        _fail(f"{mode!r} is no mode: use auto, speculative or autoregressive")
    with _asking():
        answer = set_mode(_load(config), mode, reason)
    typer.echo(json.dumps(answer, indent=2) if as_json else f"{answer['state']} ({answer['mode']}): {answer['reason']}")


@app.command()
def cap(
    tokens: Annotated[str, typer.Argument(help="Most draft tokens a step: a number, or `default`.")],
    mode: Annotated[str | None, typer.Option(help="hard, soft or cold; else as it is.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the change.")] = "",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Cap the draft tokens of the running engine, requests in flight included; 0 switches speculation off."""
    from .remote import core_line, set_cap

    if tokens != "default" and not (tokens.isascii() and tokens.isdigit()):
        _fail(f"{tokens!r} is no cap: use a number from 0 on, or default")
    if mode not in (None, "hard", "soft", "cold"):
        _fail(f"--mode: {mode!r} is none: use hard, soft or cold")
    with _asking():
        answer = set_cap(_load(config), None if tokens == "default" else int(tokens), mode, reason)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        for core in answer["cores"]:
            typer.echo(f"engine {core['engine']} {core_line(core)}")


@app.command()
def swap(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of the other weights, on the engine's machine.")],
    reason: Annotated[str, typer.Option(help="Why; kept with the change.")] = "",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Load other weights of the same shape into the running engine's draft model."""
    from .remote import swap as order

    with _asking():
        answer = order(_load(config), str(checkpoint.absolute()), reason)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        for core in answer["cores"]:
            typer.echo(
                f"engine {core['engine']} drafts with {answer['checkpoint']}; it stood still {core['still_s']:g} s"
            )


@app.command()
def tokenizers(
    target: Annotated[str, typer.Argument(help="Folder, or name in the local cache of the Hugging Face hub.")],
    draft: Annotated[str, typer.Argument(help="The same of the draft model or head.")],
    mapped: Annotated[
        bool, typer.Option("--mapped", help="The engine maps one vocabulary to the other (use_heterogeneous_vocab).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Whether draft and target know the tokens by the same ids; exit code 0 aligned, 1 misaligned, 2 cannot tell."""
    from .probes.tokenizer_check.compare import compare
    from .probes.tokenizer_check.files import read_model
    from .probes.tokenizer_check.report import Verdict
    from .probes.tokenizer_check.words import lines
    from .probes.vocabulary import NoVocabulary

    try:
        report = compare(read_model(target), read_model(draft), mapped or None)
    except NoVocabulary as error:
        _fail(str(error))
    if as_json:
        typer.echo(json.dumps(to_builtins(report), indent=2))
    else:
        for line in lines(report):
            typer.echo(line)
    raise typer.Exit({Verdict.ALIGNED: 0, Verdict.MISALIGNED: 1, Verdict.UNKNOWN: 2}[report.verdict])


@db.command("upgrade")
def db_upgrade(config: Config = None, database_url: Annotated[str | None, typer.Option()] = None) -> None:
    """Bring the database to this version's tables, and make the rollups that are missing.

    The sidecar does both itself: tables when it starts, rollups little by little.
    """
    from .recorder import StartError
    from .upkeep import bring_up_to_date

    settings = _load(config, database_url=database_url)
    try:
        bring_up_to_date(settings, typer.echo)
    except SettingsError as error:
        _fail(str(error))
    except StartError as error:
        _fail(str(error), 1)


@db.command("prune")
def db_prune(
    older: Annotated[
        list[str] | None,
        typer.Option(help="Days for which rows are kept, other than retention_days says.", metavar="TABLE=DAYS"),
    ] = None,
    budget: Annotated[str, typer.Option(help="How long it may take, as 60s, 10m or 2h.")] = "60s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many rows would go.")] = False,
    database_url: Annotated[str | None, typer.Option(help=_option("database_url"))] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Delete the rows that are older than they are to be kept; exit code 0 all are gone, 1 some are left.

    The sidecar does so itself, little by little.
    """
    from .recorder import StartError
    from .upkeep import prune, pruned_lines

    settings = _load(config, database_url=database_url)
    try:
        found = prune(settings, older or [], "0s" if dry_run else budget)
    except SettingsError as error:
        _fail(str(error))
    except StartError as error:
        _fail(str(error), 1)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"dry_run": dry_run}, indent=2))
    else:
        for line in pruned_lines(found, dry_run):
            typer.echo(line)
    raise typer.Exit(int(not found.done and not dry_run))


@db.command("export")
def db_export(
    table: Annotated[str, typer.Option(help="requests, rollups, similarities, transitions, alerts, counters, …")],
    out: Annotated[
        Path | None, typer.Option(help="File to write, else TABLE.parquet.", metavar="FILE.parquet", show_default=False)
    ] = None,
    since: Annotated[str | None, typer.Option(help="First time, as 2026-01-31T12:00:00Z or Unix seconds.")] = None,
    until: Annotated[str | None, typer.Option(help="The time before which rows end.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    database_url: Annotated[str | None, typer.Option(help=_option("database_url"))] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write a table as a Parquet file: of one state of the database, while the sidecar goes on."""
    from rich.console import Console

    from .store.export import ExportError, OptionError, export

    settings = _load(config, database_url=database_url)
    first, end = _time("--since", since), _time("--until", until)
    # A half file is taken away again then, as at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Console(stderr=True).status("reading") as shown:
            report = export(
                settings.database_url,
                table,
                out or Path(f"{table}.parquet"),
                since=first,
                until=end,
                force=force,
                progress=lambda rows: shown.update(f"reading {table}: {rows} rows"),
            )
    except OptionError as error:
        _fail(str(error))
    except ExportError as error:
        _fail(str(error), 1)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        size = f"{report.bytes / 1e6:.1f} MB in {report.seconds:.1f} s"
        typer.echo(f"{report.rows} rows of {report.table} in {report.file}, {size}")


def _time(option: str, text: str | None) -> datetime | None:
    from pydantic import TypeAdapter, ValidationError

    from .api.params import Time

    try:
        found: datetime | None = None if text is None else TypeAdapter(Time).validate_python(text)
    except ValidationError as error:
        _fail(f"{option}: {error.errors()[0]['msg'].removeprefix('Value error, ')}")
    return found


@alerts.command("check")
def alerts_check(
    file: Annotated[
        Path | None, typer.Argument(help="File of alerts; else that of the setting alerts, else what is shipped.")
    ] = None,
    config: Config = None,
) -> None:
    """Say what rules, receivers and routes a file makes; exit code 2 where it is wrong."""
    from alerts.check import check
    from alerts.config import ConfigError

    try:
        for line in check(file if file is not None else _load(config).alerts):
            typer.echo(line)
    except ConfigError as error:
        _fail(str(error))


@alerts.command("test")
def alerts_test(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of tests of rules.")],
) -> None:
    """Run tests of rules: exit code 0 all pass, 1 some fail, 2 a file is wrong."""
    from alerts.check import run_tests
    from alerts.config import ConfigError

    failed = False
    for file in files:
        try:
            failures = run_tests(file)
        except ConfigError as error:
            _fail(str(error))
        for failure in failures:
            typer.echo(f"{file}: {failure}")
        typer.echo(f"{file}: {'FAILED' if failures else 'passed'}")
        failed = failed or bool(failures)
    raise typer.Exit(int(failed))


@app.command()
def doctor(
    log: Annotated[
        list[Path] | None, typer.Option(help="Log of an engine; may be repeated.", metavar="FILE", show_default=False)
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Also write an archive for a bug report, without secrets.", metavar="FILE.tar.gz"),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Look at engine, sidecar, database and logs; exit code 0 nothing is wrong, 1 something is, 2 cannot look."""
    from .doctor.command import doctor as look

    raise typer.Exit(look(_load(config), logs=log or (), bundle=bundle, as_json=as_json))


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="YAML file of settings, which names the database.", show_default=False)
]


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def qualify(context: typer.Context, settings: SettingsFile = None) -> None:
    """Whether a draft is good enough, and for which scenarios: report and certificate."""
    _lab("qualify", context.args, settings)


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def sweep(context: typer.Context, settings: SettingsFile = None) -> None:
    """How many draft tokens a step (k) are best, by scenario and load."""
    _lab("sweep", context.args, settings)


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def soak(context: typer.Context, settings: SettingsFile = None) -> None:
    """Whether speculation stays as it is for hours."""
    _lab("soak", context.args, settings)


@app.command("self-draft", add_help_option=False, context_settings=_PASSED_ON)
def self_draft(context: typer.Context, settings: SettingsFile = None) -> None:
    """Make a draft of a target's own lower layers."""
    _lab("self-draft", context.args, settings)


def _lab(kind: str, arguments: list[str], settings: Path | None) -> NoReturn:
    from .lab import run

    try:
        code = run(kind, arguments, settings)
    except SettingsError as error:
        _fail(str(error))
    raise typer.Exit(code)


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def grafana(context: typer.Context) -> None:
    """Dashboards and alert rules for Grafana and Prometheus: push, export."""
    _exec("specwatch_grafana", *context.args)


def _exec(module: str, *arguments: str) -> NoReturn:
    # In place of this process, so that signals and exit codes need no passing on.
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606


def main() -> None:
    app()


if __name__ == "__main__":
    main()
