//! The way to what only CUDA has: copy engines and managed memory.

use crate::args::MachineArgs;
use crate::bench::machine::Machine;
use crate::error::CliError;

/// CUDA's version that the driver has, and the kernel driver's, where there are any.
pub fn versions() -> (Option<String>, Option<String>) {
    let driver = std::fs::read_to_string("/sys/module/nvidia/version").ok();
    (None, driver.map(|text| text.trim().to_owned()))
}

/// What the driver is told of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It is read more than written.
    ReadMostly,
    /// The GPU reaches it by mapping it.
    AccessedBy,
    /// Its place is the GPU.
    PreferredLocation,
}

/// CUDA's copy engines and managed memory. This version drives no NVIDIA GPU, so there is none.
pub enum Door {}

impl Door {
    /// For the GPU of `machine`, which must be an NVIDIA GPU.
    pub fn open(machine: &Machine, _args: &MachineArgs, what: &str) -> Result<Self, CliError> {
        Err(CliError::NeedsNvidia {
            what: what.to_owned(),
            gpu: machine.vm.gpu_name(),
        })
    }

    /// Seconds of one copy.
    pub fn copy(&self, _to: u64, _from: u64, _bytes: u64) -> Result<f64, CliError> {
        match *self {}
    }

    /// Seconds of two copies at once, given as (to, from) and (to, from), of `bytes` each.
    pub fn copy_both(&self, _to: u64, _from: u64, _to2: u64, _from2: u64, _bytes: u64) -> Result<f64, CliError> {
        match *self {}
    }

    /// Seconds of copies as (to, from, bytes), so many in one call.
    pub fn copy_batches(&self, _copies: &[(u64, u64, u64)], _batch: usize) -> Result<f64, CliError> {
        match *self {}
    }

    /// Managed memory, at most 80 % of what the card has free.
    pub fn managed(&self, _bytes: u64) -> Result<Managed, CliError> {
        match *self {}
    }
}

/// Managed memory.
pub enum Managed {}

impl Managed {
    /// The first byte.
    pub fn addr(&self) -> u64 {
        match *self {}
    }

    /// Tells the driver.
    pub fn advise(&self, _advice: Advice) -> Result<(), CliError> {
        match *self {}
    }

    /// Takes all advice back.
    pub fn forget_advice(&self) -> Result<(), CliError> {
        match *self {}
    }

    /// Moves all of it to the host, and waits.
    pub fn to_host(&self) -> Result<(), CliError> {
        match *self {}
    }

    /// Moves all of it to the GPU; the seconds until it is there.
    pub fn to_gpu(&self) -> Result<f64, CliError> {
        match *self {}
    }
}
