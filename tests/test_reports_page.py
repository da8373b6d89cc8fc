"""`hifi report`: one HTML file that needs nothing from elsewhere, and whose every number leads to its run."""

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from synthetic_runs import write_run

from hifi_cli.files import with_checksum
from hifi_cli.reports import charts


class Page(HTMLParser):
    """What stands in a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def of(self, tag, style=None):
        return [
            attrs for name, attrs in self.tags if name == tag and (style is None or style in (attrs.get("class") or "").split())
        ]


@pytest.fixture
def page(tmp_path, monkeypatch, hifi):
    """A report on two methods, two tasks and three seeds, with one selection of heads."""
    for seed in (1, 2, 3):
        for task, score in (("rte", 0.6), ("cola", 0.3)):
            write_run(
                "results",
                "full-ft",
                task,
                seed,
                score + seed / 100,
                params={"trainable": 1000, "trainable_backbone": 900, "stored": 1000, "total": 1000},
            )
            write_run("results", "hifi-layerwise", task, seed, score - seed / 100)
    write_run("results", "<b>evil & co", "rte", 1, 0.5)
    write_run("results", "full-ft", "rte", 4, 0.1, limited=True)
    Path("results/heads/bert-large/rte").mkdir(parents=True)
    heads = {"backbone": "bert-large", "task": "rte", "rank": "pagerank", "strategy": "midtop", "k": 2,
             "heads": [[], [0, 3]], "values": [[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 2.0, 3.0]]}  # fmt: skip
    Path("results/heads/bert-large/rte/x.json").write_text(json.dumps(with_checksum({"schema": 1, **heads})))
    answer = hifi("report")
    assert answer.code == 0, answer.err
    assert answer.out == "results/report.html\n"
    return Page(Path("results/report.html").read_text())


def test_nothing_comes_from_elsewhere(page):
    text = Path("results/report.html").read_text()
    assert not page.of("script") and not page.of("link") and not page.of("img") and not page.of("iframe")
    assert "http" not in text and "url(" not in text and "@import" not in text
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "prefers-color-scheme: dark" in text


def test_every_number_leads_to_its_run_and_every_run_to_its_file(page):
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = [attrs["href"] for attrs in page.of("a")]
    inside, outside = [link[1:] for link in links if link.startswith("#")], [link for link in links if not link.startswith("#")]
    assert len(inside) == 5 and set(inside) <= ids
    assert len(outside) == len(ids) == 14
    for link in outside:
        assert (Path("results") / unquote(link)).resolve().is_file(), link


def test_pictures_hold_every_seed_and_every_head(page):
    samples = 2 * 2 * 3 + 1
    assert len(page.of("circle", "seed")) == 2 * samples  # once against the share, once by method
    assert len(page.of("circle", "mean")) == len(page.of("rect", "bar")) == 5
    assert len(page.of("rect", "head")) == 8
    assert len(page.of("rect", "chosen")) == 2


def test_names_are_text_and_never_markup(page):
    text = Path("results/report.html").read_text()
    assert "<b>evil" not in text and "&lt;b&gt;evil" in text


def test_published_numbers_and_named_tables(page, hifi):
    assert hifi("report", "--tables", "hifi-2,hifi-3", "--published", "--out", "elsewhere/page.html").code == 0
    text = Path("elsewhere/page.html").read_text()
    assert "HiFi, table 2" in text and "HiFi, table 3" in text and "compacter" in text and "which average 81.10" in text
    assert 'href="../results/runs/' in text
    assert hifi("report", "--results-dir", "nowhere").code == 3
    Path("results/heads/bert-large/rte/x.json").write_text("{}")
    assert "is not a heads file" in hifi("report").err


def test_labels_never_cover_one_another():
    wanted = [50.0, 50.0, 51.0, 20.0, 205.0, 204.0, 203.0]
    placed = charts._apart(wanted, 10, 206)
    order = sorted(placed)
    assert all(after - before >= charts._LABEL - 1e-9 for before, after in itertools.pairwise(order))
    assert order[0] >= 10 and order[-1] <= 206
    assert sorted(range(7), key=lambda index: placed[index]) == sorted(range(7), key=lambda index: wanted[index])


def test_ticks_are_round_and_inside():
    assert charts.ticks(57.2, 81.9) == [60, 65, 70, 75, 80]
    assert charts.ticks(0.5, 1.5) == pytest.approx([0.6, 0.8, 1.0, 1.2, 1.4])
    for low, high in ((0.0, 100.0), (86.1, 86.9), (-3.2, 4.4)):
        found = charts.ticks(low, high)
        assert 2 <= len(found) <= 6 and found[0] >= low - 1e-9 and found[-1] <= high + 1e-9


def test_points_stand_where_their_numbers_are():
    series = [charts.Series("a", 100.0, [60.0, 80.0], [1, 2]), charts.Series("b", 1.0, [70.0], [1])]
    dots = re.findall(r'class="seed" cx="([\d.]+)" cy="([\d.]+)"', charts.score_by_share(series, "Acc."))
    (ax, low), (_, high), (bx, middle) = [(float(x), float(y)) for x, y in dots]
    assert high < middle < low and middle == pytest.approx((low + high) / 2, abs=0.1)
    assert ax - bx == pytest.approx(charts.WIDTH - 44 - 112, abs=0.2)  # 1 % to 100 %: the whole axis
    rows = re.findall(r'class="seed" cx="([\d.]+)" cy="([\d.]+)"', charts.seeds(series, "Acc."))
    assert float(rows[0][0]) < float(rows[2][0]) < float(rows[1][0]) and rows[0][1] == rows[1][1] != rows[2][1]
