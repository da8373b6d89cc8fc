"""Finished runs written by hand, for tests of what is printed about them."""

import json
from pathlib import Path

from hifi_cli.files import digest
from hifi_cli.reports.published import PublishedTable

PRIMARY = {"cola": "matthews", "mrpc": "f1", "stsb": "spearman", "qqp": "f1", "squad": "span_f1"}


def write_run(results_dir, method, task, seed, score, *, protocol="hifi", backbone="bert-large", epochs=3, last=None, top=None, metrics=None, curve=None, setting="a", shots=None, **changes):
    """A results.json with `score` (a share of 1) at the best epoch; `curve` becomes metrics.jsonl."""
    place = f"{task}-{shots}-shot" if shots else task
    folder = Path(results_dir) / "runs" / protocol / backbone / place / method / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    primary = changes.pop("primary_metric", PRIMARY.get(task, "accuracy"))
    content = {
        "schema": 1, "status": "done", "task": task, "method": method, "backbone": backbone, "protocol": protocol, "seed": seed,
        "split": "validation", "selection": "few-shot" if shots else "validation", "shots": shots, "report": "best", "primary_metric": primary,
        "params": {"trainable": 40, "trainable_backbone": 20, "stored": 40, "total": 1000},
        "config_hash": digest([method, task, seed, setting, shots]), "setting_hash": digest([method, task, setting, epochs, shots]),
        "heads_sha256": None, "data": {"train": "t", "validation": "v"}, "limited": False, "collapsed": False,
        "scores": {"last": score if last is None else last, "best": score, "max": score if top is None else top},
        "epochs": {"total": epochs, "last": epochs, "best": 2, "max": 2},
        "metrics": {primary: score, **(metrics or {})},
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps({**content, **changes}))
    if curve:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve))
    return folder


def seeds_for(mean, deviation, number):
    """Scores whose mean and sample standard deviation are the printed ones (percent)."""
    if deviation is None or number < 2:
        return [mean]
    if number % 2:
        half = (number - 1) // 2
        step = deviation * ((number - 1) / (2 * half)) ** 0.5
        return [mean] + [mean + step] * half + [mean - step] * half
    step = deviation * ((number - 1) / number) ** 0.5
    return [mean + step, mean - step] * (number // 2)


def write_paper(results_dir, spec, found: PublishedTable):
    """A paper's table as runs: one run per seed and cell, MNLI's two halves in the same run."""
    shots = 16 if spec.protocol == "hifi-fewshot" else None
    for row in spec.rows:
        if row.method is None:
            continue
        cells: dict[str, list[dict[str, float]]] = {}
        for column in spec.columns:
            mean, deviation = found.mean(row.published_name, column.published_name), found.deviation(row.published_name, column.published_name)
            if not isinstance(mean, float):
                continue
            metric = column.metric or PRIMARY.get(column.task, "accuracy")
            values = seeds_for(mean, deviation if isinstance(deviation, float) else None, found.seeds or 1)
            runs = cells.setdefault(column.task, [{} for _ in values])
            for run, value in zip(runs, values, strict=True):
                run[metric] = value / 100
        for task, runs in cells.items():
            primary = PRIMARY.get(task, "accuracy")
            for seed, metrics in enumerate(runs, 1):
                write_run(results_dir, row.method, task, seed, metrics.get(primary, 0.5), metrics=metrics,
                          protocol=spec.protocol, backbone=spec.backbone, shots=shots)  # fmt: skip
