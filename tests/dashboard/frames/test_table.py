"""Tables as HTML."""

import pytest

from dashboard.frames import table as frames
from dashboard.frames.table import Cell, Row


def test_texts_of_others_stay_text():
    html = frames.table(
        [("<i>name", ()), ("p", ("acceptance rate p", "verify step"))],
        [
            Row(
                [
                    Cell("<b>x", href=frames.link("truncation", scenario='"><script>'), more='"<b>'),
                    frames.NONE,
                ],
                marked=True,
            ),
            Row([Cell("y"), Cell("✗ 0.5", "bad")]),
        ],
        '<"told">',
    )
    assert "<b>" not in html
    assert "<script" not in html
    assert "<i>" not in html
    assert 'href="truncation?scenario=%22%3E%3Cscript%3E">&lt;b&gt;x</a>' in html
    assert '<tr class="sw-marked"><td title="&quot;&lt;b&gt;">' in html
    assert '<td class="sw-none">no data</td>' in html
    assert '<td class="sw-bad">✗ 0.5</td>' in html
    assert '<abbr title="Accepted draft tokens' in html
    assert "since the last one." in html, "the second term too"


@pytest.mark.parametrize(
    ("query", "address"),
    [
        ({}, "requests"),
        ({"scenario": None}, "requests"),
        ({"request": "a/b c&d=é", "scenario": None}, "requests?request=a%2Fb+c%26d%3D%C3%A9"),
        ({"truncated_at": "2", "since": "18:00:00Z"}, "requests?truncated_at=2&since=18%3A00%3A00Z"),
    ],
)
def test_addresses(query, address):
    assert frames.link("requests", **query) == address
