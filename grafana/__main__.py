"""`specwatch grafana push|export`. No logic: it reads flags and calls."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from . import connection
from .connection import Failure, Grafana, UsageError
from .export import InTheWay, export
from .push import Options, Outcome, Report, Step, push
from .shipped import DATASOURCE, FOLDER, NotShipped, Shipped

app = typer.Typer(
    help="Dashboards and alert rules for Grafana.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DatasourceUid = Annotated[str, typer.Option(help="uid of the Prometheus data source.")]


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"specwatch: {message}", err=True)
    raise typer.Exit(code)


def _uid(option: str, value: str) -> str:
    if not connection.UID.fullmatch(value):
        _fail(f"{option}: must be 1 to 40 letters, digits, - or _", 2)
    return value


def _token(file: Path | None) -> str:
    if file is None:
        return os.environ.get("GRAFANA_TOKEN", "")
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        _fail(f"--token-file: {file} cannot be read as text", 2)
    if not token:
        _fail(f"--token-file: {file} is empty", 2)
    return token


@app.command("push")
def push_command(
    url: Annotated[
        str, typer.Option(help="Grafana's address, with its sub-path.", envvar="GRAFANA_URL", show_default=False)
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; else GRAFANA_TOKEN is read.", show_default=False)
    ] = None,
    org: Annotated[int | None, typer.Option(min=1, help="Number of the organisation.", show_default=False)] = None,
    prometheus_url: Annotated[
        str | None,
        typer.Option(
            help="Prometheus as Grafana reaches it: makes the data source if there is none.", show_default=False
        ),
    ] = None,
    datasource_uid: DatasourceUid = DATASOURCE,
    folder: Annotated[str, typer.Option(help="uid of the folder; made if there is none.")] = FOLDER,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Alert rules, too. Leave Prometheus's own out then: each would page.")
    ] = False,
    receiver: Annotated[
        str | None,
        typer.Option(
            help="Contact point for all these rules; else the notification policies decide.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would change.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put the dashboards into a Grafana; what is already so is left alone.

    GRAFANA_TOKEN is a service account's token, or user:password. Exit codes: 0 done, 1 failed, 2 wrong use.
    """
    if not url.strip():
        _fail("--url or GRAFANA_URL: is needed, as in http://127.0.0.1:3000", 2)
    if receiver is not None and not (alerts and receiver.strip()):
        _fail("--receiver: is a contact point's name, and for alert rules: give --alerts as well", 2)
    options = Options(
        folder=_uid("--folder", folder),
        prometheus_url=prometheus_url,
        alerts=alerts,
        receiver=receiver,
        dry_run=dry_run,
    )
    shipped = Shipped(datasource=_uid("--datasource-uid", datasource_uid))
    try:
        if prometheus_url is not None:
            connection.check_address("--prometheus-url", prometheus_url)
        target = connection.target(url, _token(token_file), org=org)
    except UsageError as error:
        _fail(str(error), 2)
    try:
        grafana = Grafana(target)
        report = push(grafana, shipped, options, told=None if as_json else _print)
        grafana.close()
    except (Failure, NotShipped) as error:
        _fail(str(error), 1)
    if as_json:
        typer.echo(json.dumps(_document(target.url, options, report)))
    _conclude(options, report, quiet=as_json)


def _print(step: Step) -> None:
    if step.outcome is not Outcome.FAILED:
        typer.echo(f"{step.kind:13} {step.name}: {step.outcome}{', ' + step.detail if step.detail else ''}")


def _document(url: str, options: Options, report: Report) -> dict[str, object]:
    return {
        "url": url,
        "dry_run": options.dry_run,
        "ok": not report.failures,
        "changed": len(report.changed),
        "steps": [asdict(step) for step in report.steps],
        "not_tried": report.not_tried,
    }


def _conclude(options: Options, report: Report, *, quiet: bool) -> None:
    changed = report.changed
    verb = "would change" if options.dry_run else "changed"
    if not report.failures:
        if not quiet:
            typer.echo(f"{verb}: {len(changed)} of {len(report.steps) - 1}" if changed else "unchanged")
        return
    for step in report.failures:
        typer.echo(f"specwatch: {step.detail}", err=True)
    partly = [f"{verb}: {', '.join(step.name for step in changed)}"] if changed else [f"nothing {verb}"]
    if report.not_tried:
        partly.append(f"not tried: {', '.join(report.not_tried)}")
    typer.echo(f"specwatch: {'; '.join(partly)}", err=True)
    raise typer.Exit(1)


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(help="Where to write; made if there is none.", show_default=False)],
    prometheus_url: Annotated[
        str | None, typer.Option(help="Prometheus as Grafana reaches it.", show_default="http://prometheus:9090")
    ] = None,
    datasource_uid: DatasourceUid = DATASOURCE,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Alert rules for Grafana, in place of those for Prometheus.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there and different.")] = False,
) -> None:
    """Write dashboards, provisioning files and rules, for a Grafana and a Prometheus elsewhere.

    The folder provisioning is one for Grafana's paths.provisioning; rules.yml one of Prometheus's rule_files.
    """
    shipped = Shipped(datasource=_uid("--datasource-uid", datasource_uid))
    try:
        if prometheus_url is not None:
            connection.check_address("--prometheus-url", prometheus_url)
        written = export(shipped, folder, alerts=alerts, prometheus_url=prometheus_url, force=force)
    except UsageError as error:
        _fail(str(error), 2)
    except InTheWay as error:
        _fail(f"nothing written, these are there and different (--force overwrites them): {error}", 1)
    except NotShipped as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.filename or folder}: {error.strerror or error}", 1)
    changed = [one for one in written if one.changed]
    for one in changed:
        typer.echo(str(one.path))
    typer.echo(f"written: {len(changed)} of {len(written)}" if changed else "unchanged")
    other = folder / "rules.yml" if alerts else folder / "provisioning" / "alerting"
    if other.exists():
        typer.echo(f"{other} is there as well: take one of the two out, else each alert comes twice", err=True)


def main() -> None:
    app(prog_name="specwatch grafana")


if __name__ == "__main__":
    main()
