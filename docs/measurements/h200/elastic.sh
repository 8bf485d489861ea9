#!/usr/bin/env bash
# The rows of elastic buffers in docs/PERFORMANCE.md, on one NVIDIA GPU: elastic.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/elastic.txt. No step begins after so many seconds (180 are enough for all), and none takes longer than 120.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/elastic.txt
each=120
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
export GPUVM_TEST_GPU=cuda:0
# Whether all of it works at all.
step "$promises" elastic:: --test-threads 1
step "$gpuvm" bench elastic --gpu cuda:0 --repeat 3
