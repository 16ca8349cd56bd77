"""The whole of it: `python -m dashboard`, Chromium, and values read off the page."""


def test_the_page_shows_the_payload(url, api, sample, chromium):
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
    assert "window=6h" in page.url
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
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("link", name="Now").click()

    # It refreshes by itself.
    api.answers["fallback"] = sample.fallback(state="autoregressive", reason="p fell below 0.65")
    api.answers["summary"] = sample.summary(last_100=sample.figures(100, 0.5))
    page.get_by_text("Speculative decoding is off").wait_for()
    page.get_by_text("✗ goal missed: at least 0.65").wait_for()
    assert metric("Acceptance rate p, last 100") == "0.500"

    assert [each for each in asked if not each.startswith((url, "data:", "blob:"))] == [], (
        "nothing is fetched elsewhere"
    )
    assert problems == []
