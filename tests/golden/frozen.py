"""What a redesign must not change: by golden file, the commands whose numbers it holds.

A golden file is a table as printed, or JSON. `regenerate.py` writes them, the tests beside it compare with them.
"""

import contextlib
import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from commands import csv_rows, hifi, run_numbers, table_numbers
from run_folders import demo_folder, run_folder
from synthetic_runs import write_users_table

from hifi_cli.config.sources import resolve
from hifi_cli.methods.find import values_of

GOLDEN = Path(__file__).parent / "files"
# The protocol of the stored runs, as it was then
STUDY = "--protocol laptop.yaml --results-dir study".split()
SHORT = ["limit=32", "batch_size=16", "epochs=2", "log_every=1"]


# Published numbers, which need no runs
PUBLISHED = [f"hifi-{name}" for name in ("2", "2-fewshot", "3", "4", "5", "6")]
PUBLISHED += [f"ehft-{name}" for name in ("1", "2", "3", "4")] + ["superglue"]


def published(name: str, cwd: Path) -> str:
    return hifi(f"table {name} --published --format csv --results-dir none", cwd=cwd)


# Tables, comparisons, claims and figures of the stored runs in study.jsonl.xz, which stand in cwd/study
COMPARISONS = {
    "full-ft-bitfit": ["full-ft", "bitfit"],
    "hifi-layerwise-hifi-random": ["hifi-layerwise", "hifi-random"],
    "eh-ft-bitfit-full-ft-last": ["eh-ft-bitfit", "full-ft", "--score", "last"],
    "lp-ft-others": ["lp-ft", "lora", "linear-probing", "hifi-layerwise"],
}
FIGURES = ["study-stage1", "study-k"]
SEARCH_BUDGET = {  # shipped ones are about more methods than the study has
    "description": "Searches of the stored study",
    "kind": "search-budget",
    "tasks": ["cb"],
    "methods": ["full-ft", "bitfit"],
    "backbone": "minilm",
    "protocol": "laptop.yaml",
}


def table(cwd: Path, *words: object) -> str:
    return hifi("table", *words, *STUDY, "--format", "csv", cwd=cwd)


def laptop_table(score: str, cwd: Path) -> str:
    return table(cwd, "study-table.yaml", "--score", score)


def stored_figure(name: str, cwd: Path) -> str:
    return figure(f"{name}.yaml", cwd, "--results-dir", "study")


def comparison(name: str, cwd: Path) -> list[dict[str, Any]]:
    words = ["compare", *COMPARISONS[name], "--tasks", "cb,copa,mrpc", *STUDY]
    return table_numbers(hifi(*words, "--format", "json", cwd=cwd))


def claims(name: str, cwd: Path) -> dict[str, Any]:
    """Ours, the interval and the published effect of each claim for which there are runs."""
    rows = json.loads(hifi(f"claims {name} --results-dir study --format json", cwd=cwd))["rows"]
    return {
        row["label"]: {
            "ours": row["ours"],
            "interval": [row["low"], row["high"]],
            "published": row["published"],
        }
        for row in rows
        if row["ours"] is not None
    }


def figure(name: str, cwd: Path, *words: object) -> str:
    """The CSV of a figure."""
    picture = json.loads(hifi("figure", name, *words, "--format", "json", "--quiet", cwd=cwd))[
        "path"
    ]
    return Path(cwd, picture).with_suffix(".csv").read_text()


def search_budget(cwd: Path) -> str:
    """The study holds its searches as a file of mean scores; each becomes a run of its setting, as searches are now."""
    (cwd / "budget.yaml").write_text(yaml.safe_dump(SEARCH_BUDGET))
    stored = json.loads((cwd / "study/grids/laptop-rates/chosen-laptop-minilm.json").read_text())
    for search in stored["searches"]:
        names = {"task": search["task"], "method": search["method"]}
        run = run_folder("", protocol="laptop", backbone="minilm", **names).parent
        if (
            search["task"] not in SEARCH_BUDGET["tasks"]
            or search["method"] not in SEARCH_BUDGET["methods"]
        ):
            continue
        record = json.loads((cwd / "study" / run / "seed1/results.json").read_text())
        for tried in search["tried"]:
            rate = tried["setting"]["learning_rate"]
            record |= {
                "variant": rate,
                "config": record["config"] | {"learning_rate": rate},
                "selection": "validation",
            }
            record["scores"] = dict.fromkeys(record["scores"], tried["score"])
            folder = cwd / "searched" / run / rate / "seed1"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "results.json").write_text(json.dumps(record))
    return figure("./budget.yaml", cwd, *STUDY[:2], "--results-dir", "searched")


# Training: one run per implementation of a method, on the demo's encoder and data. Bits depend on the CPU.
FAST_METHODS = [
    "full-ft",
    "linear-probing",
    "bitfit",
    "lora",
    "hifi-layerwise",
    "diff-pruning",
    "eh-ft-bitfit",
    "lp-ft",
]
SLOW_METHODS = [
    *(
        "adapter",
        "compacter",
        "prefix-tuning",
        "prefix-tuning-mlp",
        "child-tuning-d",
        "child-tuning-f",
        "mixout",
        "top-k",
    ),
    *(
        "rocoft-row",
        "rocoft-column",
        "random-parameters",
        "hifi-midtop",
        "hifi-random",
        "hifi-lora",
        "adalora",
    ),
    *("ia3", "dora", "vera", "oft", "eh-ft-hifi", "eh-ft-lora-reserve"),
]
SETTINGS = {  # that fit four layers of width 64 and a few steps
    "top-k": ["settings.k=2"],
    "vera": ["settings.options.r=8"],
    "hifi-lora": ["heads.k=2"],
}


# What each paper's protocol trains with: the values that reach a run from all layers of configuration
PROTOCOLS = {
    "hifi": ["rte", "mnli", "squad"],
    "hifi-fewshot": ["mrpc"],
    "ehft": ["rte", "qnli", "stsb"],
    "ehft-released": ["copa", "qnli"],
    "laptop": ["cb", "mrpc"],
    "laptop-ehft": ["cb", "mrpc"],
    "superglue": ["wic", "record"],
    "demo": ["demo-entailment"],
}
CONFIGURED = [
    *FAST_METHODS,
    *SLOW_METHODS,
    "hifi-wo-corr",
    "hifi-page-inv",
    "eh-ft-bitfit-reserve",
    "eh-ft-lora",
    "eh-ft-prefix",
]
TRAINING_KEYS = [
    *(
        "learning_rate",
        "weight_decay",
        "adam_betas",
        "adam_epsilon",
        "schedule",
        "warmup",
        "hold_steps",
        "hold_factor",
    ),
    *(
        "final_factor",
        "max_grad_norm",
        "settings",
        "epochs",
        "batch_size",
        "max_length",
        "truncation",
        "swap_texts",
        "stride",
    ),
    *(
        "dropout",
        "selection",
        "report",
        "primary_metric",
        "shots",
        "scoring",
        "heads",
        "task_head",
        "stage1",
    ),
]


def configurations(protocol: str, _: Path) -> dict[str, Any]:
    """The training keys of the first method; of the others by task and method what differs from it."""
    documents = []
    for task in PROTOCOLS[protocol]:
        for method in CONFIGURED:
            documents.append(values_of(resolve(task=task, method=method, protocol=protocol)))
    flat = {
        f"{keys['task']} {keys['method']}": _flat({key: keys[key] for key in TRAINING_KEYS})
        for keys in documents
    }
    first = next(iter(flat.values()))
    return {
        "first": first,
        **{
            cell: {key: value for key, value in keys.items() if first.get(key) != value}
            for cell, keys in flat.items()
        },
    }


def _flat(keys: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in keys.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


NUMBERS: dict[str, Callable[[Path], Any]] = {
    **{f"published-{name}.csv": partial(published, name) for name in PUBLISHED},
    **{
        f"table-laptop-{score}.csv": partial(laptop_table, score)
        for score in ("best", "last", "max")
    },
    "table-generic.csv": table,
    **{f"compare-{name}.json": partial(comparison, name) for name in COMPARISONS},
    "claims.json": partial(claims, "study-claims.yaml"),
    **{f"figure-{name}.csv": partial(stored_figure, name) for name in FIGURES},
    "figure-search-budget.csv": search_budget,
    **{f"configuration-{name}.json": partial(configurations, name) for name in PROTOCOLS},
}
SLOW_NUMBERS = {f"configuration-{name}.json" for name in PROTOCOLS if name not in ("hifi", "ehft")}


OTHER_TASKS = ["demo-acceptability", "demo-similarity", "demo-topics", "demo-roles"]
RANKINGS = ["pagerank", "pagerank-personalized", "pagerank-inverse", "richness", "richness-inverse"]
RANKINGS += ["correlation", "first", "random", "gradient"]
SLOW_RANKINGS = ["ablation", "fisher", "confidence", "entropy", "output-norm"]
DEMO_FIGURES = ["hifi-5", "hifi-6-d", "ranking"]
SLOW_DEMO_FIGURES = ["hifi-3", "hifi-4", "head-bench"]


@dataclass(frozen=True)
class Training:
    """A run of the demo."""

    method: str
    task: str = "demo-entailment"
    kernels: str = "torch"
    precision: str = "fp32"
    slow: bool = False

    @property
    def name(self) -> str:
        return f"{self.task}-{self.method}-{self.kernels}-{self.precision}"

    def words(self) -> list[str]:
        line = f"train --protocol demo --task {self.task} --method {self.method} --seed 1 --quiet"
        how = [f"kernels={self.kernels}", f"precision={self.precision}"]
        return [*line.split(), *SHORT, *how, *SETTINGS.get(self.method, [])]

    def compute(self, cwd: Path) -> dict[str, Any]:
        """The numbers of the run."""
        results_dir = f"{self.kernels}-{self.precision}"
        hifi(*self.words(), "--results-dir", results_dir, cwd=cwd)
        return run_numbers(demo_folder(cwd / results_dir, task=self.task, method=self.method))


TRAININGS = [
    *(
        Training(method, kernels=kernels)
        for method in FAST_METHODS
        for kernels in ("torch", "auto")
    ),
    *(
        Training(method, kernels=kernels, slow=True)
        for method in SLOW_METHODS
        for kernels in ("torch", "auto")
    ),
    *(Training("full-ft", task, slow=task != "demo-similarity") for task in OTHER_TASKS),
    *(
        Training(method, kernels="auto", precision="bf16", slow=True)
        for method in ("full-ft", "hifi-layerwise", "lora")
    ),
]


def heads(rankings: list[str], cwd: Path) -> dict[str, Any]:
    """Selected heads and their values by each ranking, the heads of the other strategies, and the scores of all heads."""
    words = "--protocol demo --results-dir demo --quiet --format json scoring.samples=16".split()
    (scored,) = json.loads(hifi("score", *words, cwd=cwd))
    chosen = {
        "scores": {key: scored["scores"][key] for key in ("samples", "richness", "correlation")}
    }
    for ranking in rankings:
        (answer,) = json.loads(hifi("select", *words, f"heads.rank={ranking}", cwd=cwd))
        chosen[ranking] = {
            key: answer["selection"][key] for key in ("heads", "values", "iterations", "ties")
        }
    for strategy in ("midtop", "global"):
        (answer,) = json.loads(hifi("select", *words, f"heads.strategy={strategy}", cwd=cwd))
        chosen[strategy] = {"heads": answer["selection"]["heads"]}
    return chosen


def demo_figure(name: str, cwd: Path) -> str:
    """A figure of the demo's encoder without runs; the columns of the time that it took are left out."""
    rows = list(
        csv.reader(
            io.StringIO(
                figure(name, cwd, "--protocol", "demo", "--results-dir", "demo", "limit=32")
            )
        )
    )
    timed = [place for place, column in enumerate(rows[0]) if column == "seconds"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [cell for place, cell in enumerate(row) if place not in timed] for row in rows
    )
    return text.getvalue()


# Computed by this CPU: equal up to rounding on another one
COMPUTED: dict[str, Callable[[Path], Any]] = {
    "demo-heads.json": partial(heads, RANKINGS),
    **{f"demo-{name}.csv": partial(demo_figure, name) for name in DEMO_FIGURES},
}
SLOWLY_COMPUTED: dict[str, Callable[[Path], Any]] = {
    "demo-heads-measured.json": partial(heads, SLOW_RANKINGS),
    **{f"demo-{name}.csv": partial(demo_figure, name) for name in SLOW_DEMO_FIGURES},
}


def users_table(kind: str, cwd: Path) -> str:
    """A user's table in one format, which `tests/reports/test_render.py` compares with its file."""
    folder = cwd / f"table-{kind}"
    folder.mkdir()
    with contextlib.chdir(folder):
        name = write_users_table()
    return hifi(f"table {name} --published --format {kind}", cwd=folder)


FORMATS: dict[str, Callable[[Path], str]] = {
    f"table.{kind}": partial(users_table, kind) for kind in ("text", "md", "tex", "csv", "json")
}


def write(name: str, value: Any) -> None:
    """Write a golden file."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True) + "\n"
    (GOLDEN / name).write_text(text)


def read(name: str) -> Any:
    """What a golden file holds, numbers as numbers."""
    text = (GOLDEN / name).read_text()
    return csv_rows(text) if name.endswith(".csv") else json.loads(text)


def as_read(name: str, value: Any) -> Any:
    """A value as it would be read from its golden file."""
    return csv_rows(value) if name.endswith(".csv") else json.loads(json.dumps(value))


def differences(expected, found, relative, place=""):
    """Where two values as read from JSON or CSV differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [*expected, *(key for key in found if key not in expected)]
        return [
            line
            for key in keys
            for line in differences(
                expected.get(key, "(none)"), found.get(key, "(none)"), relative, f"{place}/{key}"
            )
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [
            line
            for at, (one, other) in pairs
            for line in differences(one, other, relative, f"{place}/{at}")
        ]
    if isinstance(expected, int | float) and isinstance(found, int | float):
        same = math.isclose(expected, found, rel_tol=relative, abs_tol=relative)
    else:
        same = expected == found
    return [] if same else [f"{place}: {expected!r} is now {found!r}"]
