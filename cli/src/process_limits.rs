//! Limits that a shell sets for a process (`ulimit`), as far as they stop this one.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Bytes of stack for the command, and for programs that it starts: what Linux gives by default.
pub const STACK_BYTES: usize = 8 << 20;

/// Raises the limit of stacks as far as it may be raised, for programs that are started: a compiler takes megabytes.
pub fn raise_stack() {
    let mut limit = getrlimit(Resource::Stack);
    let wanted = limit
        .maximum
        .map_or(STACK_BYTES as u64, |most| most.min(STACK_BYTES as u64));
    if limit.current.is_some_and(|now| now < wanted) {
        limit.current = Some(wanted);
        // Where it is refused, the compiler says that it cannot run.
        let _ = setrlimit(Resource::Stack, limit);
    }
}

/// Raises the limit of descriptors as far as it may be raised: each memory node takes a few, and nothing here counts them by `select`.
pub fn raise_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Where it is refused, what cannot be opened is said.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Which limit is the likely cause of what is said to have failed, and what to do about it.
pub fn hint(said: &str) -> Option<String> {
    let kib = |bytes: u64| bytes / 1024;
    // No memory; for a thread, "try again".
    let refused = ["(os error 12)", "(os error 11)"]
        .iter()
        .any(|code| said.contains(code));
    if let (true, Some(bytes)) = (refused, getrlimit(Resource::As).current) {
        return Some(format!(
            "this process may have {} KiB of addresses (RLIMIT_AS); raise that limit: ulimit -v unlimited",
            kib(bytes)
        ));
    }
    // A compiler of kernels that the system ended, or that says so of a program of its own.
    let crashed = ["Segmentation fault", "SIGSEGV"].iter().any(|text| said.contains(text))
        && ["C++ compiler", "does not compile"]
            .iter()
            .any(|text| said.contains(text));
    match getrlimit(Resource::Stack).current {
        Some(bytes) if crashed && bytes < STACK_BYTES as u64 => Some(format!(
            "the compiler may have {} KiB of stack (RLIMIT_STACK); raise that limit: ulimit -s {}",
            kib(bytes),
            STACK_BYTES / 1024
        )),
        _ => None,
    }
}
