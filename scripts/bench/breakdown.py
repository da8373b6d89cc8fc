"""Where the time of a training step goes."""

import time

import ours
from torch.profiler import ProfilerActivity, profile
from work import BATCH_SIZE, Work

from hifi_cli.tasks.batches import training_order
from hifi_cli.training.loop import Trainer

STEPS = 8
GROUPS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "_linear_pointwise"),
    "copies and casts": ("copy_", "_to_copy", "cat", "index_select", "index_copy_", "fill_", "clone"),
    "optimiser": ("_fused_adamw_", "_foreach_norm", "linalg_vector_norm", "_foreach_mul_"),
}


def shares(work: Work, method: str, **keys: str) -> dict[str, float]:
    """Shares of a step's time; `other kernels` is softmax, GELU, norms, dropout, additions; `outside kernels` the rest."""
    prepared = ours.build(work, method, **keys)
    trainer = Trainer(prepared.runner, prepared.method, work.examples)
    trainer.setup_phase(0)
    prepared.encoder.model.train()
    lengths = [len(example) for example in work.examples]
    order = training_order(lengths, BATCH_SIZE, strategy="random", seed=1, epoch=0)
    batches = [[work.examples[index] for index in batch] for batch in order[:STEPS]]
    for batch in batches:
        trainer.train_step(batch)
    began = time.perf_counter()
    for batch in batches:
        trainer.train_step(batch)
    total_us = 1e6 * (time.perf_counter() - began)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for batch in batches:
            trainer.train_step(batch)
    spent = dict.fromkeys([*GROUPS, "other kernels"], 0.0)
    for event in seen.key_averages():
        library, _, kernel = event.key.partition("::")
        if library in ("aten", "mkldnn"):
            group = next((name for name, kernels in GROUPS.items() if kernel in kernels), "other kernels")
            spent[group] += event.self_cpu_time_total
    spent["outside kernels"] = max(0.0, total_us - sum(spent.values()))
    total = sum(spent.values())
    return {name: round(seconds / total, 3) for name, seconds in spent.items()}
