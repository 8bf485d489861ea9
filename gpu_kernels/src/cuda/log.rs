//! NVRTC's log: what of it is shown to a user, and what ptxas says of each kernel.

/// What ptxas says of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack frame.
    pub stack_bytes: u32,
    /// Bytes of registers that are stored to local memory because there are too few, in the kernel and the functions
    /// that it calls.
    pub spill_store_bytes: u32,
    /// Bytes of registers that are loaded back from there.
    pub spill_load_bytes: u32,
    /// Static shared memory of a block in bytes.
    pub shared_bytes: u32,
}

/// What the log of `--ptxas-options=-v` says of the kernel whose name in the binary is `lowered`.
pub(crate) fn usage(log: &str, lowered: &str) -> Option<Usage> {
    let mut lines = log.lines();
    let start = format!("Compiling entry function '{lowered}' for");
    lines.by_ref().find(|line| line.contains(&start))?;
    let mut usage = Usage::default();
    let mut own = false;
    let mut found = false;
    // Up to the next kernel: its own properties, its registers, and those of functions that were compiled apart.
    for line in lines.take_while(|line| !line.contains("Compiling entry function")) {
        if let Some(name) = line.split("Function properties for ").nth(1) {
            own = name.trim() == lowered;
        } else if line.contains("bytes stack frame") {
            if own {
                usage.stack_bytes = before(line, " bytes stack frame");
            }
            usage.spill_store_bytes += before(line, " bytes spill stores");
            usage.spill_load_bytes += before(line, " bytes spill loads");
        } else if line.contains("Used ") && line.contains(" registers") {
            usage.registers = before(line, " registers");
            usage.shared_bytes = before(line, " bytes smem");
            found = true;
        }
    }
    found.then_some(usage)
}

/// The number before `what`.
fn before(line: &str, what: &str) -> u32 {
    let head = line.split(what).next().filter(|head| head.len() < line.len());
    let digits = head.and_then(|head| head.rsplit(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The log without ptxas' lines, without NVRTC's remarks, and without warnings in headers that `ours` names.
pub(crate) fn for_user(log: &str, ours: impl Fn(&str) -> bool) -> String {
    let mut shown = String::new();
    let mut keep = true;
    for line in log.lines() {
        if line.starts_with("ptxas info") || line.starts_with("ptxas  ") {
            continue;
        }
        if let Some(place) = diagnostic(line) {
            keep = !(line.contains(": warning") && ours(place));
        } else if line.starts_with("Remark: The warnings can be suppressed") {
            keep = false;
        } else if line.contains(" detected in the compilation of ") {
            keep = true;
        }
        if keep {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    while shown.contains("\n\n\n") {
        shown = shown.replace("\n\n\n", "\n\n");
    }
    shown.trim().to_owned()
}

/// The file of a line that starts a diagnostic, `file(12): error: ...`.
fn diagnostic(line: &str) -> Option<&str> {
    let (place, _) = line.split_once("): ")?;
    let (file, number) = place.rsplit_once('(')?;
    let plain = !file.is_empty() && !file.starts_with(char::is_whitespace);
    (plain && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTXAS: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3bigPf' for 'sm_90'
ptxas info    : Function properties for _Z3bigPf
ptxas         .     304 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 178 registers, used 1 barriers, 304 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 756.015 ms
ptxas info    : Function properties for _Z5outerv
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'big' for 'sm_90'
ptxas info    : Function properties for big
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers";

    #[test]
    fn ptxas_lines_become_usage() {
        let big = usage(PTXAS, "_Z3bigPf").expect("the kernel");
        assert_eq!((big.registers, big.stack_bytes, big.shared_bytes), (178, 304, 1024));
        assert_eq!((big.spill_store_bytes, big.spill_load_bytes), (12, 12));
        let small = usage(PTXAS, "big").expect("the kernel");
        assert_eq!((small.registers, small.spill_store_bytes), (8, 0));
        assert_eq!(usage(PTXAS, "_Z3big"), None);
    }

    #[test]
    fn warnings_of_own_headers_are_left_out() {
        let log = format!(
            "gpuvm/array.cuh(3): warning #177-D: variable \"x\"\n  int x;\n      ^\n\nmy.cu(7): warning #9: mine\n  here\n\n\
             Remark: The warnings can be suppressed with x\n\ngpuvm/array.cuh(9): error: bad\n  there\n\n\
             1 error detected in the compilation of \"my.cu\".\n{PTXAS}"
        );
        let shown = for_user(&log, |file| file.starts_with("gpuvm/"));
        assert!(!shown.contains("177-D") && !shown.contains("int x;"), "{shown}");
        assert!(!shown.contains("Remark") && !shown.contains("ptxas"), "{shown}");
        for part in ["my.cu(7)", "here", "gpuvm/array.cuh(9): error", "1 error detected"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }
}
