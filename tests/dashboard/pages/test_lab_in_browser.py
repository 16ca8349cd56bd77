"""The page Lab in Chromium: from the list to a run, by its address, and on a phone."""


def test_a_run_is_opened_from_the_list(url, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    page.get_by_role("link", name="Lab").click()
    page.get_by_text("under way, or ended without a word").wait_for()
    page.get_by_role("row").filter(has_text="qualified in part").get_by_role("link").click()
    page.get_by_role("heading", name="Qualify draft_generalist").wait_for()
    assert "run=qualify-2" in page.url
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
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # What a gate says is in sight without moving the table.
    words = page.locator(".sw-gates td.sw-words").first.bounding_box()
    assert words["x"] >= 0
    assert words["x"] + words["width"] <= 390
    assert problems == []
