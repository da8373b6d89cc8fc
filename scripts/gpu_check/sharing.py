"""Throughput of several processes that train on one device at the same time."""

import time
from typing import Any

import torch
from setting import Setting, new_trainer, run_config, seconds_per_step
from torch import multiprocessing

METHOD, TOKENS, PRECISION = "hifi-layerwise", 36, "bf16"


def measure(setting: Setting, device: torch.device) -> list[dict[str, Any]]:
    """Steps per second of all processes together, and compared with one process."""
    rows: list[dict[str, Any]] = []
    for processes in setting.processes:
        context = multiprocessing.get_context("spawn")
        barrier, queue = context.Barrier(processes), context.SimpleQueue()
        workers = [context.Process(target=work, args=(setting, str(device), barrier, queue)) for _ in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            rows.append({"processes": processes, "error": "a process died"})
            break  # more processes need even more memory
        times = [queue.get() for _ in workers]
        seconds = max(end for _, end, _ in times) - min(start for start, _, _ in times)
        rate = sum(steps for _, _, steps in times) / seconds
        first = rows[0]["steps_per_s"] if rows else rate
        rows.append({"processes": processes, "steps_per_s": round(rate, 3), "gain": round(rate / first, 3)})
    return rows


def work(setting: Setting, device: str, barrier: Any, queue: Any) -> None:
    """Train, together with the other processes."""
    if device == "cpu":
        torch.set_num_threads(1)
    config = run_config(METHOD, setting, torch.device(device), f"precision={PRECISION}")
    trainer = new_trainer(config, setting, TOKENS)
    seconds_per_step(trainer)  # warms up
    barrier.wait(timeout=300)
    start = time.time()
    seconds_per_step(trainer)
    queue.put((start, time.time(), setting.steps + 2))
