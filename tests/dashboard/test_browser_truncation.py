"""Cells of the heat maps are clicked in Chromium, and lead to the requests behind them."""

import time
from collections.abc import Callable
from functools import partial


def asked(api):
    return [query for _, name, query, _ in api.seen if name == "requests"]


def test_a_click_on_a_cell_shows_its_requests(url, api, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 2200})
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def click(chart: int, row: float, column: float, rows: int, columns: int) -> None:
        """At a place of a cell: counted from the top left, from 0. Once the page stands still."""
        image = page.locator(".heatmaplayer image").nth(chart)
        image.wait_for(state="attached")
        until, before, box = time.monotonic() + 30, None, image.bounding_box()
        while box is None or box != before:
            assert time.monotonic() < until, "the page does not come to rest"
            page.wait_for_timeout(500)
            before, box = box, image.bounding_box()
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
    assert "position=2" in page.url
    assert "step=2026-11-29T18" in page.url

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
    assert "step=" not in page.url
    assert "group=summarise" in page.url

    # The same without a mouse.
    box = page.get_by_role("combobox", name="Position")
    box.focus()
    page.keyboard.type("4")
    page.get_by_role("option", name="4", exact=True).wait_for()
    page.keyboard.press("Enter")
    wait_for({"truncated_at": "4", "scenario": "summarise"} | whole)
    page.get_by_text("truncated at position 4").wait_for()
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert problems == []
