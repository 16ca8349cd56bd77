"""One alert rule group, put into a Grafana as a whole; its rules may be edited there afterwards."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from .compare import group_differences, not_kept
from .connection import Grafana
from .shipped import FOLDER


class RuleGroup:
    """`shipped` as the HTTP API takes it; `receiver` is the contact point of its rules, None leaves each its own."""

    def __init__(self, grafana: Grafana, shipped: Mapping[str, Any], folder: str, receiver: str | None) -> None:
        self.grafana = grafana
        self.shipped = shipped
        self.folder = folder
        self.receiver = receiver
        self.title: str = shipped["title"]
        self.saving = f"saving alert rules {self.title}"
        self._api = grafana.api.alertingprovisioning
        self._name = quote(self.title, safe="")

    def read(self) -> dict[str, Any]:
        """What is there, {} for nothing."""
        doing = f"reading alert rules {self.title}"
        look: Callable[[], Any] = partial(self._api.get_rule_group, self.folder, self._name)
        return self.grafana.ask(doing, look) or {}

    def wanted(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """What to send. A rule that is paused there stays so, and keeps its contact point.

        Raises Failure where saving would harm others.
        """
        rules = there.get("rules") or []
        self._of_others(rules)
        paused = {rule.get("uid") for rule in rules if rule.get("isPaused")}
        kept = {rule.get("uid"): rule["notification_settings"] for rule in rules if rule.get("notification_settings")}
        fixed: dict[str, Any] = {
            "orgID": self.grafana.target.org or 1,
            "folderUID": self.folder,
            "ruleGroup": self.title,
        }
        if self.receiver is not None:
            fixed["notification_settings"] = {"receiver": self.receiver}
        ours = []
        for rule in self.shipped["rules"]:
            told = {"notification_settings": kept[rule["uid"]]} if rule["uid"] in kept else {}
            ours.append({**rule, **told, **fixed, "isPaused": rule["uid"] in paused})
        return {**self.shipped, "folderUid": self.folder, "rules": ours}

    def save(self, wanted: Mapping[str, Any]) -> str:
        """What there is to say of it. Raises Failure."""
        call: Callable[[], Any] = partial(
            self._api.update_rule_group, self.folder, self._name, wanted, disable_provenance=True
        )
        self.grafana.must(self.saving, call)
        stored = self.read()
        lost = group_differences(wanted, stored)
        if self.receiver is not None and "notification_settings" in lost:
            raise self.grafana.failure(
                self.saving,
                f"it does not keep that {self.receiver} is notified",
                "Grafana 10.4 or later is needed for --receiver; until then its notification policies decide",
            )
        if lost:
            return f"Grafana stores otherwise: {', '.join(sorted(lost))}"
        return self.unknown(wanted, stored)

    def unknown(self, wanted: Mapping[str, Any], there: Mapping[str, Any]) -> str:
        pairs = zip(wanted["rules"], there.get("rules") or [], strict=False)
        fields = sorted({key for ours, theirs in pairs for key in not_kept(ours, theirs)})
        return f"this Grafana has no {', '.join(fields)}" if fields else ""

    def _of_others(self, rules: list[dict[str, Any]]) -> None:
        elsewhere = {str(rule["provenance"]) for rule in rules if rule.get("provenance") not in (None, "", "api")}
        if elsewhere:
            raise self.grafana.failure(
                self.saving,
                f"they are provisioned there otherwise ({', '.join(sorted(elsewhere))})",
                "change them where they come from, or take them out there and push again",
                status=400,
            )
        foreign = [str(rule.get("title")) for rule in rules if not str(rule.get("uid")).startswith(FOLDER)]
        if foreign:
            raise self.grafana.failure(
                self.saving,
                f"a group is saved as a whole, and rules of others in it would be gone ({', '.join(foreign)[:200]})",
                "move them to another group in Grafana",
                status=400,
            )
