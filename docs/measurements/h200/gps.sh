#!/usr/bin/env bash
# The rows of broadcast arrays in docs/PERFORMANCE.md, on two NVIDIA GPUs: gps.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/gps.txt, a plot an application in DIR. No step begins after so many seconds, and none takes longer than
# 150.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/gps.txt
each=150
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
step "$promises" broadcast:: --test-threads 1
bench=("$gpuvm" bench gps --gpus cuda:0,cuda:1 --repeat 3)
# Small ones first: whether all of it works at all.
step "${bench[@]}" --iterations 10 --form broadcast,peer-loads,copies \
    --app jacobi:4096x4096,pagerank:urand:18,sssp:urand:18,als:65536x8192x32,diffusion:256x256x256,wave:4096x4096
step "${bench[@]}" --app streams
for app in jacobi wave diffusion pagerank sssp als; do
    step "${bench[@]}" --app "$app" --plot "$out/gps-$app.svg"
done
