# Sourced by ./run and ./test: makes sure that the tools are there.
# Debian and Ubuntu packages are installed where apt may be used without a prompt; else they are listed.

say() { printf '%s\n' "$*" >&2; }

# The build of ./test and of what it runs: optimised, with the checks that a debug build has, and without what takes time to make and no
# test needs, which are line tables and optimisation across a crate's units. Programs read the device library when they run, so that a change of it builds nothing.
for_tests() {
    export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=none
    export GPUVM_HEADERS=read
}

# Prints how apt-get may be called, fails where it may not.
apt_command() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -eq 0 ]; then
        echo "env DEBIAN_FRONTEND=noninteractive apt-get"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        echo "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get"
    else
        return 1
    fi
}

# install PACKAGE...: fails where apt may not be used or does not succeed. Its output is shown only then.
install() {
    local apt log
    apt=$(apt_command) || return 1
    log=$(mktemp)
    say "installing $*"
    # Package lists may be missing or old; a mirror that is down must not hide a package that is cached.
    # shellcheck disable=SC2086 # the command is several words
    if { $apt update -q || true; } >"$log" 2>&1 && $apt install -q -y --no-install-recommends "$@" >>"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
}

# The compiler that links Rust programs and compiles kernels for the simulated GPU.
need_compiler() {
    if command -v cc >/dev/null && { command -v g++ >/dev/null || command -v clang++ >/dev/null; }; then
        return 0
    fi
    install g++ && return 0
    say "A C++17 compiler is missing: gpuvm compiles kernels with g++ or clang++, and Rust links with cc."
    say "  Debian, Ubuntu:  sudo apt-get install g++"
    say "  Fedora:          sudo dnf install gcc-c++"
    say "  Arch:            sudo pacman -S gcc"
    return 1
}

# Rust as new as Cargo.toml asks for. Distributions' packages are mostly older, so rustup is named.
need_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$ROOT/Cargo.toml" | head -n 1)
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    if command -v cargo >/dev/null && command -v rustc >/dev/null; then
        found=$(rustc --version | cut -d ' ' -f 2)
        if [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ]; then
            return 0
        fi
        say "Rust $found is too old: gpuvm needs $wanted or newer. With rustup:  rustup update stable"
    else
        say "Rust is missing: gpuvm needs cargo and rustc $wanted or newer."
    fi
    say "  Install it from https://rustup.rs:"
    say "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    return 1
}

# What runs the tests: the one that is installed, or one that is built into the build folder, once (4 minutes on two cores).
need_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return 0
    local tools=${CARGO_TARGET_DIR:-$ROOT/target}/tools
    PATH=$tools/bin:$PATH
    [ -x "$tools/bin/cargo-nextest" ] && return 0
    say "building cargo-nextest (to have it for all projects: cargo install --locked cargo-nextest)"
    cargo install --quiet --locked --version 0.9.143 --root "$tools" --target-dir "$tools/build" cargo-nextest && rm -rf "$tools/build"
}

# want COMMAND PACKAGE WHY: a tool that is nice to have; says so and fails where it is not available.
want() {
    command -v "$1" >/dev/null && return 0
    install "$2" && return 0
    say "$1 is missing (package $2): $3"
    return 1
}

# What python/test needs: Python that makes environments with pip in them, which Debian has in a package of its own. `python3 -m venv --help`
# works without it.
need_python() {
    makes_environments() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
    makes_environments && return 0
    # Another python3 may come first on the path.
    install python3-venv && makes_environments && return 0
    say "python3 with venv and ensurepip is missing: the Python package is built and tested in an environment of its own."
    say "  Debian, Ubuntu:  sudo apt-get install python3-venv"
    say "  Fedora, Arch:    they come with python3"
    return 1
}

# The library with which bindgen reads C headers: what builds with MPI needs it, and the independent client of tests/softroce.
has_libclang() {
    # Not grep -q: it would end the list early, which pipefail takes for a failure.
    [ -n "${LIBCLANG_PATH:-}" ] || { ldconfig -p 2>/dev/null; compgen -G '/usr/lib*/llvm*/lib*/libclang*.so*'; } |
        grep 'libclang[-.0-9]*\.so' >/dev/null
}

# What tests/softroce needs: QEMU for machines where the kernel has no rdma_rxe ("vm"), and the RDMA programs that run
# beside gpuvm. The kernel itself comes from a package that is unpacked, not installed, for which apt's lists must be there.
need_softroce() {
    local missing=() item
    local items=(ib_read_bw:perftest rping:rdmacm-utils ibv_devinfo:ibverbs-utils rdma:iproute2 mpirun:openmpi-bin mpicc:libopenmpi-dev)
    if [ "${1:-}" = vm ]; then
        items+=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static depmod:kmod xz:xz-utils setpriv:util-linux ssh:openssh-client
            dmsetup:dmsetup mkfs.ext4:e2fsprogs)
        # Under systemd the package starts a server that lets users in: that is for the machine's owner to decide. One scenario asks for it.
        [ -d /run/systemd/system ] || items+=(sshd:openssh-server)
    fi
    for item in "${items[@]}"; do
        # Programs for administrators are not on every user's path.
        PATH="$PATH:/usr/sbin:/sbin" command -v "${item%%:*}" >/dev/null || missing+=("${item#*:}")
    done
    # Without it libibverbs knows no rxe device; librdmacm is not linked by anything but rdmacm-utils here.
    compgen -G '/usr/lib/*/libibverbs/librxe*.so' >/dev/null || missing+=(ibverbs-providers)
    compgen -G '/usr/lib/*/librdmacm.so.1' >/dev/null || missing+=(librdmacm1)
    # The independent client's library configures a copy of rdma-core, binds it, and links with the system's libibverbs.
    command -v cmake >/dev/null || missing+=(cmake)
    has_libclang || missing+=(libclang-dev)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    [ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
    [ -e /usr/include/libnl3/netlink/route/rtnl.h ] || missing+=(libnl-3-dev libnl-route-3-dev)
    if [ ${#missing[@]} -gt 0 ] && ! install "${missing[@]}"; then
        say "Missing for the SoftRoCE tests; on Debian and Ubuntu:  sudo apt-get install ${missing[*]}"
        return 1
    fi
    # A busybox that is linked dynamically does not run as the first program of a machine.
    if [ "${1:-}" = vm ] && ! busybox_is_static; then
        install busybox-static || { say "busybox is not the static one:  sudo apt-get install busybox-static"; return 1; }
    fi
}

busybox_is_static() {
    ! ldd "$(command -v busybox)" >/dev/null 2>&1
}

need_tools() {
    local ok=0
    need_compiler || ok=1
    need_rust || ok=1
    return $ok
}
