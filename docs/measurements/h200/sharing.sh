#!/usr/bin/env bash
# The rows of docs/PERFORMANCE.md about memory that grows, shrinks and is shared, on one NVIDIA GPU:
#   sharing.sh GPUVM KV_CACHE PROMISES DIR SECONDS
# All that was printed is in DIR/sharing.txt. No step begins after so many seconds (400 are enough for all), and none takes longer than 150.
set -uo pipefail
gpuvm=$1 kv_cache=$2 promises=$3 out=$4 limit=$5
mkdir -p "$out"
log=$out/sharing.txt
each=150
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
export GPUVM_TEST_GPU=cuda:0
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >>"$log" 2>&1
step "$gpuvm" bench tenants --gpu cuda:0 --repeat 3 --bursts 10
step "$gpuvm" bench resize --gpu cuda:0 --repeat 3
for _ in 1 2 3; do
    step "$kv_cache" --gpu cuda:0
done
step "$promises" resize:: short_memory:: --test-threads 1
step "$gpuvm" bench elastic --gpu cuda:0 --repeat 3
