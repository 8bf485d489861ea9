#!/usr/bin/env bash
# Prints the path of mdbook, which makes the guide's pages: the one that is installed, or one that is built into the build folder, once
# (82 s on two cores). Fails where it is not available.
#   .ci/mdbook.sh FOLDER
set -euo pipefail
if command -v mdbook; then exit 0; fi
folder=$1/tools
if [ ! -x "$folder/bin/mdbook" ]; then
    cargo install --quiet --locked --version 0.5.4 --no-default-features --features search \
        --root "$folder" --target-dir "$1/tools-build" mdbook >&2
    rm -rf "$1/tools-build"
fi
echo "$folder/bin/mdbook"
