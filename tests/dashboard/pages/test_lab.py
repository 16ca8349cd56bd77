"""The page Lab, in Streamlit's own test harness."""

import re
from datetime import UTC, datetime

import pytest
from support import lab_runs
from support.apptest import charts, page_of, said
from support.html_tables import cells, table_of


def opened(run=None, **query):
    at = page_of("lab")
    for name, value in query.items() if run is None else {"run": run, **query}.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def asked(api, name="lab/runs"):
    return [query for _, seen, query, _ in api.seen if seen == name]


def test_a_run_that_is_asked_for(api):
    at = opened("qualify-2")
    text = said(at)
    assert "#### Qualify draft_generalist" in text
    (warning,) = at.warning
    assert warning.value.replace("\\", "") == (
        "**◐ qualified in part.** The scenario fault_report is not certified: p is 0.29, below 0.65."
    )
    assert "- p of all is 0.71." in text
    assert cells(table_of(at, "Gates"))[1][:2] == ["p of fault_report", "✗ failed"]
    assert cells(table_of(at, "Scenarios, worst first"))[1][0] == "fault_report"
    assert [chart["data"][0]["type"] for chart in charts(at)] == ["bar", "heatmap"]
    assert "/srv/runs/qualify-2/certificate.json" in text
    assert "<dt>prompts</dt><dd>prompts.jsonl</dd>" in text
    assert 'href="events?since=2026-11-29T17%3A45%3A00Z&amp;until=2026-11-29T18%3A15%3A00Z"' in text
    assert [row[0] for row in cells(table_of(at, "Runs of the lab"))[1:3]] == [
        "soak of draft_generalist",
        "qualify of draft_generalist",
    ]
    assert not at.code, "what has ended is not gone on with"


def test_the_newest_run_is_opened_by_itself(api):
    text = said(opened())
    assert "under way, or ended without a word" in text
    assert "specwatch soak --resume /srv/runs/soak-3" in text
    assert api.paths[-1] == "/api/v1/lab/runs/soak-3"


def test_a_run_under_way(api):
    now = datetime.now(UTC).isoformat()
    api.answers["lab/run"] = lab_runs.whole("soak-3") | {"started_at": now, "updated_at": now}
    at = opened("soak-3")
    (told,) = at.info
    assert re.match(r"\*\*▶ under way\.\*\* For \d+ s now; last heard of \d+ s ago", told.value)
    assert not at.code


@pytest.mark.parametrize(
    ("run", "kind", "words"),
    [
        ("sweep-1", "success", "✓ recommended. k is 4."),
        ("soak-2", "error", "✗ drift. p fell."),
        ("self-draft-0", "error", "✗ failed. There is no room on the disk."),
        ("qualify-0", "warning", "■ interrupted. After 9 min."),
    ],
)
def test_how_runs_stand(api, run, kind, words):
    (box,) = getattr(opened(run), kind)
    assert box.value.replace("\\", "").replace("**", "").startswith(words)


def test_the_command_narrows_the_list(api):
    at = opened(command="sweep")
    assert asked(api)[-1] == {"kind": "sweep", "limit": "8"}
    assert cells(table_of(at, "Runs of the lab"))[1][1] == "✓ recommended"
    assert 'href="lab?command=sweep&amp;run=sweep-1"' in said(at)
    assert "#### Sweep draft_generalist" in said(at)


def test_older_and_newer(api):
    """And with another command the newest come first."""
    runs = [lab_runs.short(f"qualify-{i}") for i in range(20)]

    def page(query):
        start = int(query.get("cursor", "0"))
        return 200, {"runs": runs[start : start + 8], "next_cursor": str(start + 8) if start + 8 < 20 else None}

    api.answers["lab/runs"] = page
    at = opened("qualify-2")
    for key, cursor, disabled in (
        ("lab_older", "8", [False, False]),
        ("lab_older", "16", [False, True]),
        ("lab_newer", "8", [False, False]),
    ):
        at.button(key=key).click().run()
        assert asked(api)[-1]["cursor"] == cursor
        assert [at.button(key=f"lab_{name}").disabled for name in ("newer", "older")] == disabled
        assert "#### Qualify draft_generalist" in said(at), "what is opened stays"
    at.segmented_control(key="command").set_value("qualify").run()
    assert "cursor" not in asked(api)[-1]


def test_a_summary_is_read_again_only_where_it_was_written_anew(api):
    at = opened("qualify-2")
    at.run()
    assert len(asked(api, "lab/run")) == 1
    api.answers["lab/runs"] = {
        "runs": [lab_runs.short("qualify-2", updated_at=lab_runs.ago(minutes=1))],
        "next_cursor": None,
    }
    at.run()
    assert len(asked(api, "lab/run")) == 2


def test_runs_that_are_done_and_on_no_page_that_is_shown_are_read_once(api):
    api.answers["lab/runs"] = {"runs": [lab_runs.short("soak-3")], "next_cursor": None}
    at = opened("qualify-2", beside="qualify-1")
    at.run()
    assert "The other:" in said(at)
    assert len(asked(api, "lab/run")) == 2


def test_two_runs_side_by_side(api):
    at = opened("qualify-2", beside="qualify-1")
    text = said(at)
    assert "This run: **◐ qualified in part**, qualify of draft_generalist. The other: **✗ rejected**" in text
    assert ["acceptance rate p", "0.650", "✓ passed", "0.713", "✗ failed", "0.410"] in cells(
        table_of(at, "Gates of both")
    )
    assert cells(table_of(at, "Scenarios, worst first: what differs"))
    at.selectbox(key="lab_beside_qualify-2").set_value("qualify-0").run()
    assert not at.exception
    assert at.query_params["beside"] == "qualify-0"
    assert "They have neither gates nor tables in common." in said(at)
    at.selectbox(key="lab_beside_qualify-2").set_value(None).run()
    assert "beside" not in at.query_params
    assert "The other:" not in said(at)


def test_one_that_is_not_there(api):
    text = said(opened("x<y", beside="z"))
    assert "There is no run x<y." in text
    assert cells(table_of(opened("x"), "Runs of the lab"))
    assert "There is no run gone." in said(opened("qualify-2", beside="gone"))


@pytest.mark.parametrize(("command", "lines"), [(None, 4), ("soak", 1)])
def test_no_run_yet(api, command, lines):
    """What to type."""
    api.answers["lab/runs"] = {"runs": [], "next_cursor": None}
    at = opened(**({} if command is None else {"command": command}))
    (told,) = at.info
    assert told.value.startswith(f"**No run of {'the lab' if command is None else command} is recorded.**")
    assert "--settings FILE" in said(at)
    (code,) = at.code
    assert len(code.value.splitlines()) == lines
    assert f"specwatch {command or 'qualify'} " in code.value


def test_what_is_not_understood_is_said(api):
    summary = lab_runs.QUALIFY | {"plots": [{"kind": "pie"}], "gates": []}
    api.answers["lab/run"] = lab_runs.whole("qualify-2") | {"summary": summary}
    text = said(opened("qualify-2"))
    assert "Left out, as this dashboard does not know its shape: 1 plot." in text


def test_texts_of_others_stay_text(api):
    odd = "**b** [x](y) <script>"
    summary = {
        "title": odd,
        "verdict": odd,
        "reasons": [odd, odd],
        "gates": [{"name": odd, "words": odd}],
        "tables": [{"title": odd, "columns": [odd], "rows": [[odd]]}],
        "plots": [{"title": odd, "kind": "bars", "x": [odd], "series": [{"name": odd, "y": [1]}], "y_title": odd}],
        "files": {odd: odd},
    }
    changes = {"summary": summary, "title": odd, "verdict": odd, "reasons": [odd, odd], "draft_model": odd}
    api.answers["lab/run"] = lab_runs.whole("qualify-2") | changes
    at = opened("qualify-2")
    assert all("<script" not in html.proto.body for html in at.get("html"))
    shown = "\n".join(each.value for each in [*at.markdown, *at.warning, *at.caption])
    assert "[x](y)" not in shown
    assert r"\*\*b\*\* \[x\]\(y\)" in shown


def test_no_answer(api):
    api.answers["lab/runs"] = (503, {"error": {"message": "database unavailable"}})
    assert "No figures: the database is unavailable." in said(opened())
    api.answers["lab/runs"] = (404, {"error": {"message": "no such path: /api/v1/lab/runs"}})
    text = said(opened())
    assert "The sidecar gave no figures." in text
    assert "both are of one version" in text
