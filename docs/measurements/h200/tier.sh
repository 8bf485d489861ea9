#!/usr/bin/env bash
# The rows of memory borrowed of a neighbour in docs/PERFORMANCE.md, on two NVIDIA GPUs: tier.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/tier.txt. No step begins after so many seconds (300 are enough for all), and none takes longer than 120.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/tier.txt
each=120
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
faults=("$gpuvm" bench faults --gpu cuda:0 --frames-share 1/4 --access warp,span --repeat 3)
step "${faults[@]}" --borrow 1:4608MiB
step "$promises" victims:: --test-threads 1
step "${faults[@]}" --borrow 1:3GiB
step "${faults[@]}" --home gpu:1
# Few slots: what is fetched often displaces what is not.
step "$gpuvm" bench faults --gpu cuda:0 --pattern zipf --frames-share 1/24 --access warp --repeat 3 --borrow 1:704MiB
stream=("$gpuvm" bench faults --gpu cuda:0 --frames-share 1/32 --pattern sequential --access warp,span --repeat 3 --borrow 1:16MiB)
step "${stream[@]}"
for app in pagerank bfs; do
    run=("$gpuvm" run "$app" kron:22 --gpu cuda:0 --memory 25%)
    step "${run[@]}"
    step "${run[@]}" --placement fetch
    step "${run[@]}" --placement fetch --borrow 1:288MiB
    step "${run[@]}" --placement fetch --borrow 1:auto
    step "$gpuvm" run "$app" kron:22 --gpus cuda:0,cuda:1 --memory 100%
done
step "$gpuvm" doctor
step "$gpuvm" bench tier --gpu cuda:0
step "${faults[@]}" --borrow 1:4608MiB --writes 50
