#!/usr/bin/env bash
# Prints the path of nvcc, which compiles programs that have kernels of their own, without a GPU. It comes from PyPI into
# the build folder, once, with what it needs. Fails where that cannot be done.
set -euo pipefail
folder=$1/nvcc-13.0
if [ ! -x "$folder/bin/nvcc" ]; then
    command -v python3 >/dev/null || exit 1
    part=$(mktemp -d "$1/nvcc.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$part/wheels" \
        'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' >&2
    for wheel in "$part"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$part/all"; done
    # Wheels have no modes.
    chmod +x "$part"/all/nvidia/cu13/bin/* "$part"/all/nvidia/cu13/nvvm/bin/*
    # Where nvcc's profile looks for libraries.
    ln -s lib "$part/all/nvidia/cu13/lib64"
    rm -rf "$folder"
    mv "$part/all/nvidia/cu13" "$folder"
fi
echo "$folder/bin/nvcc"
