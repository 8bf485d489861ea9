#!/usr/bin/env bash
# A job of Slurm: memory nodes on the first hosts, a rank of gpuvm-mpi for each GPU of the others.
#   sbatch --nodes=6 --gpus-per-node=4 cluster/jobs/slurm.sh pagerank /data/kron30.gcsr --iterations 20
# Arguments are those of gpuvm-mpi. Environment:
#   GPUVM_BIN             folder of gpuvm and gpuvm-mpi, the same on all hosts (target/release)
#   GPUVM_MEMORY_HOSTS    how many hosts serve memory (2)
#   GPUVM_NODE_MEMORY     memory that each of them serves (64GiB)
#   GPUVM_NODE_DEVICE     its RDMA device (mlx5_0)
#   GPUVM_NODE_INTERFACE  the network interface of that device, whose address ranks join (ib0)
#   GPUVM_RANKS_PER_HOST  ranks of each other host (SLURM_GPUS_ON_NODE, else 1)
#   GPUVM_MPI_PLUGIN      what srun --mpi gets (pmix)
#SBATCH --job-name=gpuvm
#SBATCH --exclusive
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
[ -n "${SLURM_JOB_ID:-}" ] || { say "this script is for Slurm: sbatch $0 APPLICATION ARGUMENTS"; exit 2; }
[ $# -gt 0 ] || { say "which application? sbatch $0 pagerank GRAPH"; exit 2; }

bin=$(readlink -f -- "${GPUVM_BIN:-target/release}")
memory_hosts=${GPUVM_MEMORY_HOSTS:-2}
interface=${GPUVM_NODE_INTERFACE:-ib0}
per_host=${GPUVM_RANKS_PER_HOST:-${SLURM_GPUS_ON_NODE:-1}}
port=7471

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${#hosts[@]}" -le "$memory_hosts" ]; then
    say "$memory_hosts hosts serve memory, and the job has ${#hosts[@]}: give --nodes=$((memory_hosts + 1)) or more"
    exit 2
fi
servers=("${hosts[@]:0:memory_hosts}") workers=("${hosts[@]:memory_hosts}")
list() { local IFS=,; printf '%s' "$*"; }

# A secret of this job's own, which all its hosts read in the home folder.
secret=$(mktemp "$HOME/.gpuvm-$SLURM_JOB_ID.XXXXXX")
head -c 32 /dev/urandom | base64 -w 0 >"$secret"
steps=()
finish() {
    # The memory nodes end with their step; a job that was cancelled takes it with it.
    for step in "${steps[@]}"; do kill "$step" 2>/dev/null || true; done
    wait || true
    rm -f "$secret"
}
trap finish EXIT
trap 'exit 143' TERM INT

srun --nodelist="$(list "${servers[@]}")" --nodes="$memory_hosts" --ntasks="$memory_hosts" --ntasks-per-node=1 --overlap \
    --gpus-per-node=0 --label "$bin/gpuvm" serve --device "${GPUVM_NODE_DEVICE:-mlx5_0}" --listen "0.0.0.0:$port" \
    --memory "${GPUVM_NODE_MEMORY:-64GiB}" --secret-file "$secret" &
steps+=($!)

# The address of the interface on each of them.
nodes=()
for server in "${servers[@]}"; do
    address=$(srun --nodelist="$server" --nodes=1 --ntasks=1 --overlap --gpus-per-node=0 \
        ip -4 -o address show dev "$interface" | awk '{ sub("/.*", "", $4); print $4; exit }')
    [ -n "$address" ] || { say "$server has no IPv4 address on $interface: name another by GPUVM_NODE_INTERFACE"; exit 1; }
    nodes+=(--memory-node "$address:$port")
done
# A node that is not there yet refuses: it pins its memory first.
sleep "${GPUVM_NODE_WAIT:-10}"

# A rank that is lost ends the step, as gpuvm-mpi's own watch does.
srun --nodelist="$(list "${workers[@]}")" --nodes="${#workers[@]}" --ntasks-per-node="$per_host" \
    --ntasks="$((${#workers[@]} * per_host))" --overlap --mpi="${GPUVM_MPI_PLUGIN:-pmix}" --kill-on-bad-exit=1 \
    "$bin/gpuvm-mpi" "$@" --gpu cuda --transport mlx5 "${nodes[@]}" --secret-file "$secret"
