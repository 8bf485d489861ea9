#!/usr/bin/env bash
# What four GPUs of one host do, beside the predictions of four.md: four.sh GPUVM PROMISES DIR SECONDS
# All that was printed is in DIR/four.txt. No step begins after so many seconds (300 are meant to be enough for all), and none takes longer
# than 75. Environment, to try the commands on simulated GPUs: GPUS=sim,sim,sim,sim SIZES=small; GPUS has four names.
set -uo pipefail
gpuvm=$1 promises=$2 out=$3 limit=$4
mkdir -p "$out"
log=$out/four.txt
each=75
. "$(dirname -- "${BASH_SOURCE[0]}")/steps.sh"
gpus=${GPUS:-cuda:0,cuda:1,cuda:2,cuda:3}
first=${gpus%%,*} others=${gpus#*,}
declare -A inputs=()
homes=(--home "gpu:1,gpu:2,gpu:3")
if [ "${SIZES:-}" = small ]; then
    # A simulated GPU has the neighbours that lend to it.
    homes+=(--borrow 1:16MiB --borrow 2:16MiB --borrow 3:16MiB)
    data=4MiB lent=16MiB tier=64MiB tier_lent=16MiB passes=2
    inputs=([pagerank]=:urand:9:8 [jacobi]=:66x300 [sssp]=:urand:9:8 [als]=:48x32x9 [diffusion]=:34x20x40 [wave]=:64x300)
else
    data=4GiB lent=1536MiB tier=16GiB tier_lent=4GiB passes=16
fi
loans() { for gpu in 1 2 3; do printf -- '--borrow %s:%s ' "$gpu" "$1"; done; }

# Random faults from three neighbours at once, beside bare reads from the same three: kept there, then at home there.
faults=("$gpuvm" bench faults --gpu "$first" --transport direct --data "$data" --frames-share 1/4)
step "${faults[@]}" --access warp,span --repeat 3 $(loans "$lent")
step "${faults[@]}" --access warp,span --repeat 3 "${homes[@]}"

# Applications, each a step of its own. Copies are made where they cost little to set up.
app() {
    local name=$1 forms=$2
    step "$gpuvm" bench gps --gpus "$gpus" --repeat 2 --form "$forms" --app "$name${inputs[$name]:-}"
}
app pagerank broadcast,copies
app jacobi broadcast
app als broadcast,copies
app sssp broadcast,copies
app wave broadcast,copies
app diffusion broadcast

# Consolidation: frames for a quarter, three neighbours that lend the rest.
step "$gpuvm" bench tier --gpu "$first" --data "$tier" $(loans "$tier_lent") --passes "$passes" --repeat 2

# One GPU alone, and with three more in its virtual memory.
hits=("$gpuvm" bench hits --gpu "$first" --transport direct --data "$data" --page-size 4KiB --repeat 3)
for beside in "" "--beside $others"; do
    step "${faults[@]}" --access warp --repeat 3 $beside
    step "${hits[@]}" $beside
done

# Tests on all four.
export GPUVM_TEST_GPUS=$gpus
if [ "${SIZES:-}" = small ]; then unset GPUVM_TEST_GPUS; export GPUVM_TEST_COUNTS=4; fi
for tests in broadcast:: lenders:: shared_regions:: victims::; do
    step "$promises" "$tests" --test-threads 1
done

# Of the applications: the geometric mean of what broadcast arrays on four GPUs gain.
awk -F '|' '/\| form broadcast, gpus 4, input/ && match($0, /speedup [0-9.]+/) {
    speedup = substr($0, RSTART + 8, RLENGTH - 8); gsub(/ /, "", $2); print "speedup of " $2 ": " speedup; sum += log(speedup); ++count
} END { if (count) printf "geometric mean of %d: %.3f\n", count, exp(sum / count) }' "$log" | tee -a "$log"
