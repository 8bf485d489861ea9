//! Variables of the environment by which `gpuvm exec` hands its options to the library that it has the loader put into a program.

/// Page size in bytes.
pub const PAGE_SIZE: &str = "GPUVM_EXEC_PAGE_SIZE";
/// Most bytes of the GPU's memory.
pub const FRAMES: &str = "GPUVM_EXEC_FRAMES";
/// Most registers of a thread.
pub const REGISTERS: &str = "GPUVM_EXEC_REGISTERS";
/// Anything: nothing is printed at the end.
pub const QUIET: &str = "GPUVM_EXEC_QUIET";
/// Anything: times are printed too.
pub const VERBOSE: &str = "GPUVM_EXEC_VERBOSE";
