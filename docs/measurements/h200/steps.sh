# How the scripts here measure: sourced with `log`, the file for all that is printed, `limit`, the seconds after which no step begins, and
# `each`, the seconds that one may take. The tests' files lie in memory: a driver without HMM maps no others.
: >"$log"
export TMPDIR=/dev/shm GPUVM_TEST_GPUS=cuda:0,cuda:1
step() {
    if [ "$SECONDS" -ge "$limit" ]; then
        echo "not begun: $*"
        return
    fi
    echo "### $*" >>"$log"
    timeout "$each" "$@" >>"$log" 2>&1
    echo "exit status $?, $SECONDS s so far: $*"
}
