"""The whole of it: `python -m dashboard`, Chromium, and values read off the pages.

All ask one dashboard, which gives an answer again for some seconds: those whose answers others ask for, too, come last.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from urllib.parse import urlencode

from playwright.sync_api import expect
from support import board

expect.set_options(timeout=60_000)

#: On a screen of 390 px nothing is beside it.
NARROW = "document.documentElement.scrollWidth <= 390"


def asked(api):
    return [query for _, name, query, _ in api.seen if name == "requests"]


def at_rest(part) -> dict[str, float]:
    """The place of a part of the page, once it stands still."""
    part.wait_for(state="attached")
    until, before, box = time.monotonic() + 30, None, part.bounding_box()
    while box is None or box != before:
        assert time.monotonic() < until, "the page does not come to rest"
        part.page.wait_for_timeout(200)
        before, box = box, part.bounding_box()
    return box


def test_a_click_on_a_cell_shows_its_requests(url, api, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 2200})
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def click(chart: int, row: float, column: float, rows: int, columns: int) -> None:
        """At a place of a cell: counted from the top left, from 0."""
        box = at_rest(page.locator(".heatmaplayer image").nth(chart))
        page.mouse.click(box["x"] + box["width"] * column / columns, box["y"] + box["height"] * row / rows)

    def wait_for(query: dict[str, str], again: Callable[[], None] | None = None) -> None:
        """`again`: for a chart that is drawn, but does not listen yet."""
        until, patience = time.monotonic() + 40, time.monotonic() + 10
        while {"limit": "20"} | query not in asked(api):
            assert time.monotonic() < until, asked(api)
            if again is not None and time.monotonic() > patience:
                again()
                patience = time.monotonic() + 10
            page.wait_for_timeout(100)

    page.goto(f"{url}/truncation")
    page.get_by_text("choose a position, to see the requests").wait_for()
    assert not asked(api)

    # Position 2 at 18:00, near a corner of the cell, which is wider than a marker.
    in_time = partial(click, 0, 1.15, 30.9, rows=5, columns=60)
    in_time()
    step = {"truncated_at": "2", "since": "2026-11-29T18:00:00Z", "until": "2026-11-29T18:01:00Z"}
    wait_for(step, in_time)
    page.get_by_text("truncated at position 2, 2026-11-29 18:00 to 18:01 UTC").wait_for()
    assert page.get_by_role("link", name="req-3").get_attribute("href").startswith("requests?request=req-3&")
    page.wait_for_url(lambda address: "position=2" in address)
    page.wait_for_url(lambda address: "step=2026-11-29T18" in address)

    # It outlasts a refresh, and a visit by the same address.
    seen = len(asked(api))
    until = time.monotonic() + 40
    while len(asked(api)) == seen:
        assert time.monotonic() < until, "the page does not refresh"
        page.wait_for_timeout(200)
    assert asked(api)[-1] == {"limit": "20"} | step
    page.get_by_role("link", name="req-3").wait_for()
    page.reload()
    page.get_by_text("truncated at position 2, 2026-11-29 18:00 to 18:01 UTC").wait_for()

    # Position 3 of the second worst scenario: the step is given up for it.
    of_scenarios = partial(click, 1, 1.5, 2.1, rows=4, columns=5)
    of_scenarios()
    whole = {"since": "2026-11-29T17:30:00Z", "until": "2026-11-29T18:30:00Z"}
    wait_for({"truncated_at": "3", "scenario": "summarise"} | whole, of_scenarios)
    page.get_by_text("17:30 to 18:30 UTC, scenario summarise").wait_for()
    page.wait_for_url(lambda address: "step=" not in address)
    page.wait_for_url(lambda address: "group=summarise" in address)

    # The same without a mouse.
    box = page.get_by_role("combobox", name="Position")
    box.focus()
    page.keyboard.type("4")
    page.get_by_role("option", name="4", exact=True).wait_for()
    page.keyboard.press("Enter")
    wait_for({"truncated_at": "4", "scenario": "summarise"} | whole)
    page.get_by_text("truncated at position 4").wait_for()
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(NARROW)
    assert problems == []


def test_a_request_opened_from_the_table(url, api, chromium):
    rows = [board.row(number, latency_ms=100.0 * (number + 1)) for number in range(5)]
    api.answers["requests"] = {"requests": rows, "next_cursor": None}
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{url}/requests?outcome=ok")
    table = page.get_by_test_id("stDataFrame").first
    table.locator("canvas").first.wait_for()

    def metric(label: str) -> str:
        return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue").inner_text()

    # What Streamlit itself would save guards no formulas of others.
    table.hover()
    page.get_by_role("button", name="Search").first.wait_for()
    assert page.get_by_role("button", name="Download as CSV").count() == 0, "hidden"

    # A cell of the third row: its head and its rows are of 35 px each.
    table.click(position={"x": 220, "y": 35 * 3 + 18})
    page.get_by_role("heading", name="Request req-2").wait_for()
    assert metric("Latency") == "300 ms"
    assert metric("Acceptance rate p") == "0.600"
    page.wait_for_url("**/requests?outcome=ok&request=req-2")
    expect(page.locator(".sw-step:not(.sw-steps-key *)")).to_have_count(4)
    heights = page.locator(".sw-steps .sw-step b").evaluate_all("all => all.map(each => each.offsetHeight)")
    assert heights == [52, 52, 52, 39], "a cell of 13 px for each draft token"
    expect(page.locator(".sw-steps .sw-cut")).to_have_count(2)
    expect(page.locator(".sw-steps .sw-full")).to_have_count(2)
    assert api.paths.count("/api/v1/requests") == 1, "rows stay as they are while one is looked at"
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(NARROW)
    page.set_viewport_size({"width": 1280, "height": 1000})

    # The link shows the same to another reader.
    link = page.get_by_role("link", name="Link to this request")
    assert "request=req-2" in (link.get_attribute("href") or "")
    api.answers["request"] = rows[2]
    link.click()
    page.get_by_text("Held: 11-29").wait_for()
    page.get_by_role("heading", name="Request req-2").wait_for()
    assert metric("Latency") == "300 ms"
    page.get_by_role("button", name="Close").click()
    page.get_by_role("heading", name="Request req-2").wait_for(state="detached")
    page.wait_for_url(lambda address: "request=" not in address)
    assert problems == []


def test_a_run_is_opened_from_the_list(url, api, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    page.get_by_role("link", name="Lab").click()
    page.get_by_text("under way, or ended without a word").wait_for()
    page.get_by_role("row").filter(has_text="qualified in part").get_by_role("link").click()
    page.get_by_role("heading", name="Qualify draft_generalist").wait_for()
    page.wait_for_url(lambda address: "run=qualify-2" in address)
    page.locator(".js-plotly-plot .barlayer path").first.wait_for(state="attached")
    page.locator(".js-plotly-plot .heatmaplayer image").first.wait_for(state="attached")
    failed = page.locator(".sw-gates tr.sw-marked")
    assert failed.locator("td").nth(1).inner_text() == "✗ failed"

    # To another page and back by the address.
    page.goto(f"{url}/lab?command=sweep")
    page.get_by_role("heading", name="Sweep draft_generalist").wait_for()

    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"{url}/lab?run=qualify-2&beside=qualify-1")
    page.get_by_text("Gates of both").first.wait_for()
    page.wait_for_function(NARROW)
    # What a gate says is in sight without moving the table.
    words = page.locator(".sw-gates td.sw-words").first.bounding_box()
    assert words["x"] >= 0
    assert words["x"] + words["width"] <= 390
    assert problems == []


def test_latency_on_a_phone(url, api, chromium):
    page = chromium.new_page(viewport={"width": 390, "height": 900}, has_touch=True, is_mobile=True)
    page.set_default_timeout(60_000)
    page.goto(f"{url}/latency?window=6h&timing=TPOT")
    page.get_by_text("TPOT: how it is spread").wait_for()
    row = page.locator("tr", has_text="TTFT p99")
    expect(row.locator("td")).to_have_text(["TTFT p99", "122 ms", "190 ms"])
    page.locator(".js-plotly-plot .scatterlayer path.js-line").first.wait_for(state="attached")
    page.wait_for_function(NARROW)
    assert ("GET", "latency/distribution", {"window": "6h"}, "Bearer secret") in api.seen
    # The other choice goes to the address.
    page.get_by_test_id("stButtonGroup").get_by_text("TTFT", exact=True).click()
    page.get_by_text("TTFT: how it is spread").wait_for()
    page.wait_for_url(lambda address: "timing=TTFT" in address)
    # A finger scrolls the page and holds no range.
    chart = page.locator(".st-key-over_time_ttft .nsewdrag")
    assert chart.evaluate("each => getComputedStyle(each).pointerEvents") == "none"


def test_quality_leads_to_requests(url, chromium):
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(f"{url}/quality?scenario=chat")
    page.get_by_text("Pairs of lowest similarity").wait_for()
    table = page.get_by_label("Similarity by scenario, worst first")
    table.locator("tbody tr").first.wait_for()
    assert table.locator("tbody tr").first.locator("td").all_inner_texts()[:3] == [
        "translate",
        "✗ 0.780 warning",
        "0.660",
    ]
    found = page.get_by_test_id("stMetric").filter(has_text="Critical pairs")
    assert found.get_by_test_id("stMetricValue").inner_text().strip() == "2.4 %"
    page.locator(".js-plotly-plot .barlayer path").first.wait_for(state="attached")
    page.wait_for_function(NARROW)
    # A pair leads to its request.
    href = page.get_by_role("link", name="chatcmpl-0aa61d09b").first.get_attribute("href")
    assert href.startswith("requests?reply_id=chatcmpl-0aa61d09b&since=2026-11-29T17")
    page.get_by_role("link", name="chatcmpl-0aa61d09b").first.click()
    page.wait_for_url("**/requests?reply_id=chatcmpl-0aa61d09b&**")


def test_tokenizers(url, api, sample, chromium):
    api.answers["alignment"] = sample.misaligned()
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(f"{url}/tokenizers")
    page.get_by_text("Misaligned: draft and target know tokens by different ids").wait_for()
    row = page.get_by_label("Tokens that have another id in the draft", exact=True).locator("tbody tr").first
    row.wait_for()
    assert row.locator("td").all_inner_texts()[:5] == ["'<|eot|>'", "4", "5 (+1)", "100", "90.0 %"]
    found = page.get_by_test_id("stMetric").filter(has_text="Same text, other id")
    assert found.get_by_test_id("stMetricValue").inner_text().strip() == "112"
    page.get_by_text("1 token with another id by the files").click()
    page.get_by_label("Tokens that have another id in the draft, by the files").wait_for()
    page.wait_for_function(NARROW)


#: Of a chart's time axis.
RANGE = "chart => chart._fullLayout.xaxis.range.map(at => String(at).slice(0, 19))"


def test_the_page_shows_the_payload(url, api, sample, chromium):
    changes, changing, calls = {}, sample.board.alerts("SpecwatchAcceptanceLow"), count()

    def moving(query):
        """Of the time range that is asked for."""
        return 200, sample.summary(**changes) | {name: query[name] for name in ("since", "until") if name in query}

    def acceptance(query):
        """Otherwise at each look, so that charts are drawn anew."""
        found = sample.acceptance(query.get("by"), steps="step" in query)
        found["points"][-1]["p"] = (next(calls) % 100) / 100
        return 200, found

    api.answers |= {"summary": moving, "acceptance": acceptance, "alerts": changing}
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def metric(label: str) -> str:
        found = page.get_by_test_id("stMetric").filter(has_text=label)
        return found.get_by_test_id("stMetricValue").inner_text().strip()

    # The first visit of a new server, by a link to the second page.
    page.goto(f"{url}/truncation?window=6h")
    page.get_by_text("First rejection by scenario").wait_for()
    assert metric("Truncation rate") == "42.7 %"
    page.locator(".js-plotly-plot .heatmaplayer image").first.wait_for(state="attached")

    # The other page keeps the time range.
    page.get_by_role("link", name="Now").click()
    page.get_by_text("Requests by outcome").wait_for()
    page.wait_for_url(lambda address: "window=6h" in address)
    summary = sample.summary()
    assert metric("p95_latency_under_800ms_ratio") == "93.3 %"
    assert metric("Acceptance rate p, last 100") == f"{summary['last_100']['p']:.3f}"
    assert metric("Mean acceptance length") == f"{summary['acceptance']['mean_acceptance_length']:.2f}"
    assert metric("Latency p95, speculative") == "612 ms"
    page.get_by_text("Speculative decoding is on").wait_for()
    page.locator(".js-plotly-plot .scatterlayer path.js-line").first.wait_for(state="attached")
    assert ("GET", "summary", {"window": "6h"}, "Bearer secret") in api.seen

    # What was proposed, and with what the target replaced it.
    page.get_by_role("link", name="Drafts").click()
    page.locator(".sw-rejected", has_text="higher").first.wait_for()
    struck = page.locator(".sw-tokens .sw-rejected").first
    assert struck.evaluate("each => getComputedStyle(each).textDecorationLine") == "line-through"
    assert page.locator(".sw-tokens .sw-instead").first.inner_text() == " 43"
    assert page.locator(".sw-tokens").first.inner_text().endswith("<|eot|><|eot|>")
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(NARROW)
    page.set_viewport_size({"width": 1280, "height": 1800})
    page.get_by_role("link", name="Now").click()

    # A drag over a chart holds the time that it covers, from 17:48 on, a fifth of the hour.
    drawn = page.locator(".js-plotly-plot:has(path.js-line)").first
    until, box = time.monotonic() + 60, at_rest(drawn.locator(".nsewdrag").first)
    while "since=" not in page.url:
        assert time.monotonic() < until, "a chart that is drawn may not listen yet"
        page.mouse.move(box["x"] + 0.305 * box["width"], box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.495 * box["width"], box["y"] + 60, steps=4)
        page.mouse.up()
        # A second drag would be over what the first one holds.
        patience = time.monotonic() + 15
        while "since=" not in page.url and time.monotonic() < patience:
            page.wait_for_timeout(100)
        box = at_rest(drawn.locator(".nsewdrag").first)
    held = {"since": "2026-11-29T17:48:00Z", "until": "2026-11-29T18:00:00Z"}
    assert page.url.endswith(urlencode(held))
    page.get_by_text("Held: 11-29 17:48 to 11-29 18:00 UTC").wait_for()
    until = time.monotonic() + 40
    while drawn.evaluate(RANGE) != ["2026-11-29T17:48:00", "2026-11-29T18:00:00"]:
        assert time.monotonic() < until, drawn.evaluate(RANGE)
        page.wait_for_timeout(100)
    alert = page.locator("details", has_text="SpecwatchAcceptanceLow")
    alert.locator("summary").click()
    alert.get_by_text("Means.").wait_for()

    # It refreshes by itself, and what the reader chose stays.
    api.answers["fallback"] = sample.fallback(state="autoregressive", reason="p fell below 0.65")
    changes["last_100"] = sample.figures(100, 0.5)
    changing["alerts"][0]["value"] = 0.4
    before = len(api.seen)
    page.get_by_text("Speculative decoding is off").wait_for()
    page.get_by_text("✗ goal missed: at least 0.65").wait_for()
    assert metric("Acceptance rate p, last 100") == "0.500"
    alert.locator("summary").get_by_text("0.4").wait_for()
    assert alert.get_attribute("open") is not None
    page.locator(".js-plotly-plot .scatterlayer path.js-line").first.wait_for(state="attached")
    assert drawn.evaluate(RANGE) == ["2026-11-29T17:48:00", "2026-11-29T18:00:00"]
    assert ("GET", "acceptance", {"window": "366d", "step": "1m"} | held, "Bearer secret") in api.seen[before:]

    assert [each for each in asked if not each.startswith((url, "data:", "blob:"))] == [], (
        "nothing is fetched elsewhere"
    )
    assert problems == []
