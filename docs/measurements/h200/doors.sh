#!/usr/bin/env bash
# The doors that users come through, and files, on one GPU: doors.sh DIR OUT SECONDS
# DIR has gpuvm, cuda and promises of tests/gpu/pack, libgpuvm.so, `cudarc` (the example), `nvcc` and `nvcc33` (nvcc.cpp by nvcc with GPUVM_FEATURES=1 and 33)
# and a wheel of gpuvm. All that was printed is in OUT/doors.txt. No step begins after so many seconds.
set -uo pipefail
dir=$1 out=$2 limit=$3
mkdir -p "$out"
log=$out/doors.txt
each=${EACH:-150}
here=$(dirname -- "${BASH_SOURCE[0]}")
. "$here/steps.sh"
export GPUVM_REQUIRE_CUDA=1 LD_LIBRARY_PATH=$dir:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
only=${ONLY:-all}
wanted() { [ "$only" = all ] || [[ ",$only," == *",$1,"* ]]; }
nvidia-smi -L >>"$log"

if wanted launch; then step "$dir/nvcc"; fi
if wanted images; then
    step "$dir/cuda" images:: --test-threads 1
    step "$dir/cudarc"
fi
if wanted timeline; then
    GPUVM_TRACE=$out/timeline.json step "$dir/nvcc33"
    step python3 - "$out" <<'P'
import collections, glob, json, sys
for name in glob.glob(sys.argv[1] + "/timeline*.json"):
    events = json.load(open(name))
    events = events["traceEvents"] if isinstance(events, dict) else events
    counted = collections.Counter((event.get("cat", ""), event["name"]) for event in events if event.get("ph") != "M")
    print(name.rsplit("/", 1)[1], len(events), counted.most_common(12))
P
    rm -f "$out"/timeline*.json
fi
if wanted take; then
    step "$dir/gpuvm" bench take --gpu cuda:0 --transport direct --data 64GiB --repeat 4
    python3 -m pip install --quiet --no-index --no-deps --target "$out/site" "$dir"/gpuvm-*.whl
    PYTHONPATH=$out/site step python3 "$here/take.py" 64 64
    rm -rf "$out/site"
fi
if wanted files; then
    disk=${DISK:-$PWD}
    # Where tests have their files, too: memory has no O_DIRECT.
    for depth in 128 512 4096; do
        step "$dir/gpuvm" bench files --gpu cuda:0 --dir "$disk" --data 2GiB --file-cache 256MiB --depth "$depth" --repeat 2
    done
    step "$dir/gpuvm" convert kron:21 "$disk/kron21.gcsr"
    step "$dir/gpuvm" run bfs "$disk/kron21.gcsr" --gpu cuda:0 --file-cache 64MiB --memory 32MiB
    step "$dir/gpuvm" run bfs "$disk/kron21.gcsr" --gpu cuda:0 --memory 32MiB
    rm -f "$disk/kron21.gcsr"
    GPUVM_TEST_GPU=cuda:0 step "$dir/promises" file_cache:: mapped_files:: --test-threads 1
fi
