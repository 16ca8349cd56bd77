"""Events, in Streamlit's own test harness."""

from support import board
from support.apptest import charts, page_of, said


def test_events(api):
    at = page_of("events").run()
    assert not at.exception
    labels = [expander.label.replace("\\", "") for expander in at.expander]
    assert len(labels) == 5
    assert labels[0].endswith("Alert SpecwatchAcceptanceLowInScenario fires (scenario translate): 0.55")
    assert ":orange[**warning**]" in labels[0]
    assert ":orange[**autoregressive**]" in labels[1]
    (line,) = charts(at)
    assert [trace.get("name") for trace in line["data"]][4:] == [
        *("switches", "engine", "versions", "alerts", "alignment", "lab"),
    ]
    text = said(at)
    assert "<dt>acceptance rate p</dt><dd>0.540</dd>" in text
    assert "No figures are kept with this event." in text
    assert 'href="requests?since=2026-11-29T18%3A22%3A00Z&amp;until=2026-11-29T18%3A32%3A00Z"' in text
    assert (
        'href="truncation?since=2026-11-29T18%3A21%3A00Z&amp;until=2026-11-29T18%3A31%3A00Z&amp;scenario=translate"'
        in text
    )
    assert "Truncation of its slice around it" in text


def test_what_fires_since_before_the_time_range_is_drawn(api):
    api.answers["alerts"] = board.alerts("SpecwatchErrors")
    at = page_of("events").run()
    assert not at.exception
    bars = [trace for trace in charts(at)[0]["data"] if trace.get("opacity") == 0.4]
    assert [len(bar["x"]) for bar in bars] == [0, 6], "that of an event and this one"


def test_what_fires_all_through_the_time_range_is_drawn(api, sample):
    """An alert from 17:40 to 18:20; no event is between 17:48 and 18:00, and none is active now."""
    ends = {"since": "2026-11-29T17:48:00Z", "until": "2026-11-29T18:00:00Z"}
    told = {"since": "2026-11-22T17:48:00Z", "until": ends["until"]}
    made = [
        board.event(50, "alert", "A", "firing", "A fires", severity="warning"),
        board.event(10, "alert", "A", "resolved", "A is over", severity="warning"),
    ]

    def events(query):
        inside = [each for each in made if query["since"] <= each["at"] < query["until"]]
        return 200, {"events": inside[::-1], "next_cursor": None}

    api.answers["events"] = events
    api.answers["acceptance"] = sample.acceptance() | ends
    at = page_of("events")
    at.query_params.update(ends)
    at.run()
    assert not at.exception
    asked = [query for _, name, query, _ in api.seen if name == "events"]
    assert {"window": "366d", "limit": "200", "kind": "alert"} | told in asked
    (chart,) = charts(at)
    bars = [trace["x"] for trace in chart["data"] if trace.get("opacity") == 0.4]
    assert [[at[:16] for at in each if at] for each in bars] == [[], ["2026-11-29T17:48", "2026-11-29T18:00"]]
    assert "No events in 2026-11-29 17:48" in said(at)


def test_time_and_kind_come_from_the_url_and_go_to_the_api(api):
    at = page_of("events")
    at.query_params["window"] = "6h"
    at.query_params["kind"] = "alerts"
    at.run()
    assert not at.exception
    asked = [query for _, name, query, _ in api.seen if name == "events"]
    assert {"window": "6h", "limit": "200"} in asked, "the time line has all kinds"
    assert {"window": "6h", "limit": "25", "kind": "alert"} in asked


def test_older_and_newer(api):
    def page(query):
        number = int(query.get("cursor", "0"))
        made = board.event(number, "version", "k", "4", f"page {number} begins")
        return 200, {"events": [made], "next_cursor": str(number + 1) if number < 2 else None}

    api.answers["events"] = page
    at = page_of("events").run()

    def shown():
        assert not at.exception
        return at.expander[0].label, [at.button(key=f"events_{name}").disabled for name in ("newer", "older")]

    for key, words, disabled in (
        (None, "page 0", [True, False]),
        ("events_older", "page 1", [False, False]),
        ("events_older", "page 2", [False, True]),
        ("events_newer", "page 1", [False, False]),
    ):
        if key:
            at.button(key=key).click().run()
        label, states = shown()
        assert words in label
        assert states == disabled
    at.selectbox(key="kind").set_value("engine").run()
    assert "page 0" in shown()[0], "of another kind the newest come first"


def test_what_is_opened_stays_open(api):
    """Expanders are known by their events, and by no place in the list."""
    at = page_of("events").run()
    ids = {expander.label: expander.proto.id for expander in at.expander}
    api.answers["events"]["events"].insert(0, board.event(1, "engine", "", "changed", "A newer one"))
    api.answers["events"]["events"].insert(3, api.answers["events"]["events"][2])
    at.run()
    assert not at.exception, "two events that are alike have a place each"
    after = {expander.label: expander.proto.id for expander in at.expander}
    assert len(at.expander) == 7
    assert all(after[label] == ids[label] for label in ids)


def test_no_events(api):
    api.answers["events"] = {"events": [], "next_cursor": None}
    at = page_of("events").run()
    text = said(at)
    assert "No events in the last 1 hour." in text
    assert "Here stands when decoding falls back" in text
    assert not charts(at)


def test_no_event_of_a_kind(api):
    api.answers["events"] = lambda query: (
        (200, {"events": [], "next_cursor": None}) if "kind" in query else (200, board.events())
    )
    at = page_of("events")
    at.query_params["kind"] = "engine"
    text = said(at.run())
    assert "No event of this kind in the last 1 hour. Here stands when an engine is given an order" in text.replace(
        "**", ""
    )
    assert len(charts(at)) == 1


def test_nothing_speculated(api, sample):
    api.answers["acceptance"] = sample.acceptance() | {"points": []}
    at = page_of("events").run()
    assert not at.exception
    assert len(at.expander) == 5


def test_no_answer(api):
    api.answers["events"] = (503, {"error": {"message": "database unavailable"}})
    assert "No figures: the database is unavailable." in said(page_of("events").run())
    api.answers["events"] = (404, {"error": {"message": "Not Found"}})
    assert "The sidecar gave no figures." in said(page_of("events").run())


def test_a_run_of_the_lab_leads_to_what_it_found(api):
    words = "Qualify of d: rejected. p is low."
    made = board.event(3, "lab", "qualify-1", "rejected", words, evidence={"run": "qualify-1", "kind": "qualify"})
    api.answers["events"] = {"events": [made], "next_cursor": None}
    at = page_of("events").run()
    assert not at.exception
    assert ":orange[**rejected**]" in at.expander[0].label
    assert 'href="lab?run=qualify-1"' in said(at)


def test_texts_of_others_stay_text(api):
    made = board.event(3, "alert", "A", "firing", "**bold** [x](y)", evidence={"<b>": "<script>"}, severity="info")
    api.answers["events"] = {"events": [made], "next_cursor": None}
    at = page_of("events").run()
    assert r"\*\*bold\*\* \[x\]\(y\)" in at.expander[0].label
    assert "<dt>&lt;b&gt;</dt><dd>&lt;script&gt;</dd>" in said(at)
