#!/usr/bin/env bash
# Tiered buffers on one NVIDIA GPU: tiered.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/tiered.txt. No step begins after so many seconds, and none takes longer than 200.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/tiered.txt
each=200
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
export GPUVM_TEST_GPU=cuda:0
# Whether all of it works at all.
step "$promises" tiered:: --test-threads 1
step "$gpuvm" bench tiered --gpu cuda:0 --repeat 3
