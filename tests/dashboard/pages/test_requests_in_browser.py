"""Requests in Chromium: one is opened from the table, and its figures are read."""

from support import board


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
    assert page.locator(".sw-step:not(.sw-steps-key *)").count() == 4
    heights = page.locator(".sw-steps .sw-step b").evaluate_all("all => all.map(each => each.offsetHeight)")
    assert heights == [52, 52, 52, 39], "a cell of 13 px for each draft token"
    assert page.locator(".sw-steps .sw-cut").count() == 2
    assert page.locator(".sw-steps .sw-full").count() == 2
    assert api.paths.count("/api/v1/requests") == 1, "rows stay as they are while one is looked at"
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
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
