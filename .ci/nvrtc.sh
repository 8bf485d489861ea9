#!/usr/bin/env bash
# Prints a folder to put on the loader's path for libnvrtc, CUDA's run-time compiler, which checks device code without
# a GPU; `nvdisasm`, which shows what came out, lies there too. They come from PyPI into the build folder, once. Fails
# where that cannot be done.
set -euo pipefail
folder=$1/nvrtc-13.0
if [ ! -e "$folder/libnvrtc.so" ] || [ ! -x "$folder/nvdisasm" ]; then
    command -v python3 >/dev/null || exit 1
    part=$(mktemp -d "$1/nvrtc.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$part" \
        'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-nvdisasm==13.5.*' >&2
    mkdir "$part/lib"
    python3 - "$part" <<'PY'
import glob, os, shutil, sys, zipfile
part = sys.argv[1]
for path in glob.glob(part + "/*.whl"):
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if "/lib/libnvrtc" in name or name.endswith("/bin/nvdisasm"):
                with wheel.open(name) as source, open(os.path.join(part, "lib", os.path.basename(name)), "wb") as target:
                    shutil.copyfileobj(source, target)
PY
    chmod +x "$part/lib/nvdisasm"
    ln -s libnvrtc.so.13 "$part/lib/libnvrtc.so"
    rm -rf "$folder"
    mv "$part/lib" "$folder"
fi
echo "$folder"
