//! What a compiler's log means to the user.

use crate::api::Source;
use crate::error::GpuError;
use crate::sim::rewrite;

/// The error for a kernel that `source` does not have, when all errors of the log are in generated lines.
pub(crate) fn missing_kernel(
    source: &Source,
    kernels: &[&str],
    log: &str,
    generated: impl Fn(&str) -> bool,
) -> Option<GpuError> {
    let mut errors = log.lines().filter(|line| line.contains("error:")).peekable();
    errors.peek()?;
    if !errors.all(generated) {
        return None;
    }
    let known = rewrite::kernel_names(&source.text);
    let base = |kernel: &str| {
        let plain = kernel.split('<').next().unwrap_or(kernel);
        plain.rsplit("::").next().unwrap_or(plain).trim().to_owned()
    };
    let name = kernels.iter().find(|kernel| !known.contains(&base(kernel)))?;
    Some(GpuError::KernelNotFound {
        name: (*name).to_owned(),
        module: source.name.clone(),
        known,
    })
}
