"""`hifi report`: one HTML file that needs nothing from elsewhere."""

import base64
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_runs import write_run

from hifi_cli import __version__

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What stands in a page: every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def page_of(answer):
    assert answer.code == 0, answer.err
    return Path(answer.out.strip()).read_text()


def test_nothing_comes_from_elsewhere_and_names_are_text(hifi):
    for seed in (1, 2, 3):
        write_run("results", "full-ft", "rte", seed, 0.6 + seed / 100)
    write_run("results", "<b>evil & co", "rte", 1, 0.5)
    text = page_of(hifi("report"))
    page = Page(text)
    assert not page.of("script") and not page.of("link") and not page.of("iframe")
    (policy,) = (
        attrs["content"]
        for attrs in page.of("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert (
        "http" not in text.replace("http-equiv", "")
        and "@import" not in text
        and "url(" not in text
    )
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "&lt;b&gt;evil &amp; co" in text and f"Written by hifi {__version__}" in text
    assert text == page_of(hifi("report")), "equal runs give equal reports"
    assert not re.search(r"20\d\d-\d\d-\d\d", text), "on any day"


def cells_of(text, label):
    """The cells of the row with a label, of the first table that has it."""
    row = re.search(rf"<tr>\s*<td>{re.escape(label)}</td>(.*?)</tr>", text, re.DOTALL)[1]
    return re.findall(r"<td>(.*?)</td>", row)


def test_tables_show_means_published_numbers_and_footnotes(hifi):
    for seed, score in ((1, 0.6), (2, 0.64)):
        write_run("results", "full-ft", "rte", seed, score)
        write_run("results", "hifi-layerwise", "rte", seed, score - 0.1)
    assert "<b>62.0</b> ±2.8" in cells_of(page_of(hifi("report")), "Full-FT")
    text = page_of(hifi("report --tables hifi-2,hifi-3 --published --out elsewhere/page.html"))
    assert (
        "HiFi, table 2" in text
        and "HiFi, table 3" in text
        and "the mean of its 9 cells is 81.10" in text
    )
    assert re.search(r"missing: <code>\d+ runs: hifi grid hifi-2</code>", text)
    assert hifi("report --results-dir nowhere").code == 3


def png(text, title):
    """The bytes of the picture with a title."""
    found = re.search(
        rf'<figcaption>{re.escape(title)}</figcaption><img alt="" src="data:image/png;base64,([^"]+)">',
        text,
    )
    return found and base64.b64decode(found[1])


def test_figures_and_learning_curves_are_in_the_page(hifi):
    for seed in (1, 2):
        curve = [{"epoch": 1, "accuracy": 0.5}, {"epoch": 2, "accuracy": 0.6 + seed / 100}]
        write_run("results", "full-ft", "rte", seed, 0.6 + seed / 100, epoch_metrics=curve)
        write_run("results", "full-ft", "cola", seed, 0.3)
    Path("results/figures").mkdir()
    Path("results/figures/hifi-6-k.png").write_bytes(b"\x89PNG of a figure")
    text = page_of(hifi("report"))
    assert png(text, "hifi-6-k") == b"\x89PNG of a figure"
    assert png(text, "RTE (hifi, bert-large, full)").startswith(b"\x89PNG")
    assert png(text, "CoLA (hifi, bert-large, full)") is None, "no epochs are stored"
    write_run("results", "full-ft", "rte", 3, 0.1, limited=True, epoch_metrics=curve)
    title = "RTE (hifi, bert-large, full)"
    assert png(page_of(hifi("report")), title) == png(text, title), "a limited run counts nowhere"


def test_the_report_compares_full_fine_tuning_with_each_method(hifi):
    for seed in range(1, 8):
        for method, score in (("full-ft", 0.6), ("bitfit", 0.5), ("lora", 0.6)):
            write_run(
                "results",
                method,
                "rte",
                seed,
                score + seed / 1000 + (seed % 3) / 500 * (method == "bitfit"),
            )
    write_run("results", "linear-probing", "rte", 9, 0.5)
    text = unescape(page_of(hifi("report")))
    comparison = text[text.index("<h2>Full-FT minus each other method") :]
    assert (cells_of(comparison, "BitFit")[0], cells_of(comparison, "LoRA")[0]) == (
        "better",
        "no conclusion",
    )


def test_a_report_of_some_tasks_and_claims_without_runs_in_one_line(hifi):
    for seed in (1, 2):
        for method, score in (("full-ft", 0.6), ("hifi-layerwise", 0.7), ("hifi-random", 0.6)):
            write_run("results", method, "mrpc", seed, score + seed / 100, protocol="laptop")
            write_run("results", method, "rte", seed, 0.5, protocol="laptop")
    text = unescape(page_of(hifi("report --tasks mrpc")))
    assert "MRPC (F1)" in text and "RTE" not in text[: text.index("<h2>Runs")]
    assert "<td>above-random</td>" in text and "<td>not run</td>" not in text
    assert re.search(r"<li>not run: .*, ", text)
    assert text.index("<h2>Finished runs") < text.index("<h2>Full-FT minus")
    answer = hifi("report --tasks mrcp")
    assert answer.code == 2 and "did you mean 'mrpc'?" in answer.err


def test_a_packed_study_without_predictions_is_refused_before_its_records_are_read(hifi):
    Path("packed").mkdir()
    Path("packed/runs.jsonl").write_text("damaged")
    answer = hifi("report --results-dir packed")
    assert answer.code == 3
    assert "no packed/predictions.parquet" in answer.err
    assert answer.err.count("\n") == 1
    assert not Path("packed/report.html").exists()


def test_the_contents_lead_to_every_section(hifi):
    curve = [{"epoch": epoch, "accuracy": 0.5} for epoch in (1, 2)]
    for method in ("full-ft", "bitfit"):
        for seed in (1, 2):
            write_run("results", method, "rte", seed, 0.5, curve=curve)
    assert hifi("report").code == 0
    page = Path("results/report.html").read_text()
    places = re.findall(r'<section[^>]* id="([^"]+)"', page)
    assert re.findall(r'<a href="#([^"]+)"', page) == places
    assert "learning-curves" in places
    assert len(places) == page.count("<section")
