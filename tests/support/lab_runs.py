"""Runs of the lab as the API tells them, one of each kind and state, as the commands write them."""

from datetime import timedelta
from typing import Any

from .board import NOW, Payload, ago


def short(name: str, kind: str = "qualify", **changes: Any) -> Payload:
    """In the list."""
    return {
        "id": name,
        "kind": kind,
        "state": "done",
        "verdict": "qualified in part",
        "started_at": ago(minutes=45),
        "ended_at": ago(minutes=15),
        "updated_at": ago(minutes=15),
        "instance": "sidecar-1",
        "model": "/models/demo-target",
        "draft_model": "/models/draft_generalist",
        "num_speculative_tokens": 4,
        "folder": f"/srv/runs/{name}",
        "version": "0.1.0",
        "title": f"{kind.capitalize()} draft_generalist",
        "reasons": ["The scenario fault_report is not certified: p is 0.29, below 0.65.", "p of all is 0.71."],
    } | changes


QUALIFY: Payload = {
    "title": "Qualify draft_generalist",
    "verdict": "qualified in part",
    "reasons": [],
    "gates": [
        {
            "name": "draft step",
            "passed": True,
            "value": 0.1042,
            "limit": 1 / 3,
            "words": "A draft step takes 0.104 of a target step, less than a third of it.",
        },
        {
            "name": "acceptance rate p",
            "passed": True,
            "value": 0.7131,
            "limit": 0.65,
            "words": "p is 0.713 (0.701 to 0.725), weighed by the shares of the scenarios in the file.",
        },
        {"name": "tokenizers", "passed": True, "value": None, "limit": None, "words": "They are aligned."},
        {
            "name": "p of fault_report",
            "passed": False,
            "value": 0.6497,
            "limit": 0.65,
            "words": "p is 0.6497, below 0.65: most of what the draft proposes for this scenario is thrown away.",
        },
        {
            "name": "similarity",
            "passed": None,
            "value": None,
            "limit": 0.82,
            "words": "Cannot be told: no model that embeds texts is installed.",
        },
    ],
    "tables": [
        {
            "title": "Scenarios, worst first",
            "columns": ["scenario", "certified", "p", "low", "high", "requests", "why"],
            "rows": [
                ["fault_report", False, 0.29, 0.27, 0.31, 150, "p is below 0.65"],
                ["billing", True, 0.742, 0.71, 0.77, 300, ""],
                ["address_confirmation", True, 0.82, 0.81, 0.83, 550, None],
            ],
        },
        {
            "title": "Latency by concurrency",
            "columns": ["in flight", "speculative p95, ms", "plain p95, ms", "ratio"],
            "rows": [[1, 512.25, 948.5, 0.54], [8, 1380.0, 1410.0, 0.979]],
        },
    ],
    "plots": [
        {
            "title": "p by scenario",
            "kind": "bars",
            "x": ["fault_report", "billing", "address_confirmation"],
            "series": [
                {"name": "p", "y": [0.29, 0.742, 0.82], "low": [0.27, 0.71, 0.81], "high": [0.31, 0.77, 0.83]},
                {"name": "break-even p*", "y": [0.21, 0.21, 0.21], "low": None, "high": None},
            ],
            "x_title": "scenario",
            "y_title": "p",
            "mark": 0.65,
        },
        {
            "title": "Truncation by position",
            "kind": "heat",
            "x": [1, 2, 3, 4],
            "series": [
                {"name": "fault_report", "y": [0.61, 0.2, 0.1, None], "low": None, "high": None},
                {"name": "address_confirmation", "y": [0.1, 0.05, 0.03, 0.02], "low": None, "high": None},
            ],
            "x_title": "position",
            "y_title": "first rejections / steps that got there",
            "mark": None,
        },
    ],
    "files": {"report": "report.html", "certificate": "certificate.json"},
}
SWEEP: Payload = {
    "title": "Sweep of k from 1 to 6",
    "verdict": "recommended",
    "reasons": [],
    "gates": [],
    "tables": [
        {
            "title": "The engine's table (num_speculative_tokens_per_batch_size)",
            "columns": ["batch size from", "to", "k"],
            "rows": [[1, 4, 4], [5, 16, 2], [17, None, 0]],
        }
    ],
    "plots": [
        {
            "title": "Speed-up at 4 in flight",
            "kind": "lines",
            "x": [1, 2, 3, 4, 5, 6],
            "series": [
                {
                    "name": "measured",
                    "y": [1.31, 1.55, None, 1.78, 1.71, 1.6],
                    "low": [1.28, 1.5, None, 1.7, 1.64, 1.5],
                    "high": [1.34, 1.6, None, 1.86, 1.78, 1.7],
                },
                {"name": "1+(k-1)p", "y": [1.0, 1.7, 2.4, 3.1, 3.8, 4.5], "low": None, "high": None},
            ],
            "x_title": "k",
            "y_title": "times plain decoding",
            "mark": 1.0,
        }
    ],
    "files": {"report": "report.html"},
}
SOAK: Payload = {
    "title": "Soak of 60 minutes",
    "verdict": "drift",
    "reasons": [],
    "gates": [
        {
            "name": "p of translate",
            "passed": False,
            "value": 0.43,
            "limit": 0.65,
            "words": "p fell from 0.78 to 0.43 in minute 31.",
        },
        {
            "name": "failed requests",
            "passed": True,
            "value": 0.0,
            "limit": 0.01,
            "words": "0 of 5,400 requests failed.",
        },
    ],
    "tables": [],
    "plots": [
        {
            "title": "Acceptance rate p",
            "kind": "lines",
            "x": [float(minute) for minute in range(60)],
            "series": [
                {"name": "all", "y": [0.78 if i < 31 else 0.6 for i in range(60)], "low": None, "high": None},
                {"name": "translate", "y": [0.78 if i < 31 else 0.43 for i in range(60)], "low": None, "high": None},
                {
                    "name": "change of translate found",
                    "y": [0.43 if i == 33 else None for i in range(60)],
                    "low": None,
                    "high": None,
                },
            ],
            "x_title": "minute",
            "y_title": "p",
            "mark": None,
        }
    ],
    "files": {"report": "report.html"},
}

LIST = [
    short("soak-3", "soak", state="running", verdict=None, ended_at=None, started_at=ago(minutes=12), reasons=[]),
    short("qualify-2"),
    short(
        "sweep-1", "sweep", verdict="recommended", started_at=ago(hours=3), ended_at=ago(hours=2), reasons=["k is 4."]
    ),
    short("soak-2", "soak", verdict="drift", started_at=ago(days=1), ended_at=ago(hours=23), reasons=["p fell."]),
    short(
        "qualify-1", verdict="rejected", started_at=ago(days=2), ended_at=ago(days=2, hours=-1), reasons=["p is low."]
    ),
    short(
        "qualify-0",
        state="interrupted",
        verdict=None,
        started_at=ago(days=3),
        ended_at=ago(days=3, minutes=-9),
        updated_at=ago(days=3, minutes=-9),
        reasons=[],
        title=None,
    ),
    short(
        "self-draft-0",
        "self-draft",
        state="failed",
        verdict=None,
        draft_model=None,
        num_speculative_tokens=None,
        started_at=ago(days=4),
        ended_at=ago(days=4, minutes=-1),
        reasons=["There is no room on the disk."],
    ),
]
_SUMMARIES = {
    "qualify-2": QUALIFY,
    "sweep-1": SWEEP,
    "soak-2": SOAK,
    "soak-3": SOAK | {"verdict": "cannot tell"},
    "qualify-1": QUALIFY
    | {
        "gates": [QUALIFY["gates"][1] | {"passed": False, "value": 0.41}, QUALIFY["gates"][2]],
        "tables": [
            QUALIFY["tables"][0]
            | {
                "rows": [
                    ["address_confirmation", False, 0.4, 0.38, 0.42, 550, "p is below 0.65"],
                    ["fault_report", False, 0.29, 0.27, 0.31, 150, "p is below 0.65"],
                ]
            }
        ],
    },
}


def whole(name: str) -> Payload:
    """One run with its summary."""
    (found,) = (run for run in LIST if run["id"] == name)
    return found | {
        "summary": _SUMMARIES.get(name),
        "fingerprint": {"vllm": "0.32.0", "target": "/models/demo-target", "k": 4, "device": None},
        "options": {"prompts": "prompts.jsonl", "number": 1000, "greedy": False, "seed": 0, "plain": None},
    }


def runs(query: dict[str, str]) -> Payload:
    """Pages of `limit`, of one kind or of all."""
    found = [run for run in LIST if query.get("kind") in (None, run["kind"])]
    start, limit = int(query.get("cursor", "0")), int(query["limit"])
    following = str(start + limit) if start + limit < len(found) else None
    return {"runs": found[start : start + limit], "next_cursor": following}


def run(path: str) -> tuple[int, Payload]:
    """The answer to a path as `lab/runs/ID`."""
    name = path.rpartition("/")[2]
    if any(each["id"] == name for each in LIST):
        return 200, whole(name)
    return 404, {"error": {"message": f"no run {name!r} of the lab is recorded", "code": "not_found"}}


#: When everything but the run under way is over.
SOON = NOW + timedelta(minutes=1)
