#!/usr/bin/env bash
# The tables of applications in docs/PERFORMANCE.md, on one NVIDIA GPU: apps.sh GPUVM DIR SECONDS PART...
# A report in DIR for each part (dense, irregular, large-pages), resumed where an earlier call ended. A row that is under way
# goes on past the limit.
set -uo pipefail
gpuvm=$1 out=$2 limit=$3
shift 3
mkdir -p "$out"
started=$SECONDS
bench() {
    local left=$((limit - (SECONDS - started))) name=$1
    shift
    "$gpuvm" bench apps --gpu cuda:0 --limit $((left > 1 ? left : 1)) --out "$out/apps-$name.json" "$@" >"$out/apps-$name.txt" 2>/dev/null
    echo "$name: exit status $?, $((SECONDS - started)) s so far"
}
dense=vector-add:12000,mvt:16384,atax:16384,bicg:16384,gesummv:12000,stencil:12000
irregular=stencil:12000,tc:urand:20,knn:clusters:100000:96,query4:trips:33554432,query0:trips:33554432,query2:trips:33554432
irregular+=,query1:trips:33554432,query3:trips:33554432,embedding:1048576,sort:67108864,pagerank:kron:22,bfs:kron:22,sssp:kron:22,cc:kron:22
for part in "$@"; do
    case $part in
        dense) bench dense --repeat 3 --apps "$dense" --page-size 4KiB --frames-share 1,1/2,1/4,1/8 ;;
        irregular)
            bench irregular --repeat 2 --apps "$irregular" --page-size 4KiB --frames-share 1,1/4 --peers raw,host,managed,advised
            ;;
        large-pages) bench large-pages --repeat 2 --apps "$dense,$irregular" --page-size 64KiB --frames-share 1,1/4 --peers raw,host ;;
        *) echo "there is no part $part" >&2; exit 2 ;;
    esac
done
