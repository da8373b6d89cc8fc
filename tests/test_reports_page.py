"""`hifi report`: one HTML file that needs nothing from elsewhere, and whose every number leads to its run."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from project_files import copy_yaml
from synthetic_runs import write_run

from hifi_cli.reports import charts, html_report
from hifi_cli.version import __version__

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What stands in a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def of(self, tag, style=None):
        return [
            attrs for name, attrs in self.tags if name == tag and (style is None or style in (attrs.get("class") or "").split())
        ]


def write_selection(name, heads, **changes):
    """A selection of heads of rte."""
    content = {"backbone": "bert-large", "task": "rte", "rank": "pagerank", "strategy": "midtop", "k": 2,
               "damping": 0.85, "epsilon": 1e-6, "num_heads": 4, "heads": heads, "values": [[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 2.0, 3.0]],
               "iterations": [9, 9], "ties": [], "overlap": {"richness": [0, 1], "correlation": [0, 2]}, "scores_sha256": "s"}  # fmt: skip
    path = Path(f"results/heads/bert-large/rte/{name}.json")
    path.write_text(json.dumps({**content, **changes}))


@pytest.fixture
def page(tmp_path, monkeypatch, hifi):
    """A report on two methods, two tasks and three seeds, with the heads that two seeds of one of them trained."""
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
            heads = [[], [1, 2] if seed == 3 else [0, 3]]
            write_run("results", "hifi-layerwise", task, seed, score - seed / 100, heads=heads if task == "rte" else None)
    write_run("results", "<b>evil & co", "rte", 1, 0.5)
    write_run("results", "full-ft", "rte", 4, 0.1, limited=True)
    Path("results/heads/bert-large/rte").mkdir(parents=True)
    write_selection("x", [[], [0, 3]])
    write_selection("y", [[], [0, 3]], scores_sha256="of other samples")
    write_selection("z", [[], [2, 3]])
    write_selection("drawn", [[], [1, 2]], rank="random")
    answer = hifi("report")
    assert answer.code == 0, answer.err
    assert answer.out == "results/report.html\n"
    return Page(Path("results/report.html").read_text())


def test_nothing_comes_from_elsewhere(page):
    text = Path("results/report.html").read_text()
    assert not page.of("link") and not page.of("iframe")
    assert all(attrs["src"].startswith("data:image/svg+xml;base64,") for attrs in page.of("img"))
    assert page.of("script") == [{}]  # the page's own: it sorts tables
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (attrs["content"] for attrs in page.of("meta") if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert "http" not in text.replace("http-equiv", "") and "@import" not in text
    assert "url(" not in text
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "prefers-color-scheme: dark" in text


def test_every_number_leads_to_its_run_and_every_run_to_its_file(page):
    ids = {attrs["id"] for attrs in page.of("tr") if "id" in attrs}
    links = [attrs["href"] for attrs in page.of("a")]
    inside, outside = [link[1:] for link in links if link.startswith("#")], [link for link in links if not link.startswith("#")]
    assert len(inside) == 5 and set(inside) <= ids
    assert len(outside) == len(ids) == 14
    for link in outside:
        assert (Path("results") / unquote(link)).resolve().is_file(), link


def test_the_report_has_a_chart_for_every_column_and_for_heads_that_were_trained(page):
    images = {attrs["alt"]: attrs["src"] for attrs in page.of("img")}
    labels = [attrs["alt"] for attrs in page.of("img")]
    assert len(labels) == 2 * 2 + 1 + 1 and "effects of the claims with intervals" in labels
    assert sum("every seed" in label for label in labels) == 2 and sum("heads by layer" in label for label in labels) == 1
    text = Path("results/report.html").read_text()
    chart = svg_of(images["values of the heads by layer; dots mark the chosen heads"])
    heads, _, layers = chart.partition(">head<")
    assert ">0</text>" in heads and ">0</text>" not in layers and ">1</text>" in layers, "layers are counted from 1"
    titles = [unescape(title) for title in re.findall("<h3>(.*?)</h3>", text)]
    heads = "RTE, bert-large, pagerank, midtop, k=2: HiFi (layer-wise), hifi, seeds 1, 2"
    assert [title for title in titles if "k=2" in title] == [heads], "no heads that no run trained, no random draws"


def test_names_are_text_and_never_markup(page):
    text = Path("results/report.html").read_text()
    assert "<b>evil" not in text and "&lt;b&gt;evil" in text


def test_published_numbers_and_named_tables(page, hifi):
    assert hifi("report", "--tables", "hifi-2,hifi-3", "--published", "--out", "elsewhere/page.html").code == 0
    text = Path("elsewhere/page.html").read_text()
    assert (
        "HiFi, table 2" in text
        and "HiFi, table 3" in text
        and "compacter" in text
        and "the mean of its 9 cells is 81.10" in text
    )
    assert 'href="../results/runs/' in text
    assert hifi("report", "--results-dir", "nowhere").code == 3
    Path("results/heads/bert-large/rte/x.json").write_text("{}")
    assert "rte/x.json is damaged" in hifi("report").err


METHODS = [charts.MethodScores("a", 100.0, [60.0, 80.0]), charts.MethodScores("b", 1.0, [72.0])]


def test_full_ft_alone_has_an_axis(recwarn):
    assert ">10 %<" in svg_of(charts.scores_by_trained_fraction(METHODS[:1], "Acc."))
    assert not recwarn.list


def svg_of(image):
    """The SVG in an image of the page."""
    return base64.b64decode(re.search(r"base64,([\w+/=]+)", image)[1]).decode()


def positions(chart, color):
    """The x and y of the markers of a color."""
    points = re.findall(rf'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: {color}', svg_of(chart))
    return [(float(x), float(y)) for x, y in points]


def test_points_are_at_the_positions_of_their_numbers():
    (a_x, low), (_, high), (b_x, middle) = positions(charts.scores_by_trained_fraction(METHODS, "Acc."), charts._ACCENT)
    assert high < middle < low and (low - middle) / (low - high) == pytest.approx(0.6, abs=0.01)
    assert b_x < a_x
    rows = positions(charts.scores_by_seed(METHODS, "Acc."), charts._ACCENT)
    assert rows[0][0] < rows[2][0] < rows[1][0] and rows[0][1] == rows[1][1] < rows[2][1]
    [(x, y), (other_x, other_y)] = positions(charts.head_values([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]], [[0], [2]]), charts._MARK)
    assert x < other_x and y < other_y


def test_the_report_has_learning_curves_and_versions(hifi):
    for seed in (1, 2):
        scores = [0.5, 0.6 + seed / 100]
        curve = [{"epoch": number, "accuracy": score} for number, score in enumerate(scores, 1)]
        write_run("results", "full-ft", "rte", seed, scores[-1], curve=curve)
        write_run("results", "full-ft", "cola", seed, 0.3, curve=curve)  # not the curve of its score
        best_so_far = [
            {"epoch": 1, "selection": 0.6, "f1": 0.7},
            {"epoch": 2, "selection": 0.5},
            {"epoch": 3, "selection": 0.4, "f1": 0.6},
        ]
        write_run("results", "full-ft", "mrpc", seed, 0.7, curve=best_so_far)  # a curve with gaps
    assert hifi("report").code == 0
    text = Path("results/report.html").read_text()
    assert text.count("learning curves</h3>") == 1 and "RTE (Acc.): learning curves" in text
    assert f"Written by hifi {__version__}" in text
    assert not re.search(r"20\d\d-\d\d-\d\d", text), "equal runs give equal reports, on any day"


def test_the_report_compares_full_fine_tuning_with_each_method(hifi):
    for seed in range(1, 8):
        for method, score in (("full-ft", 0.6), ("bitfit", 0.5), ("lora", 0.6)):
            write_run("results", method, "rte", seed, score + seed / 1000 + (seed % 3) / 500 * (method == "bitfit"))
    write_run("results", "linear-probing", "rte", 9, 0.5)
    assert hifi("report").code == 0
    text = unescape(Path("results/report.html").read_text())
    assert "Full-FT minus each other method, in points" in text
    comparison = text[text.index("Full-FT minus each") :]
    verdicts = re.findall(r'<tr class="runs"><th scope="row">(\w+)</th>\s*<td><span class="">([^<]*)<', comparison)
    assert dict(verdicts) == {"BitFit": "better", "LoRA": "no conclusion"}
    assert "Full-FT is better on this task by" in comparison and "share no task and seed: Linear probing" in comparison
    (command,) = re.findall("the command: hifi (compare [^<]*)", comparison)
    answer = hifi(*command.split(), "--format", "json")
    assert [row["verdict"] for row in json.loads(answer.out)["rows"]] == ["better", "no conclusion"]
    Path("own").mkdir()
    copy_yaml(hifi, "methods/bitfit", "own/bitfit.yaml")
    for word in ("bitfit", "own/bitfit.yaml"):
        assert hifi("report", "--compare", word).code == 0
        text = unescape(Path("results/report.html").read_text())
        assert "BitFit minus each other method" in text and "Full-FT minus" not in text
    assert "did you mean 'bitfit'" in hifi("report", "--compare", "bitfitt").err


@pytest.mark.skipif(not shutil.which("node"), reason="requires node")
def test_a_click_on_a_heading_sorts_a_table():
    """The page's script in a document of plain objects: numbers by value, texts by letters, empty cells last."""
    script = Path(html_report.__file__).with_name("templates") / "sort.js"
    rows = [
        ["b", "9.5", "runs"],
        ["published", "8.0", "published"],
        ["a", "10.25", "runs"],
        ["c", "-", "runs"],
        ["d", "-1.0", "runs"],
    ]
    stub = f"""
    const node = (text) => ({{textContent: text, querySelector: () => null}});
    const rows = {json.dumps(rows)}.map(([a, b, c]) => ({{cells: [node(a), node(b)], className: c}}));
    const body = {{rows, append(...sorted) {{ body.rows = sorted; }}}};
    const headings = [0, 1].map((cellIndex) => ({{cellIndex, childNodes: [], state: {{}}, append(button) {{ this.button = button; }},
      getAttribute(name) {{ return this.state[name]; }}, setAttribute(name, to) {{ this.state[name] = to; }},
      removeAttribute(name) {{ delete this.state[name]; }}}}));
    globalThis.document = {{
      createElement: () => ({{append() {{}}, addEventListener(event, action) {{ this[event] = action; }}}}),
      querySelectorAll: () => [{{tHead: {{rows: [{{cells: headings}}]}}, tBodies: [body]}}],
    }};
    (0, eval)(require("fs").readFileSync({json.dumps(str(script))}, "utf8"));
    for (const column of [1, 1, 0]) {{
      headings[column].button.click();
      console.log(JSON.stringify([body.rows.map((row) => row.cells[0].textContent), headings.map((it) => it.state["aria-sort"])]));
    }}"""
    answer = subprocess.run(["node", "-e", stub], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in answer.stdout.splitlines()] == [
        [["d", "b", "published", "a", "c"], [None, "ascending"]],
        [["a", "b", "published", "d", "c"], [None, "descending"]],
        [["a", "b", "published", "c", "d"], ["ascending", None]],
    ]


def test_a_run_that_did_not_evaluate_every_epoch_has_no_maximum(hifi):
    scores = {"last": 0.5, "best": 0.6, "max": None}
    write_run("results", "full-ft", "rte", 1, 0.6, shots=16, scores=scores)
    answer = hifi("report")
    assert answer.code == 0, answer.err
    assert "<td>50.00</td><td>60.00</td><td>-</td>" in Path("results/report.html").read_text()
