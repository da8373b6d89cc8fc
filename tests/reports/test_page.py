"""`hifi report`: one HTML file that needs nothing from elsewhere."""

import base64
import hashlib
import io
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread
from report_pages import cells_of, page_of, pictures_of, sections_of, without_pictures
from synthetic_runs import MEASURED, write_run

from hifi_cli import __version__
from hifi_cli.drawing.looks import COLORS, looks_of

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


def test_nothing_comes_from_elsewhere_and_names_are_text(hifi):
    for seed in (1, 2, 3):
        write_run("results", "full-ft", "rte", seed, 0.6 + seed / 100)
    write_run("results", "<b>evil & co", "rte", 1, 0.5)
    text = page_of(hifi("report"))
    page = Page(text)
    assert not page.of("link") and not page.of("iframe")
    (policy,) = (
        attrs["content"]
        for attrs in page.of("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline';"
        f" script-src 'sha256-{digest}'"
    )
    assert page.of("script") == [{}]
    assert (
        "http" not in text.replace("http-equiv", "")
        and "@import" not in text
        and "url(" not in text
    )
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "&lt;b&gt;evil &amp; co" in text and f"(hifi {__version__})" in text
    assert text == page_of(hifi("report")), "equal runs give equal reports"
    assert not re.search(r"20\d\d-\d\d-\d\d", text), "on any day"


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


def test_figures_and_learning_curves_are_in_the_page(hifi):
    for seed in (1, 2):
        curve = [{"epoch": 1, "accuracy": 0.5}, {"epoch": 2, "accuracy": 0.6 + seed / 100}]
        write_run("results", "full-ft", "rte", seed, 0.6 + seed / 100, epoch_metrics=curve)
        write_run("results", "full-ft", "cola", seed, 0.3)
    Path("results/figures").mkdir()
    Path("results/figures/hifi-6-k.png").write_bytes(b"\x89PNG of a figure")
    text = page_of(hifi("report"))
    assert pictures_of(sections_of(text)["figures"])["hifi-6-k"] == b"\x89PNG of a figure"
    curves = pictures_of(sections_of(text)["learning-curves"])
    assert {*curves} == {"RTE (protocol hifi, backbone bert-large)"}, "no epochs of CoLA are stored"
    assert curves["RTE (protocol hifi, backbone bert-large)"].startswith(b"\x89PNG")
    write_run("results", "full-ft", "rte", 3, 0.1, limited=True, epoch_metrics=curve)
    again = sections_of(page_of(hifi("report")))["learning-curves"]
    assert pictures_of(again) == curves, "a limited run counts nowhere"


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
    text = without_pictures(unescape(page_of(hifi("report --tasks mrpc"))))
    assert "MRPC (F1)" in text and "RTE" not in text[: text.index("<h2>Runs")]
    assert "<td>above-random</td>" in text and "<td>not run</td>" not in text
    assert re.search(r"<li>not run: .*, ", text)
    assert text.index("<h2>Finished runs") < text.index("<h2>Full-FT minus")
    answer = hifi("report --tasks mrcp")
    assert answer.code == 2 and "did you mean 'mrpc'?" in answer.err


def test_tasks_of_no_shipped_claim_have_a_report(hifi):
    for method in ("full-ft", "bitfit"):
        for seed in (1, 2):
            score = 0.6 + seed / 100
            write_run("results", method, "demo-entailment", seed, score, protocol="demo")
    text = page_of(hifi("report --tasks demo-entailment"))
    assert "<td>not run</td>" not in without_pictures(text)
    answer = hifi("claims --tasks demo-entailment")
    assert answer.code == 0, answer.err
    assert "no task asked about is among" in answer.out


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


def test_the_sections_have_one_order(hifi):
    curve = [
        {"step": 5, "loss": 0.9, "learning_rate": 0.1},
        {"epoch": 1, "accuracy": 0.5},
        {"step": 10, "loss": 0.5, "learning_rate": 0.1},
        {"epoch": 2, "accuracy": 0.6},
    ]
    for method in ("full-ft", "bitfit"):
        for seed in (1, 2):
            write_run("results", method, "rte", seed, 0.5 + seed / 100, curve=curve)
    Path("results/figures").mkdir()
    Path("results/figures/hifi-6-k.png").write_bytes(b"\x89PNG of a figure")
    text = page_of(hifi("report"))
    tables = [name for name in sections_of(text) if name.startswith("table-")]
    after_tables = ["learning-curves", "training-losses", "figures", "runs"]
    assert [*sections_of(text)] == ["conclusion", "differences", *tables, *after_tables]
    assert {*pictures_of(sections_of(text)["training-losses"])} == {
        "RTE (protocol hifi, backbone bert-large)"
    }
    assert hifi("results pack results --out packed").code == 0
    packed = page_of(hifi("report --results-dir packed"))
    after_tables = ["learning-curves", "runs"]
    assert [*sections_of(packed)] == ["conclusion", "differences", *tables, *after_tables]
    assert packed.count("a packed study stores none") == 1
    assert "a packed study stores none" not in text


def test_differences_have_a_picture_of_each_task_and_of_their_mean(hifi):
    for task in ("rte", "qnli"):
        for seed in (1, 2):
            for method in ("full-ft", "bitfit", "lora"):
                write_run("results", method, task, seed, 0.5 + seed / 100)
    title = "(protocol hifi, backbone bert-large)"
    section = sections_of(page_of(hifi("report")))["differences"]
    assert [*pictures_of(section)] == [f"Mean over tasks {title}", f"QNLI {title}", f"RTE {title}"]
    section = sections_of(page_of(hifi("report --tasks rte")))["differences"]
    assert [*pictures_of(section)] == [f"RTE {title}"]


def colors_in(png):
    """The colors of methods in a picture."""
    pixels = (255 * imread(io.BytesIO(png), format="png")[..., :3]).round().astype(int)
    found = {tuple(pixel) for pixel in pixels.reshape(-1, 3)}
    return {color for color in COLORS if to_rgb_255(color) in found}


def to_rgb_255(color):
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


def test_pictures_have_the_labels_of_own_tasks(hifi):
    curve = [{"epoch": epoch, "accuracy": 0.5} for epoch in (1, 2)]
    for method in ("full-ft", "bitfit"):
        run = write_run("results", method, "tickets", 1, 0.5, curve=curve)
        kept = run / "own" / "tasks" / "tickets.yaml"
        kept.parent.mkdir(parents=True)
        kept.write_text("description: Support tickets\nlabel: Tickets\n")
    page = page_of(hifi("report"))
    assert page.count("<figcaption>Tickets (") == 2 and "<figcaption>tickets" not in page


def test_a_method_has_one_color_in_every_picture_of_the_page(hifi):
    """`first` and `second` have one color where they are alone; `second` is alone under a protocol."""
    alone = {f"own-{number}": looks_of([f"own-{number}"]) for number in range(12)}
    of_color = {}
    for name, look in alone.items():
        of_color.setdefault(look[name].color, []).append(name)
    first, second = max(of_color.values(), key=len)[:2]
    assert alone[first][first] == alone[second][second]
    for protocol, methods in (
        ("hifi", ("full-ft", first, second)),
        ("laptop", ("full-ft", second)),
    ):
        for method in methods:
            for seed in (1, 2):
                score = 0.5 + seed / 100 + 0.1 * [first, second, "full-ft"].index(method)
                curve = []
                for at in (1, 2):
                    curve.append({"step": at, "loss": at - score, "learning_rate": 0.1})
                    curve.append({"epoch": at, "accuracy": score - 0.2 / at})
                write_run("results", method, "rte", seed, score, protocol=protocol, curve=curve)
    sections = sections_of(page_of(hifi("report")))
    looks = looks_of(["full-ft", first, second])
    assert len({look.color for look in looks.values()}) == 3
    for name in ("differences", "learning-curves", "training-losses"):
        pictures = pictures_of(sections[name])
        both = colors_in(pictures["RTE (protocol hifi, backbone bert-large)"])
        one = colors_in(pictures["RTE (protocol laptop, backbone bert-large)"])
        # The reference is no row of a forest plot, whose text is black.
        assert both - {"#000000"} == {looks[first].color, looks[second].color}, name
        assert one - {"#000000"} == {looks[second].color}, name


def keys_of(section, column):
    """The texts of a column with the values by which they are sorted, and the rows of each tbody."""
    bodies = re.findall(r"<tbody>(.*?)</tbody>", section, re.DOTALL)
    rows = [re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL) for body in bodies]
    cells = []
    for body in rows:
        for row in body:
            found = re.findall(r"<td(?: data-sort=\"([^\"]*)\")?>(.*?)</td>", row)
            cells.append(found[column])
    return cells, [len(body) for body in rows]


def test_cells_have_the_numbers_by_which_they_are_sorted(hifi):
    for method, score in (("full-ft", 0.095), ("bitfit", 0.102), ("lora", 0.0951)):
        for seed in (1, 2):
            write_run("results", method, "rte", seed, score)
    write_run("results", "lora", "qnli", 1, 0.5)
    sections = sections_of(page_of(hifi("report")))
    cells, rows = keys_of(sections["table-1"], 2)
    assert sorted(float(key) for key, _ in cells) == pytest.approx([9.5, 9.51, 10.2])
    assert rows == [1, 1, 1]
    cells, _ = keys_of(sections["table-1"], 1)
    assert sorted(cells) == [("", "-"), ("", "-"), ("50", "50.0")]
    # An interval is a text, and sorted by its lower end.
    headings = re.findall(r"<th>(.*?)</th>", sections["table-2"])
    cells, _ = keys_of(sections["table-2"], headings.index("95 % interval"))
    for key, text in cells:
        assert text.startswith(f"[{float(key):+.2f}, ")
    cells, _ = keys_of(sections["table-2"], headings.index("Verdict"))
    assert {key for key, _ in cells} == {""}, "words have no number"


def test_a_papers_numbers_stay_below_ours(hifi):
    for seed in (1, 2):
        write_run("results", "full-ft", "rte", seed, 0.7)
        write_run("results", "bitfit", "rte", seed, 0.6)
    sections = sections_of(
        page_of(hifi("report --tables hifi-2 --methods full-ft,bitfit --published"))
    )
    _, rows = keys_of(sections["table-1"], 0)
    assert rows == [3, 3], "ours, published, difference"


def test_the_page_names_its_command_without_directories_of_the_machine(hifi, tmp_path):
    write_run("results", "full-ft", "rte", 1, 0.5)
    out = tmp_path / "mine.html"
    place = tmp_path / "results"
    text = page_of(hifi(f"report --task rte --results-dir {place} --out {out} --published"))
    command = "hifi report --tasks rte --results-dir results --out mine.html --published"
    assert f"Made by <code>{command}</code>" in text
    assert str(tmp_path) not in text


def test_the_date_is_that_of_the_newest_run(hifi):
    text = "The records of these runs have no date."
    run = write_run("results", "full-ft", "rte", 1, 0.5)
    page = page_of(hifi("report"))
    assert text in page
    # The score of each choice of an epoch, the number of epochs, and the encoder's digest.
    cells = ["done", "accuracy", "50.00%", "50.00%", "50.00%", "3", "w"]
    assert cells_of(page, str(run.relative_to("results"))) == cells
    dates = {
        2: "2026-03-01T23:30:00-02:00",
        3: "2026-03-02T01:00:00+00:00",
        4: "2027",
        5: 7,
        6: "0001-01-01T00:00:00+14:00",
    }
    for seed, date in dates.items():
        provenance = {**MEASURED["provenance"], "finished": date}
        write_run("results", "full-ft", "rte", seed, 0.5, provenance=provenance)
    page = page_of(hifi("report"))
    assert "The newest run finished on 2026-03-02 01:30 UTC, as its record says." in page
    assert text not in page and page == page_of(hifi("report"))


def test_methods_and_protocol_choose_the_runs(hifi):
    for protocol in ("hifi", "laptop"):
        for method in ("full-ft", "bitfit", "lora"):
            for seed in (1, 2):
                write_run("results", method, "rte", seed, 0.5 + seed / 100, protocol=protocol)
    text = page_of(hifi("report --protocol laptop --method bitfit,lora"))
    assert "protocol laptop" in text and "protocol hifi" not in text
    assert "BitFit minus each other method" in text and "Full-FT" not in text
    assert text.count("runs/laptop/bert-large/rte/") == 4 and "runs/hifi/" not in text
    for words, code, message in (
        ("--method bitfitt", 2, "did you mean 'bitfit'?"),
        ("--method dora", 3, "no finished run of --methods dora in results"),
        ("--protocol ehft", 3, "no finished run of --protocol ehft in results"),
    ):
        answer = hifi(f"report {words}")
        assert answer.code == code and message in answer.err, words


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_click_sorts_numbers_as_numbers_and_missing_ones_last(hifi, tmp_path):
    scores = {"full-ft": 0.095, "bitfit": 0.102, "lora": 0.0951}
    for method, score in scores.items():
        for seed in (1, 2):
            write_run("results", method, "rte", seed, score)
    write_run("results", "adapter", "qnli", 1, 0.5)
    text = re.sub(r"<meta http-equiv[^>]*>", "", page_of(hifi("report")))
    clicks = "document.querySelectorAll('#table-1 th')[2].querySelector('button').click();"
    orders = []
    for number in (1, 2):
        file = tmp_path / f"clicked{number}.html"
        file.write_text(text.replace("</body>", f"<script>{number * clicks}</script></body>"))
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
        command += ["--disable-component-update", f"--user-data-dir={tmp_path}/chromium"]
        shown = subprocess.run(
            [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, check=True
        )
        cells, _ = keys_of(sections_of(shown.stdout)["table-1"], 2)
        orders.append([re.sub(r"</?.>", "", cell).split()[0] for _, cell in cells])
    assert orders == [["9.5", "9.5", "10.2", "-"], ["10.2", "9.5", "9.5", "-"]]
