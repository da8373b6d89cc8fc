"""Finished runs written by hand, for tests of what is printed about them."""

import hashlib
import json
from functools import cache
from pathlib import Path

import pandas as pd
from run_folders import run_folder

from hifi_cli.config.sources import resolve
from hifi_cli.digests import digest
from hifi_cli.errors import HifiError
from hifi_cli.reports.table_spec import PublishedTable

PRIMARY = {"cola": "matthews", "mrpc": "f1", "stsb": "spearman", "qqp": "f1", "squad": "span_f1"}


MEASURED = {  # keys of results.json that no table shows
    "schema_version": 2, "task_digest": "k", "draws": {"order of data": 1}, "processes": [],
    "split": "validation", "n_examples": {"train": 8, "selection": 4, "reported": 4}, "shots": None, "fewshot": None,
    "limit": None, "heads_sha256": None, "metrics": {}, "data": {"train": "t", "validation": "v"}, "wall_s": 2.0, "peak_memory_bytes": 1,
    "variant": None, "truncated": None, "method_code": None, "time_s": 1.0, "delta_bytes": 1, "epoch_metrics": [],
    "gradient_accumulation_steps": 1, "heads": None, "data_origin": {}, "backbone_weights": "w", "precision": "fp32",
    "provenance": {"command": ["hifi"], "hifi": "0", "git": None, "python": "3", "libraries": {"torch": "2"}, "device": "CPU", "threads": 1,
                   "platform": "Linux"},
}  # fmt: skip


def flatten(values, prefix=""):
    """Nested values by dotted key, as the hash has them."""
    flat = {}
    for key, value in values.items():
        flat.update(
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict) and value
            else {f"{prefix}{key}": value}
        )
    return flat


def config_hash(config):
    """The hash of what decides the result of a run, written out a second time."""
    decisive = {key: value for key, value in config.items() if key not in ("variant", "device")}
    decisive["backbone"] = {"name": config["backbone"]["name"]}
    if config["heads"]["rank"] != "random":
        decisive["heads"] = {**config["heads"], "seed": 0}  # draws nothing
    text = json.dumps(flatten(decisive), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def store_run(directory, config, content):
    """config.yaml and results.json of a finished run; they belong together by the hash of what decides the result."""
    directory.mkdir(parents=True, exist_ok=True)
    # JSON is YAML, and written ten times as fast.
    (directory / "config.yaml").write_text(json.dumps(config))
    content = {
        **MEASURED,
        "variant": config.get("variant"),
        **content,
        "config": config,
        "config_hash": config_hash(config),
    }
    (directory / "results.json").write_text(json.dumps(content))


@cache
def _protocols_rank(protocol, method, task):
    """The ranking of heads that a protocol has for a method; anything where a name is unknown."""
    try:
        return resolve(
            task=task, method=method, backbone="bert-large", protocol=protocol
        ).heads.rank
    except HifiError:
        return "pagerank"


def write_run(
    results_dir,
    method,
    task,
    seed,
    score,
    *,
    protocol="hifi",
    backbone="bert-large",
    epochs=3,
    last=None,
    top=None,
    metrics=None,
    curve=None,
    setting="a",
    shots=None,
    limited=False,
    params=None,
    variant=None,
    keys=None,
    **changes,
):
    """A finished run with `score` (between 0 and 1) at the best epoch; `curve` becomes metrics.jsonl."""
    place = {"protocol": protocol, "backbone": backbone, "variant": variant, "shots": shots}
    folder = run_folder(results_dir, **place, task=task, method=method, seed=seed)
    primary = changes.pop("primary_metric", PRIMARY.get(task, "accuracy"))
    content = {
        "status": "done", "task": task, "method": method, "backbone": backbone, "protocol": protocol, "seed": seed,
        "selection": "few-shot" if shots else "validation", "shots": shots, "report": "best", "primary_metric": primary,
        "params": {"trainable": 40, "trainable_backbone": 20, "stored": 40, "stored_bytes": 160, "total": 1000, **(params or {})},
        "setting_hash": digest([method, task, setting, epochs, shots]),
        "limit": 16 if limited else None, "collapsed": False,
        "scores": {"last": score if last is None else last, "best": score, "max": score if top is None else top},
        "epochs": {"total": epochs, "last": epochs, "best": 2, "max": 2},
        "metrics": {primary: score, **(metrics or {})},
        "epoch_metrics": [line for line in curve or [] if "epoch" in line],
    }  # fmt: skip
    names = {
        "protocol": protocol,
        "backbone": {"name": backbone},
        "task": task,
        "method": method,
        "seed": seed,
        "shots": shots,
    }
    heads = {"rank": _protocols_rank(protocol, method, task), "seed": None}
    config = changes.pop(
        "config", {**names, "heads": heads, "setting": setting, "variant": variant, **(keys or {})}
    )
    store_run(folder, config, {**content, **changes})
    if curve:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve))
    return folder


def scores_with(mean, deviation, number):
    """Scores whose mean and sample standard deviation are the printed ones (percent)."""
    if deviation is None or number < 2:
        return [mean]
    if number % 2:
        half = (number - 1) // 2
        step = deviation * ((number - 1) / (2 * half)) ** 0.5
        return [mean] + [mean + step] * half + [mean - step] * half
    step = deviation * ((number - 1) / number) ** 0.5
    return [mean + step, mean - step] * (number // 2)


def write_paper_runs(results_dir, spec, paper: PublishedTable):
    """A paper's table as runs: one run per seed and cell, MNLI's two halves in the same run."""
    shots = 16 if spec.protocol == "hifi-fewshot" else None
    for row in spec.rows:
        if row.method is None:
            continue
        cells: dict[str, list[dict[str, float]]] = {}
        for column in spec.columns:
            mean, deviation = (
                paper.mean(row.published, column.published),
                paper.deviation(row.published, column.published),
            )
            if not isinstance(mean, float):
                continue
            metric = column.metric or PRIMARY.get(column.task, "accuracy")
            values = scores_with(
                mean, deviation if isinstance(deviation, float) else None, paper.seeds or 1
            )
            runs = cells.setdefault(column.task, [{} for _ in values])
            for run, value in zip(runs, values, strict=True):
                run[metric] = value / 100
        for task, runs in cells.items():
            primary = PRIMARY.get(task, "accuracy")
            for seed, metrics in enumerate(runs, 1):
                write_run(results_dir, row.method, task, seed, metrics.get(primary, 0.5), metrics=metrics,
                          protocol=spec.protocol, backbone=spec.backbone, shots=shots)  # fmt: skip


USERS_TABLE = """
description: A user's own table
protocol: hifi
backbone: bert-large
published: ehft/reserve
rows:
  - {method: full-ft, label: Full-FT}
  - {method: bitfit, label: 'Bit_Fit & more', published: eh-ft-lora-reserve}
  - {method: linear-probing, label: Probing, published: none}
columns:
  - {task: rte, label: RTE}
  - {task: cola, label: CoLA}
  - {task: stsb, label: STS-B, metric: pearson}
seeds: [1, 2]
decimals: 2
"""


def write_users_table():
    """A user's table over runs of every sort, in the working directory; returns the file's name."""
    Path("mine.yaml").write_text(USERS_TABLE)
    for seed, shift in ((1, 0.0), (2, 0.01)):
        write_run("results", "full-ft", "rte", seed, 0.87 + shift)
        write_run("results", "full-ft", "cola", seed, 0.68 + shift)
        write_run("results", "full-ft", "stsb", seed, 0.91, metrics={"pearson": 0.92 + shift})
        write_run(
            "results",
            "bitfit",
            "rte",
            seed,
            0.88 + shift,
            params={"trainable": 4, "trainable_backbone": 0, "stored": 4, "total": 1000},
        )
    write_run("results", "bitfit", "cola", 1, 0.68)
    write_run("results", "bitfit", "cola", 2, 0.0, collapsed=True)
    write_run("results", "bitfit", "stsb", 1, 0.9, limited=True)
    return "mine.yaml"


def write_search(results_dir, method, task, scores, seed=1, **keys):
    """Runs with the learning rates 1e-05, 2e-05, ... and these scores; None: one that diverged."""
    for index, score in enumerate(scores, 1):
        rate, status = index * 1e-5, "diverged" if score is None else "done"
        more = {
            "variant": f"learning_rate--{rate:g}",
            "keys": {"learning_rate": rate},
            "status": status,
        }
        write_run(results_dir, method, task, seed, score or 0.0, **more, **keys)


def write_figure(results_dir, name, frame, protocol="laptop"):
    """The CSV of a figure."""
    path = Path(results_dir) / f"figures/{name}-{protocol}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)
    return path


def write_features(results_dir, seeds, ratio):
    """The CSV of EH-FT's figure 1, in which EH-FT moves the features `ratio` times as far as Full-FT."""
    rows = []
    for seed in seeds:
        far = ratio * (1 + 0.02 * (seed % 3 - 1))
        rows += [["cb", "full-ft", seed, 1.0], ["cb", "eh-ft-bitfit", seed, far]]
    frame = pd.DataFrame(rows, columns=["task", "method", "seed", "mean"])
    return write_figure(results_dir, "ehft-1", frame, "laptop-ehft")
