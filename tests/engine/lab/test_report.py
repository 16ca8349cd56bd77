import builtins
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab import report
from specwatch_engine.lab.report import HTML, MARKDOWN, SCRIPT, data_of, grid, markdown, write
from specwatch_engine.lab.summary import Cell, Gate, Kind, Plot, Series, Summary, Table
from support.dashboard import browser

ENVIRONMENT = report._environment()
EVIL = "<b>&amp;</b> | `x` *y* </script>\n# z"
NAMES: list[str | int | float] = ["faults", EVIL, "billing"]


def summary(title: str = "Draft a beside b", verdict: str = "qualified in part", names: list[Any] = NAMES) -> Summary:
    return Summary(
        title,
        verdict,
        [f"{name} is told of" for name in names],
        [
            Gate("p", True, 0.7, 0.65, f"of {EVIL}"),
            Gate("draft step", False, 0.5, 0.333, "too dear"),
            Gate("tokenizers", None, None, None, "no files"),
        ],
        [Table("Scenarios", ["scenario", "p"], [[str(name), 0.123456] for name in names])],
        [
            Plot("Bars", Kind.BARS, names, [Series("p", [0.3, None, 0.8], [0.2, None, 0.7], [0.4, None, 0.9])],
                 "scenario", "p", 0.65),
            Plot("Heat", Kind.HEAT, [1, 2, 3], [Series(str(name), [0.1, float("nan"), None]) for name in names],
                 "position", "share"),
            Plot("Lines", Kind.LINES, [0, 1, 2], [Series("engine", [1.0, 2.0, 3.0], [0.5] * 3, [3.5] * 3),
                 Series("sidecar", [1.0, None, 1.0])], "time, min", "MiB"),
        ],
        {"certificate": "certificate.json", "odd": 'a "b" <c>.json'},
    )  # fmt: skip


class Page(HTMLParser):
    """Texts and tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_says_what_the_summary_says_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    files = write(tmp_path, summary(), facts={"k": 4, "device": None}, definitions={"p": "accepted / drafted"})
    assert files == {"report": HTML, "report as Markdown": MARKDOWN}
    page = Page((tmp_path / HTML).read_text())
    said = "\n".join(page.texts)
    for words in (
        "Draft a beside b",
        "qualified in part",
        "passed",
        "failed",
        "cannot tell",
        "0.123",
        EVIL,
        "accepted /",
    ):
        assert words in said
    assert "b" not in page.tags
    assert page.links == ["./certificate.json", "./a%20%22b%22%20%3Cc%3E.json", SCRIPT]
    assert (tmp_path / SCRIPT).stat().st_size > 1_000_000
    assert "http" not in re.sub(r"(?s)<script.*?</script>", "", (tmp_path / HTML).read_text())


def test_markdown_has_a_row_a_row_and_the_figures_of_each_plot(tmp_path: Path) -> None:
    write(tmp_path, summary(), facts={"a|b": "c|d"}, definitions={"p": "accepted / drafted"})
    text = (tmp_path / MARKDOWN).read_text()
    assert "**Verdict: qualified in part**" in text
    assert "p; the limit is 0.650." in text
    assert "| position | faults |" in text
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        rows = [re.split(r"(?<!\\)\|", line) for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1
        assert set("".join(rows[1])) <= set("-: ")


def test_each_plot_has_its_figures(tmp_path: Path) -> None:
    write(tmp_path, summary())
    text = (tmp_path / HTML).read_text()
    plots = json.loads(re.findall(r'(?s)<script type="application/json" id="plots">(.*?)</script>', text)[0])
    assert re.findall(r'data-plot="(.*?)"', text) == [str(number) for number, _ in enumerate(plots)] == ["0", "1", "2"]
    assert plots[1]["series"][0]["y"] == [0.1, None, None]


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(names.filter(str.strip), names, names)
def test_no_text_is_taken_for_markup(a: str, b: str, c: str) -> None:
    told = summary(a, b, [a, b, c])
    values = {"summary": told, "facts": {b: c}, "definitions": {c: a}, "script": None}
    page = Page(ENVIRONMENT.get_template(f"{HTML}.jinja").render(values))
    assert not {"b", "script", "x"} & set(page.tags)
    assert page.tags.count("tr") == 1 + 3 + 1 + 3 + 3 * (1 + 3)
    text = ENVIRONMENT.get_template(f"{MARKDOWN}.jinja").render(values)
    assert "<" not in re.sub(r"\\<|\]\(<", "", text)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("fault_report", "fault_report"),
        ("_x_ a_b", "\\_x\\_ a_b"),
        ("a|b", "a\\|b"),
        ("1. one", "1\\. one"),
        ("1.5 is more", "1.5 is more"),
        ("- a - b", "\\- a - b"),
        ("-1", "-1"),
        ("# a # b", "\\# a # b"),
        ("a &lt; b & c", "a \\&lt; b & c"),
        ("a\n\nb", "a b"),
        ("[a](b)", "\\[a\\](b)"),
    ],
)
def test_markdown_shows_texts_as_they_are(text: str, escaped: str) -> None:
    assert markdown(text) == escaped


@pytest.mark.parametrize(
    ("cells", "texts", "numeric"),
    [
        ([0.5, 0.12345, None], ["0.500", "0.123", "–"], True),
        ([1234.5, 2.0], ["1,234", "2"], True),
        ([12.34, 0.5], ["12.3", "0.5"], True),
        ([1, 20_000], ["1", "20,000"], True),
        ([0.0, 0.0], ["0", "0"], True),
        ([0.000123], ["0.000123"], True),
        ([float("nan"), 1.0, float("inf")], ["–", "1.000", "–"], True),
        ([1.0, 0.25], ["1.000", "0.250"], True),
        ([True, False, None, ""], ["yes", "no", "–", "–"], False),
        (["a", 1.5], ["a", "1.50"], True),
    ],
)
def test_a_columns_numbers_have_the_same_decimals(cells: list[Cell], texts: list[str], numeric: bool) -> None:
    found = grid("t", ["c"], [[cell] for cell in cells])
    assert ([row[0] for row in found.rows], found.numeric) == (texts, [numeric])


def test_a_plot_has_a_row_an_x_and_the_ends_of_its_intervals() -> None:
    found = data_of(summary().plots[0])
    assert found.columns == ["scenario", "p", "p, low", "p, high"]
    assert found.rows[0] == ["faults", "0.300", "0.200", "0.400"]
    assert data_of(Plot("t", Kind.BARS, [], [], "x", "y")).rows == []


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [
        ("qualified", "good"),
        ("recommended", "good"),
        ("stable", "good"),
        ("qualified in part", "middling"),
        ("recommended, not confirmed", "middling"),
        ("cannot tell", "middling"),
        ("rejected", "bad"),
        ("drift", "bad"),
        ("failed", "bad"),
    ],
)
def test_a_verdict_has_its_colour(verdict: str, tone: str) -> None:
    assert report.tone(verdict) == tone


def without(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(name: str, *args: Any, **named: Any) -> Any:
        if name == missing:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", importing)


def test_without_jinja2_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without("jinja2", monkeypatch)
    with pytest.raises(report.ReportError, match=r"jinja2.*install specwatch\[lab\]"):
        report.ready()


def test_without_plotly_the_figures_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(package: str) -> Path:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr("importlib.resources.files", files)
    write(tmp_path, summary())
    page = Page((tmp_path / HTML).read_text())
    assert "script" not in page.tags
    assert page.tags.count("details") == 3
    assert not (tmp_path / SCRIPT).exists()


def test_chromium_draws_every_plot_in_both_colours_and_on_paper(tmp_path: Path) -> None:
    write(tmp_path, summary())
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((tmp_path / HTML).as_uri())
        page.wait_for_function("document.querySelectorAll('.plot .main-svg').length >= 3")
        assert page.locator("details[open]").count() == 0
        # Names are shown as they are, and nothing is wider than the screen but what scrolls by itself.
        assert "<b>&amp;</b> | `x` *y*" in page.locator(".plot").first.text_content()
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        night = page.locator(".plot text").first.evaluate("text => getComputedStyle(text).fill")
        page.emulate_media(color_scheme="light")
        page.wait_for_function(
            "night => getComputedStyle(document.querySelector('.plot text')).fill !== night", arg=night
        )
        assert page.pdf(format="A4")[:5] == b"%PDF-"
    assert faults == []


def test_a_name_that_is_no_unicode_does_not_cost_the_report(tmp_path: Path) -> None:
    report.write(tmp_path, Summary("t", "qualified", ["fine – ✓"]), facts={"prompts": "a\udcff.jsonl"})
    assert "a?.jsonl" in (tmp_path / report.HTML).read_text(encoding="utf-8")
