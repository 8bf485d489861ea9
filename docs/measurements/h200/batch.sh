#!/usr/bin/env bash
# Two builds of `gpuvm` in turn, twice: whether a warp that turns the clock for its lanes costs hits, faults or applications anything.
#   batch.sh OLD NEW LOG hits|faults|rows|apps [SECONDS]
# OLD is of the revision before the change. Begins nothing after SECONDS (500 by default); prints the rows of all reports.
set -u
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
old=$1 new=$2 log=$3 part=$4 limit=${5:-500} each=120
. "$here/steps.sh"

hits() { step "$1" bench hits --data 4GiB; }
faults() {
    queues "$1"
    local both='--page-size 4KiB,64KiB --frames-share 1/4'
    step "$1" bench faults --gpu cuda:0 --transport direct $both --access warp,span --writes 0,100
    step "$1" bench faults --gpu cuda:0 --transport direct $both --access lanes
}
queues() {
    local both='--page-size 4KiB,64KiB --frames-share 1/4'
    step "$1" bench faults --gpu cuda:0 --transport soft $both --access warp --writes 0,100
    step "$1" bench faults --gpu cuda:0 --transport soft $both --access lanes
}
# The rows that README has of hits, faults and latency, in a third of the time.
rows() {
    step "$1" bench latency --gpu cuda:0
    step "$1" bench faults --gpu cuda:0 --transport direct --page-size 4KiB --frames-share 1/4 --access warp --writes 0,100
    step "$1" bench hits --gpu cuda:0 --data 1GiB --page-size 4KiB
}
apps() {
    step "$1" bench apps --apps vector-add,gesummv,sort,bfs --page-size 4KiB --frames-share 1/4 --placement auto,fetch --peers raw
}
for round in 1 2; do
    "$part" "$old"
    "$part" "$new"
done
grep -E '^(###|\|)' "$log"
