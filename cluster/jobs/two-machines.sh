#!/usr/bin/env bash
# Two machines without special hardware, one rank on each, with a memory node on the first: SoftRoCE over the network that joins them.
#   cluster/jobs/two-machines.sh HERE THERE pagerank kron:18 --iterations 20
# HERE and THERE are the machines' addresses on that network; both have an rxe0 there (docs/SOFTROCE.md), this folder at the same path, a
# build of gpuvm and gpuvm-mpi, and OpenMPI; ssh to THERE asks for no password. Arguments are those of gpuvm-mpi.
#   GPUVM_BIN           folder of gpuvm and gpuvm-mpi on both (target/release)
#   GPUVM_NODE_MEMORY   memory that the node serves (2GiB)
set -euo pipefail

[ $# -ge 3 ] || { printf 'usage: %s HERE THERE APPLICATION ARGUMENTS\n' "$0" >&2; exit 2; }
here=$1 there=$2
shift 2
bin=$(readlink -f -- "${GPUVM_BIN:-target/release}")
port=7471

"$bin/gpuvm" serve --device rxe0 --listen "$here:$port" --memory "${GPUVM_NODE_MEMORY:-2GiB}" &
node=$!
finish() {
    kill "$node" 2>/dev/null || true
    wait "$node" || true
}
trap finish EXIT
trap 'exit 143' TERM INT
sleep 2

# OpenMPI's own traffic keeps to the network of these addresses.
mpirun --host "$here,$there" -n 2 --mca btl tcp,self --mca btl_tcp_if_include "$here/24" --mca oob_tcp_if_include "$here/24" \
    "$bin/gpuvm-mpi" "$@" --memory-node "$here:$port" --watch-host "$here"
