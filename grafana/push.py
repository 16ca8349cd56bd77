"""What is shipped, put into a Grafana through its HTTP API; what is already so is left alone.

Uids decide what belongs together. Nothing is ever deleted or made anew: a data source keeps its uid for the alert
rules that name it. Notification policies and contact points are not touched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from .compare import group_differences
from .connection import Failure, Grafana
from .push_rules import RuleGroup
from .shipped import FOLDER, Dashboard, Shipped, content

_MESSAGE = "specwatch grafana push "


class Outcome(StrEnum):
    OK = "ok"
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    LEFT_ALONE = "left alone"
    NOT_CHECKED = "not checked"
    WOULD_CREATE = "would create"
    WOULD_UPDATE = "would update"
    FAILED = "failed"


@dataclass(frozen=True)
class Step:
    kind: str
    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Options:
    folder: str = FOLDER
    #: Where Prometheus is, for a data source that has yet to be made.
    prometheus_url: str | None = None
    alerts: bool = False
    #: Contact point that all alert rules notify; None: the notification policies decide.
    receiver: str | None = None
    dry_run: bool = False


@dataclass
class Report:
    steps: list[Step] = field(default_factory=list)
    #: Names of what was not tried after a failure.
    not_tried: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.steps if step.outcome is Outcome.FAILED]

    @property
    def changed(self) -> list[Step]:
        return [step for step in self.steps if step.outcome in _CHANGES]


_CHANGES = (Outcome.CREATED, Outcome.UPDATED, Outcome.WOULD_CREATE, Outcome.WOULD_UPDATE)

#: An outcome, and what there is to say of it.
Done = tuple[Outcome, str]


@dataclass(frozen=True)
class _Task:
    kind: str
    name: str
    run: Callable[[], Done]
    #: Whether what follows makes no sense without it.
    needed: bool = True


def push(grafana: Grafana, shipped: Shipped, options: Options, *, told: Callable[[Step], None] | None = None) -> Report:
    """One step for each thing, `told` as it is done. Failures are steps, too; NotShipped is raised before any."""
    tasks = _Push(grafana, shipped, options).tasks()
    report = Report()
    for place, task in enumerate(tasks):
        try:
            outcome, detail = task.run()
        except Failure as failure:
            outcome, detail = Outcome.FAILED, str(failure)
            if task.needed or not failure.of_one_thing:
                report.not_tried = [later.name for later in tasks[place + 1 :]]
        report.steps.append(Step(task.kind, task.name, outcome, detail))
        if told is not None:
            told(report.steps[-1])
        if report.not_tried:
            break
    return report


class _Push:
    def __init__(self, grafana: Grafana, shipped: Shipped, options: Options) -> None:
        self.grafana = grafana
        self.api = grafana.api
        self.shipped = shipped
        self.options = options
        #: False where the folder is yet to be made, and a dry run does not.
        self.has_folder = True

    def tasks(self) -> Sequence[_Task]:
        """First all that is only looked at, so that nothing is half done for a word left out."""
        options = self.options
        settings = self.shipped.datasource_settings()
        groups = self.shipped.rule_groups() if options.alerts else []
        return [
            _Task("server", self.grafana.target.url, self._health),
            *([_Task("contact point", options.receiver, self._receiver)] if options.receiver else []),
            _Task("data source", self.shipped.datasource, partial(self._datasource, settings)),
            _Task("folder", options.folder, self._folder),
            *(
                _Task("dashboard", dashboard.uid, partial(self._dashboard, dashboard), needed=False)
                for dashboard in self.shipped.dashboards()
            ),
            *(_Task("alert rules", group["title"], partial(self._rules, group), needed=False) for group in groups),
        ]

    def _changes(self, created: bool) -> Outcome:
        if self.options.dry_run:
            return Outcome.WOULD_CREATE if created else Outcome.WOULD_UPDATE
        return Outcome.CREATED if created else Outcome.UPDATED

    def _health(self) -> Done:
        doing = "asking for its health"
        answer = self.grafana.must(doing, lambda: self.api.client.GET("/health"))
        if "database" not in answer:
            raise self.grafana.failure(
                doing, "this is no Grafana", "give --url as the browser shows Grafana's start page, with its sub-path"
            )
        if answer["database"] != "ok":
            raise self.grafana.failure(doing, "its database fails", "look into Grafana's log, then run the push again")
        return Outcome.OK, f"Grafana {answer['version']}" if answer.get("version") else ""

    def _receiver(self) -> Done:
        name = self.options.receiver
        doing = f"looking for contact point {name}"
        found = self.grafana.ask(doing, lambda: self.api.alertingprovisioning.get_contactpoints(name), kind=list)
        if not any(isinstance(one, dict) and one.get("name") == name for one in found or ()):
            raise self.grafana.failure(doing, "there is none", "make it in Grafana, or name another by --receiver")
        return Outcome.OK, ""

    def _datasource(self, settings: dict[str, Any]) -> Done:
        uid, url = settings["uid"], self.options.prometheus_url
        doing = f"looking for data source {uid}"
        try:
            there = self.grafana.ask(doing, lambda: self.api.datasource.get_datasource_by_uid(uid))
        except Failure as failure:
            if failure.status == 403 and url is None:
                return Outcome.NOT_CHECKED, "the token may not look at data sources"
            raise
        if there is None and url is None:
            raise self.grafana.failure(
                doing,
                "there is none",
                "give --prometheus-url to have it made, or the uid of your Prometheus as --datasource-uid",
            )
        if there is None:
            if not self.options.dry_run:
                self.grafana.must(
                    f"making data source {uid}",
                    lambda: self.api.datasource.create_datasource({**settings, "url": url}),
                    remedy=f"if the name {settings['name']} is taken, give that one's uid as --datasource-uid",
                )
            return self._changes(True), ""
        if "prometheus" not in str(there.get("type")):
            raise self.grafana.failure(
                doing, "it is there, but no Prometheus", "give the uid of your Prometheus as --datasource-uid"
            )
        differs = url is not None and str(there.get("url")).rstrip("/") != url.rstrip("/")
        return Outcome.LEFT_ALONE, "its URL is another than --prometheus-url" if differs else ""

    def _folder(self) -> Done:
        uid = self.options.folder
        look = partial(self.grafana.ask, f"looking for folder {uid}", lambda: self.api.folder.get_folder(uid))
        if look() is not None:
            return Outcome.UNCHANGED, ""
        self.has_folder = False
        if not self.options.dry_run:
            title = "Specwatch" if uid == FOLDER else uid
            try:
                self.grafana.must(
                    f"making folder {uid}",
                    lambda: self.api.folder.create_folder(title, uid),
                    remedy=f"if another folder is called {title}, give its uid as --folder",
                )
            except Failure as failure:
                # Another push may have made it meanwhile.
                if failure.status not in (409, 412) or look() is None:
                    raise
            self.has_folder = True
        return self._changes(True), ""

    def _dashboard(self, dashboard: Dashboard) -> Done:
        uid, folder = dashboard.uid, self.options.folder
        there = self.grafana.ask(f"reading dashboard {uid}", lambda: self.api.dashboard.get_dashboard(uid))
        meta = (there or {}).get("meta") or {}
        if there is not None and self._is_ours(dashboard, there) and meta.get("folderUid") == folder:
            return Outcome.UNCHANGED, ""
        doing = f"saving dashboard {uid}"
        from_file = "change the file it comes from, or set allowUiUpdates: true for it in Grafana's provisioning"
        if meta.get("provisioned"):
            raise self.grafana.failure(doing, "it is provisioned from a file of that server", from_file, status=400)
        body = {
            "dashboard": {**dashboard.model, "id": None},
            "folderUid": folder,
            "overwrite": True,
            "message": _MESSAGE + dashboard.digest,
        }
        if not self.options.dry_run:
            self.grafana.must(
                doing, lambda: self.api.dashboard.update_dashboard(body), remedy=f"if it is provisioned: {from_file}"
            )
        return self._changes(there is None), ""

    def _is_ours(self, dashboard: Dashboard, there: dict[str, Any]) -> bool:
        """Whether its content is what is shipped.

        A Grafana may fill in or migrate what it stores. Its newest version then still bears our message.
        """
        if content(there.get("dashboard") or {}) == dashboard.model:
            return True
        path = f"/dashboards/uid/{dashboard.uid}/versions"
        try:
            read = partial(self.api.client.GET, path, params={"limit": 1})
            answer = self.grafana.ask(f"reading versions of {dashboard.uid}", read, kind=dict | list)
        except Failure as failure:
            if failure.of_one_thing or failure.status == 403:
                return False
            raise
        versions: list[dict[str, Any]] = (answer.get("versions") if isinstance(answer, dict) else answer) or []
        newest = max(versions, key=lambda version: int(version.get("version") or 0), default={})
        return newest.get("message") == _MESSAGE + dashboard.digest

    def _rules(self, shipped: dict[str, Any]) -> Done:
        group = RuleGroup(self.grafana, shipped, self.options.folder, self.options.receiver)
        there = group.read() if self.has_folder else {}
        wanted = group.wanted(there)
        if there and not group_differences(wanted, there):
            return Outcome.UNCHANGED, group.unknown(wanted, there)
        said = "" if self.options.dry_run else group.save(wanted)
        return self._changes(not there), said
