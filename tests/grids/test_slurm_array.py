"""The job array for Slurm, with stand-ins for srun and scontrol: parts, a stop before the limit, and requeueing."""

import os
import shutil
import subprocess
import sys

import pytest
from finished_runs import fingerprint, run_paths
from hifi_processes import environment
from project_files import ROOT

SCRIPT = ROOT / "scripts" / "slurm-array.sh"
GRID = [
    "--methods",
    "full-ft,bitfit",
    "--seeds",
    "1",
    "epochs=40",
    "limit=64",
    "eval_batch_size=64",
]
# srun starts the step. As slurmctld does shortly before a job's limit, it sends USR1 to every
# process of the step, once a checkpoint could be saved.
SRUN = """#!/usr/bin/env bash
echo "$*" >>srun.log
if [ -z "${STOP_AFTER_EPOCHS:-}" ]; then exec "$@"; fi
setsid "$@" &
step=$!
until [ "$(cat results/runs/demo/demo/*/*/seed*/metrics.jsonl 2>/dev/null | grep -c epoch)" -ge "$STOP_AFTER_EPOCHS" ]; do
    kill -0 "$step" || break
    sleep 0.1
done
kill -USR1 "$step"
wait "$step"
"""


@pytest.fixture
def slurm(tmp_path):
    """Runs an element of an array of two; returns its exit code, what it printed, and what was requeued."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    programs = {
        "srun": SRUN,
        "scontrol": '#!/usr/bin/env bash\necho "$*" >>scontrol.log\n',
        "hifi": f'#!/usr/bin/env bash\nexec {sys.executable} -m hifi_cli "$@"\n',
    }
    for name, text in programs.items():
        path = stand_ins / name
        path.write_text(text)
        path.chmod(0o755)

    def run(element, *words, first=1, **variables):
        slurms = {
            "SLURM_ARRAY_JOB_ID": "77",
            "SLURM_ARRAY_TASK_ID": str(element),
            "SLURM_ARRAY_TASK_MIN": str(first),
            "SLURM_ARRAY_TASK_COUNT": "2",
            "PATH": os.pathsep.join([str(stand_ins), os.environ["PATH"]]),
        }
        ended = subprocess.run(
            ["bash", SCRIPT, *words],
            cwd=tmp_path,
            env=environment(**slurms, **variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        log = tmp_path / "scontrol.log"
        requeued = log.read_text().splitlines() if log.is_file() else []
        log.unlink(missing_ok=True)
        return ended.returncode, ended.stdout + ended.stderr, requeued

    return run


def test_the_elements_share_the_runs(slurm, tmp_path):
    words = ["demo", "--print", "--quiet", *GRID]
    printed = [
        slurm(element, *words, first=first)[1].splitlines()
        for element, first in ((1, 1), (2, 1), (0, 0))
    ]
    assert printed[0] and printed[1] and not {*printed[0]} & {*printed[1]}
    assert printed[2] == printed[0], "an array may be numbered from 0"
    assert all(line.startswith("hifi train") for part in printed for line in part)
    steps = (tmp_path / "srun.log").read_text().splitlines()
    assert [step.split()[-1] for step in steps] == ["1/2", "2/2", "1/2"]


@pytest.mark.slow
def test_an_element_that_is_stopped_goes_on_where_it_was(slurm, tmp_path):
    words = ["demo", *GRID]
    code, printed, requeued = slurm(1, *words, STOP_AFTER_EPOCHS="3")
    assert code == 0 and requeued == ["requeue 77_1"], printed
    assert "77_1 goes on from its checkpoint (restart 1)" in printed
    assert [*(tmp_path / "results").rglob("last.pt")]
    code, printed, requeued = slurm(1, *words, SLURM_RESTART_COUNT="1")
    assert (code, requeued) == (0, []), printed
    finished = run_paths(tmp_path)
    assert finished
    resumed = {path.relative_to(tmp_path): fingerprint(path) for path in finished}
    shutil.rmtree(tmp_path / "results")
    assert slurm(1, *words)[0] == 0
    assert {
        path.relative_to(tmp_path): fingerprint(path) for path in run_paths(tmp_path)
    } == resumed


@pytest.mark.slow
def test_other_ends_are_passed_on_and_restarts_are_counted(slurm):
    code, printed, requeued = slurm(1, "demmo")
    assert (code, requeued) == (2, []) and "unknown" in printed
    limits = {"SLURM_RESTART_COUNT": "2", "MAX_RESTARTS": "2"}
    code, _, requeued = slurm(1, "demo", *GRID, STOP_AFTER_EPOCHS="1", **limits)
    assert (code, requeued) == (138, [])
