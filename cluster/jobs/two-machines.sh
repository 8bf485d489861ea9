#!/usr/bin/env bash
# Two machines without special hardware, one rank on each, with a memory node on the first: SoftRoCE over the network that joins them.
#   cluster/jobs/two-machines.sh HERE THERE pagerank kron:18 --iterations 20
# HERE and THERE are the machines' IPv4 addresses on that network; both have an rxe0 there (docs/SOFTROCE.md), this folder at the same path, a
# build of gpuvm and gpuvm-mpi, and OpenMPI; ssh to THERE asks for no password. Arguments are those of gpuvm-mpi. Ranks see this
# environment's GPUVM_*, CXX and LD_LIBRARY_PATH. Environment:
#   GPUVM_BIN           folder of gpuvm and gpuvm-mpi on both (target/release)
#   GPUVM_NODE_MEMORY   memory that the node serves (2GiB)
#   GPUVM_NODE          HOST:PORT of a node that serves already; none: no node, and no RDMA
#   GPUVM_RANKS         ranks of each machine (1)
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
[ $# -ge 3 ] || { say "usage: $0 HERE THERE APPLICATION ARGUMENTS"; exit 2; }
here=$1 there=$2
shift 2
bin=$(readlink -f -- "${GPUVM_BIN:-target/release}")
ranks=${GPUVM_RANKS:-1}
at=${GPUVM_NODE:-$here:7471}
# The network that joins them, as 10.9.0.1/24.
network=$(ip -4 -o address show to "$here" 2>/dev/null | awk '{ print $4; exit }')
[ -n "$network" ] || { say "$here is no IPv4 address of this machine: its own comes first, then the other's"; exit 2; }

job='' node='' said=''
finish() {
    if [ -n "$job" ]; then
        kill "$job" 2>/dev/null || true
        for _ in {1..20}; do kill -0 "$job" 2>/dev/null || break; sleep 0.25; done
        kill -KILL "$job" 2>/dev/null || true
    fi
    [ -z "$node" ] || kill "$node" 2>/dev/null || true
    # What it says at its end; the pipe closes with it.
    [ -z "$said" ] || cat <&"$said"
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

if [ -z "${GPUVM_NODE:-}" ]; then
    exec {said}< <(exec "$bin/gpuvm" serve --device rxe0 --listen "$at" --memory "${GPUVM_NODE_MEMORY:-2GiB}")
    node=$!
    # It pins its memory first, and refuses until then.
    read -r -t 120 -u "$said" line || { say "the memory node does not serve"; exit 1; }
    printf '%s\n' "$line"
fi
[ "$at" = none ] || set -- "$@" --memory-node "$at"

exported=()
for name in "${!GPUVM_@}" CXX LD_LIBRARY_PATH; do
    [ -z "${!name:-}" ] || exported+=(-x "$name")
done
# ssh tells that a machine is gone, a second after gpuvm-mpi's watch has.
export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-ssh -o ServerAliveInterval=1 -o ServerAliveCountMax=6}"
# MPI's own traffic is TCP and keeps to that network: UCX and libfabric would take the RDMA device. A rank has several threads, so none is
# bound to one core.
mpirun --host "$here:$ranks,$there:$ranks" -n "$((2 * ranks))" --bind-to none "${exported[@]}" \
    --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include "$network" --mca oob_tcp_if_include "$network" \
    "$bin/gpuvm-mpi" "$@" --watch-host "$here" &
job=$!

# The processes that mpirun has started here, in $children, and whether a rank is among them.
look() {
    local file name some child
    children=()
    for file in "/proc/$job/task/"*/children; do
        # It has no end of line.
        read -r -a some <"$file" || true
        children+=("${some[@]}")
    done
    for child in "${children[@]}"; do
        read -r name <"/proc/$child/comm" && [ "$name" = gpuvm-mpi ] && return
    done
    return 1
} 2>/dev/null

# OpenMPI 4.1.4's mpirun stays for ever after its ranks where a machine is gone, also when ssh there has ended, and at times for a lock of its own.
seen=''
while kill -0 "$job" 2>/dev/null; do
    if look; then
        seen=${EPOCHREALTIME//[.,]/}
    elif [ -n "$seen" ]; then
        stayed=$(((${EPOCHREALTIME//[.,]/} - seen) / 1000))
        if [ "$stayed" -gt 10000 ] || { [ "$stayed" -gt 2000 ] && [ ${#children[@]} -eq 0 ]; }; then
            say "mpirun has stayed after the last rank of this machine, and is ended"
            kill -KILL "$job" "${children[@]}" 2>/dev/null || true
            break
        fi
    fi
    sleep 0.4
done
wait "$job" 2>/dev/null || { status=$?; job=''; exit "$status"; }
job=''
