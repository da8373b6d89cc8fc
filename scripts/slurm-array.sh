#!/usr/bin/env bash
# The runs of a grid as a Slurm job array: each element trains its part, one run after the other.
#
#   sbatch scripts/slurm-array.sh hifi-2 --data-dir glue_data
#   sbatch --array=1-2 --time=00:30:00 scripts/slurm-array.sh demo --seeds 1,2
#
# The words are those of `hifi grid`. Set partition, account and the environment below; all elements
# share the directory in which sbatch is called, and its results.
#
#SBATCH --job-name=hifi
#SBATCH --array=1-8
#SBATCH --time=12:00:00
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --output=slurm-%A_%a.log
#SBATCH --open-mode=append
# Five minutes before the limit the steps of the job get USR1: hifi saves a checkpoint and ends with 138.
#SBATCH --signal=USR1@300
#SBATCH --requeue
set -uo pipefail

# source .venv/bin/activate

# Since Slurm 22.05 srun does not take --cpus-per-task over from sbatch.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SRUN_CPUS_PER_TASK}

part=$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))
parts=$SLURM_ARRAY_TASK_COUNT
restarts=${SLURM_RESTART_COUNT:-0}
element=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}

srun hifi grid "$@" --shard "$part/$parts"
code=$?

# A job that is stopped again and again before it has saved anything would never end.
if [ "$code" -eq 138 ] && [ "$restarts" -lt "${MAX_RESTARTS:-50}" ]; then
    echo "stopped before the time limit; $element goes on from its checkpoint (restart $((restarts + 1)))"
    scontrol requeue "$element"
    exit
fi
exit "$code"
