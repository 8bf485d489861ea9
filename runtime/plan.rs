//! What a virtual memory is to be, as plain values: whatever of the settings is left when they have been checked.

mod kind;
mod queues;

use std::{ops::Range, path::PathBuf, time::Duration};

use gpuvm_gpu::{CompileOptions, Gpu};
use gpuvm_layouts as layout;

use crate::{
    error::{Error, Result},
    placement::Placement,
    tenancy::Tenancy,
    timeline::Timeline,
};

pub use kind::TransportKind;
pub(crate) use queues::{PAIRS, PAIRS_WITH_FILE_CACHE, QueuePlan, fitting};

/// How much memory a neighbour GPU lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loan {
    /// This many bytes, from the start on.
    Bytes(u64),
    /// What its owner does not use, no more than what was free when the virtual memory was made. A sixteenth of its memory always stays free
    /// there. The loan begins small, and grows by a quarter of itself at most when few slots are free, between launches. When the owner, or another process there, leaves less free than the reserve, what
    /// is missing is taken back at once, also while launches run, and is free when they have ended.
    Auto,
}

/// A folder of modules that were compiled before.
#[derive(Debug, Clone)]
pub(crate) enum Precompiled {
    /// They are looked for there.
    In(PathBuf),
    /// They are put there.
    Into(PathBuf),
}

impl Loan {
    /// Bytes that are lent and given back together: few enough to take back gigabytes by one copy of flags.
    pub const CHUNK: u64 = 16 << 20;
}

impl From<u64> for Loan {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

/// What any virtual memory has, whatever its GPU and its transport.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Bytes.
    pub frame_memory: u64,
    /// Most bytes of frames that there may be, where their number changes.
    pub frame_capacity: Option<u64>,
    /// Bytes of frames that stay when memory is needed elsewhere; none: an eighth of `frame_memory`.
    pub frame_minimum: Option<u64>,
    /// Who gives memory first when it is short.
    pub frame_priority: i32,
    /// Bytes of the GPU that the frames leave free.
    pub frames_leave_free: Option<u64>,
    /// Bytes.
    pub page_size: u64,
    pub wait_limit: Duration,
    pub launch_deadline: Duration,
    /// Of regions that say nothing of it; none: what suits each.
    pub placement: Option<Placement>,
    pub bring_beside: Option<bool>,
    pub regions_max: u32,
    /// Whether regions may have checksums or replicas.
    pub reliable: bool,
    /// GPUs of the virtual memory.
    pub gpu_count: usize,
    /// Memory of neighbour GPUs, by their ordinals, for clean pages that leave their frames.
    pub borrowed: Vec<(u32, Loan)>,
    /// Bytes that a neighbour takes back together, at least a page: a power of two.
    pub borrowed_chunk: u64,
    pub support_options: CompileOptions,
    /// Of a simulated GPU.
    pub precompiled: Option<Precompiled>,
    /// How the process shares the GPUs with others.
    pub tenancy: Tenancy,
    pub file_cache: Option<FileCache>,
    /// Where the homes of all regions lie that rewritten kernels use, which then find them at their homes' own addresses.
    pub window: Option<Range<u64>>,
    pub timeline: Option<Timeline>,
}

/// The page cache for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileCache {
    pub bytes: u64,
    /// It is the GPU's, not the host's.
    pub on_gpu: bool,
}

impl Settings {
    /// Whole frames that the memory holds.
    pub fn frames(&self) -> u64 {
        self.frame_memory / self.page_size.max(1)
    }

    /// How many frames there are at first and may be at most: where their number changes, whole units of `unit` bytes.
    pub fn frames_in(&self, unit: u64) -> Result<(u64, u64)> {
        let Some(capacity) = self.frame_capacity else {
            return Ok((self.frames(), self.frames()));
        };
        let frames = |bytes: u64| bytes / unit * unit / self.page_size;
        if frames(self.frame_memory) == 0 {
            let value = format!("{} bytes", self.frame_memory);
            let reason = format!(
                "with a resizable frame pool it must be at least {unit} bytes: one allocation of this GPU, or one page"
            );
            return refuse("frame memory", value, reason);
        }
        Ok((frames(self.frame_memory), frames(capacity)))
    }

    fn check_frame_capacity(&self) -> Result<()> {
        let spelled = |bytes: u64| format!("{bytes} bytes");
        if let Some(capacity) = self.frame_capacity {
            if capacity < self.frame_memory {
                let reason = format!("it must be at least the frame memory, {} bytes", self.frame_memory);
                return refuse("frame capacity", spelled(capacity), reason);
            }
            if capacity / self.page_size > layout::FRAMES_MAX {
                let reason = "page table entries address at most 2^28 - 1 frames: use larger pages";
                return refuse("frame capacity", spelled(capacity), reason);
            }
        }
        if let (Some(bytes), None) = (self.frames_leave_free, self.frame_capacity) {
            let reason = "the frame pool is not resizable: set frame_capacity";
            return refuse("memory that frames leave free", spelled(bytes), reason);
        }
        match self.frame_minimum {
            Some(least) if self.frame_capacity.is_none() => {
                let reason = "the frame pool is not resizable: set frame_capacity, or leave frame_minimum out";
                refuse("frame minimum", spelled(least), reason)
            }
            Some(least) if least > self.frame_memory => {
                let reason = format!("it must be at most the frame memory, {} bytes", self.frame_memory);
                refuse("frame minimum", spelled(least), reason)
            }
            _ => Ok(()),
        }
    }

    pub fn check(&self) -> Result<()> {
        let sizes = layout::PAGE_BYTES_MIN..=layout::PAGE_BYTES_MAX;
        if !self.page_size.is_power_of_two() || !sizes.contains(&self.page_size) {
            let value = format!("{} bytes", self.page_size);
            return refuse("page size", value, "it must be a power of two from 4 KiB to 2 MiB");
        }
        if self.frames() == 0 {
            let value = format!("{} bytes", self.frame_memory);
            return refuse("frame memory", value, "it must hold at least one page");
        }
        if self.frames() > layout::FRAMES_MAX {
            let reason = "page table entries address at most 2^28 - 1 frames: use larger pages";
            return refuse("frame memory", format!("{} frames", self.frames()), reason);
        }
        if !(1..=layout::REGIONS_MAX).contains(&self.regions_max) {
            let reason = "it must be between 1 and 65536";
            return refuse("regions_max", self.regions_max.to_string(), reason);
        }
        self.check_frame_capacity()?;
        if self.wait_limit.is_zero() || self.launch_deadline.is_zero() {
            return refuse(
                "wait limit or launch deadline",
                "zero".into(),
                "it must be greater than zero",
            );
        }
        Ok(())
    }
}

impl Settings {
    /// Who lends memory to a GPU, and how much: of several GPUs of a virtual memory each borrows of the others.
    pub fn lenders(&self, gpu: &dyn Gpu) -> Vec<(u32, Loan)> {
        let own = gpu.ordinal().filter(|_| self.gpu_count > 1);
        let others = self.borrowed.iter().filter(|(ordinal, _)| own != Some(*ordinal));
        others.copied().collect()
    }
}

/// The refusal of a setting.
pub(crate) fn refuse<T>(setting: &'static str, value: String, reason: impl Into<String>) -> Result<T> {
    let reason = reason.into();
    Err(Error::Setting { setting, value, reason })
}
