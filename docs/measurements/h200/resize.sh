#!/usr/bin/env bash
# The rows of frames that come and go in docs/PERFORMANCE.md, on one NVIDIA GPU: resize.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/resize.txt. No step begins after so many seconds (150 are enough for all), and none takes longer than 120.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/resize.txt
each=120
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
export GPUVM_TEST_GPU=cuda:0
# Whether all of it works at all.
step "$promises" resize:: --test-threads 1
step "$gpuvm" bench resize --gpu cuda:0 --repeat 3
