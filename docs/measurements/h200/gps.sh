#!/usr/bin/env bash
# The rows of broadcast arrays in docs/PERFORMANCE.md, on two NVIDIA GPUs: gps.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/gps.txt, the report in DIR/gps.json and DIR/gps.svg. No step begins after so many seconds, and none takes
# longer than 200.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/gps.txt
: >"$log"
export TMPDIR=/dev/shm GPUVM_TEST_GPUS=cuda:0,cuda:1
step() {
    if [ "$SECONDS" -ge "$limit" ]; then
        echo "not begun: $*"
        return
    fi
    echo "### $*" >>"$log"
    timeout 200 "$@" >>"$log" 2>&1
    echo "exit status $?, $SECONDS s so far: $*"
}
step "$promises" broadcast:: --test-threads 1
step "$gpuvm" bench gps --gpus cuda:0,cuda:1 --json "$out/gps.json" --svg "$out/gps.svg"
