#!/usr/bin/env bash
# Start a Slurm of two nodes on this machine and run a grid on it through Parsl. Debian: apt-get install slurm-wlm munge.
# As root: scripts/slurm-two-nodes.sh PYTHON [GRID] [WORD ...]   (PYTHON has hifi-cli[grid]; GRID is demo by default)
# The daemons' state is in a temporary directory. They are stopped at the end, and /etc is not changed.
set -euo pipefail
PYTHON=$(command -v "${1:?the Python that has hifi-cli[grid]}")
GRID=${2:-demo}
shift $(($# > 2 ? 2 : $#))
ROOT=$(mktemp -d /tmp/slurm-two-nodes.XXXXXX)
HERE=$(hostname -s)
export SLURM_CONF=$ROOT/slurm.conf
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    echo "daemons stopped; their logs: $ROOT"
}
trap stop EXIT

mkdir -p "$ROOT"/{state,spool-n1,spool-n2,munge}
chmod 755 "$ROOT"
chmod 700 "$ROOT/munge"
dd if=/dev/urandom of="$ROOT/munge/key" bs=1024 count=1 status=none
chmod 600 "$ROOT/munge/key"
chown -R "$(id -u)" "$ROOT/munge"
munged --force --foreground --key-file "$ROOT/munge/key" --socket "$ROOT/munge.socket" --pid-file "$ROOT/munge/pid" \
    --seed-file "$ROOT/munge/seed" --log-file "$ROOT/munge/log" &
pids+=($!)

cat >"$SLURM_CONF" <<CONF
ClusterName=two-nodes
SlurmctldHost=$HERE(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$ROOT/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort=26817
ReturnToService=2
MpiDefault=none
SlurmdSpoolDir=$ROOT/spool-%n
StateSaveLocation=$ROOT/state
SlurmctldPidFile=$ROOT/slurmctld.pid
SlurmdPidFile=$ROOT/slurmd-%n.pid
SlurmctldLogFile=$ROOT/slurmctld.log
SlurmdLogFile=$ROOT/slurmd-%n.log
KillWait=60
NodeName=n1 NodeHostname=$HERE NodeAddr=127.0.0.1 Port=26818 CPUs=1
NodeName=n2 NodeHostname=$HERE NodeAddr=127.0.0.1 Port=26819 CPUs=1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld -D >"$ROOT/slurmctld.out" 2>&1 &
pids+=($!)
for node in n1 n2; do
    slurmd -D -N "$node" >"$ROOT/$node.out" 2>&1 &
    pids+=($!)
done
for _ in $(seq 60); do
    [ "$(sinfo -h -N -t idle -o %n 2>/dev/null | sort -u | wc -l)" = 2 ] && break
    sleep 1
done
sinfo -N

cat >"$ROOT/site.yaml" <<SITE
# hifi grid $GRID --site site.yaml
description: Two nodes of one core on this machine
provider:
  kind: SlurmProvider
  launcher: SrunLauncher
  partition: main
  nodes_per_block: 1
  cores_per_node: 1
  init_blocks: 2
  max_blocks: 2
  exclusive: false
  walltime: "01:00:00"
  worker_init: export SRUN_CPUS_PER_TASK=\$SLURM_CPUS_PER_TASK
executor: {address: 127.0.0.1, max_workers_per_node: 1, heartbeat_period: 2, heartbeat_threshold: 10}
SITE
export OMP_NUM_THREADS=1
"$PYTHON" -m hifi_cli grid "$GRID" --site "$ROOT/site.yaml" --results-dir "$ROOT/results" "$@" &
grid=$!
while kill -0 "$grid" 2>/dev/null; do
    squeue -h -o "%i %T %N" | sort -u >>"$ROOT/squeue.log"
    sleep 2
done
code=0
wait "$grid" || code=$?
echo "exit code $code; jobs that Slurm ran, their states and nodes:"
sort -u "$ROOT/squeue.log"
"$PYTHON" -m hifi_cli ls runs --results-dir "$ROOT/results"
exit "$code"
