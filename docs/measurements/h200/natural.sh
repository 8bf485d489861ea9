#!/usr/bin/env bash
# Plain loops over `a[i]` on one GPU, beside the raw pointer, the host's memory in place and managed memory: 1 GiB and 16 GiB by the direct
# transport and by the software NIC, and 64 GiB for what is gathered.
#   natural.sh GPUVM LOG [SECONDS]
# GPUVM is the built command. Prints all tables; the log has them, too. Each part has its time, after which it begins no row and prints what it has;
# no part begins after SECONDS (480). The host needs 70 GiB of memory.
set -u
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
gpuvm=$1 log=$2 limit=${3:-480} each=200
. "$here/steps.sh"

# part SECONDS ARGUMENTS..
part() {
    local seconds=$1 left=$((limit - SECONDS))
    shift
    [ "$seconds" -le "$left" ] || seconds=$((left > 0 ? left : 1))
    step "$gpuvm" bench natural --gpu cuda:0 --page-size 4KiB,64KiB --frames-share 1,1/2,1/4 --limit "$seconds" "$@"
}
part 90 --transport direct --data 1GiB --repeat 2
part 130 --transport direct --data 16GiB --repeat 1 --launches 2
part 140 --transport direct --data 64GiB --loops gather,rows --repeat 1 --launches 2
part 70 --transport soft --data 1GiB --repeat 1 --launches 2
part 50 --transport soft --data 16GiB --loops sum,rows,row-sums --repeat 1 --launches 2
grep -E '^(###|natural:|\||not measured)' "$log"
