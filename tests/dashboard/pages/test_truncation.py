"""Truncation, in Streamlit's own test harness."""

from support.apptest import charts, page_of, values


def test_truncation(api):
    at = page_of("truncation").run()
    assert not at.exception
    assert values(at) == {
        "Truncation rate": "42.7 %",
        "First-position share": "30.4 %",
        "Fully accepted steps": "57.3 %",
    }
    over_time, by_scenario = charts(at)
    assert over_time["data"][0]["z"][4][0] is None, "position 5 was not drafted at first"
    assert over_time["layout"]["coloraxis"]["colorbar"]["tickformat"] == ".0%"
    assert by_scenario["data"][0]["y"] == ["chat", "code", "summarise", "translate"]
    at.segmented_control(key="colour").set_value("rejected").run()
    assert charts(at)[0]["layout"]["coloraxis"]["colorbar"]["title"]["text"] == "rejected"
