//! The runtime's own kernels, from the same device library that user kernels use.

use std::sync::Arc;

use gpuvm_gpu::{CompileOptions, Gpu, Kernel, Source, Stream};
use gpuvm_layouts as layout;

use crate::{
    error::{Doing, Result},
    plan::{Settings, TransportKind},
};

/// The name of their source, and its text.
pub(crate) const SOURCE: (&str, &str) = ("gpuvm_support.cu", include_str!("support.cu"));

/// Those of a virtual memory.
pub(crate) fn kernels(has_timeline: bool) -> Vec<&'static str> {
    let mut names = vec![
        "gpuvm_version",
        "gpuvm_flush",
        "gpuvm_release",
        "gpuvm_reap",
        "gpuvm_mark_stale",
        "gpuvm_catch_up",
        "gpuvm_clear_errors",
        "gpuvm_read_home",
        "gpuvm_forward_atomics",
        "gpuvm_bring_copy",
        "gpuvm_change_frames",
        "gpuvm_hold",
        "gpuvm_bring",
        "gpuvm_give_way",
        "gpuvm_take_marks",
        "gpuvm_write_entries",
        "gpuvm_survey",
        "gpuvm_take_free",
        "gpuvm_give_free",
        "gpuvm_bring_beside",
        "gpuvm_clear_marks",
        "gpuvm_leave_slots",
    ];
    if has_timeline {
        names.push("gpuvm_clock");
    }
    names
}

pub(super) struct Support {
    pub version: Arc<dyn Kernel>,
    pub flush: Arc<dyn Kernel>,
    pub release: Arc<dyn Kernel>,
    pub reap: Arc<dyn Kernel>,
    pub mark_stale: Arc<dyn Kernel>,
    pub catch_up: Arc<dyn Kernel>,
    pub clear_errors: Arc<dyn Kernel>,
    pub read_home: Arc<dyn Kernel>,
    pub forward_atomics: Arc<dyn Kernel>,
    pub bring_copy: Arc<dyn Kernel>,
    pub change_frames: Arc<dyn Kernel>,
    pub hold: Arc<dyn Kernel>,
    pub bring: Arc<dyn Kernel>,
    pub bring_beside: Arc<dyn Kernel>,
    pub clear_marks: Arc<dyn Kernel>,
    pub leave_slots: Arc<dyn Kernel>,
    pub give_way: Arc<dyn Kernel>,
    pub take_marks: Arc<dyn Kernel>,
    pub write_entries: Arc<dyn Kernel>,
    pub survey: Arc<dyn Kernel>,
    pub take_free: Arc<dyn Kernel>,
    pub give_free: Arc<dyn Kernel>,
    /// None where there is no timeline.
    pub clock: Option<Arc<dyn Kernel>>,
    pub stream: Arc<dyn Stream>,
    /// Of what goes on beside everything else.
    pub background: Arc<dyn Stream>,
    /// Of what brings pages beside launches.
    pub beside: Arc<dyn Stream>,
}

impl Support {
    pub fn compile(gpu: &dyn Gpu, options: &CompileOptions, has_timeline: bool) -> Result<Self> {
        let doing = || "compiling the runtime's own kernels".to_owned();
        let names = kernels(has_timeline);
        let module = gpu
            .compile(&Source::new(SOURCE.0, SOURCE.1), &names, options)
            .doing(doing)?;
        let kernel = |name| module.kernel(name).doing(doing);
        Ok(Self {
            version: kernel(names[0])?,
            flush: kernel(names[1])?,
            release: kernel(names[2])?,
            reap: kernel(names[3])?,
            mark_stale: kernel(names[4])?,
            catch_up: kernel(names[5])?,
            clear_errors: kernel(names[6])?,
            read_home: kernel(names[7])?,
            forward_atomics: kernel(names[8])?,
            bring_copy: kernel(names[9])?,
            change_frames: kernel(names[10])?,
            hold: kernel(names[11])?,
            bring: kernel(names[12])?,
            give_way: kernel(names[13])?,
            take_marks: kernel(names[14])?,
            write_entries: kernel(names[15])?,
            survey: kernel(names[16])?,
            take_free: kernel(names[17])?,
            give_free: kernel(names[18])?,
            bring_beside: kernel(names[19])?,
            clear_marks: kernel(names[20])?,
            leave_slots: kernel(names[21])?,
            clock: has_timeline.then(|| kernel(names[22])).transpose()?,
            stream: gpu.stream().doing(doing)?,
            background: gpu.stream().doing(doing)?,
            beside: gpu.urgent_stream().doing(doing)?,
        })
    }
}

/// The options of a user's source, with what is used of the device library alone: the rest would cost every kernel registers.
pub(crate) fn options(transport: TransportKind, settings: &Settings, options: &CompileOptions) -> CompileOptions {
    let mut options = options.clone();
    let features = features(transport, settings).to_string();
    options.defines.push(("GPUVM_FEATURES".to_owned(), Some(features)));
    options
}

/// What kernels of a virtual memory use of the device library: `FEATURE_*`.
pub(crate) fn features(transport: TransportKind, settings: &Settings) -> u32 {
    let moved = match transport {
        TransportKind::Direct => layout::FEATURE_DIRECT,
        _ => layout::FEATURE_QUEUED,
    };
    let asked = [
        (true, moved),
        (settings.reliable, layout::FEATURE_RELIABLE),
        (!settings.borrowed.is_empty(), layout::FEATURE_VICTIMS),
        (settings.frame_capacity.is_some(), layout::FEATURE_RESIZABLE),
        (settings.timeline.is_some(), layout::FEATURE_TIMELINE),
    ];
    asked
        .iter()
        .filter(|(asked, _)| *asked)
        .map(|(_, feature)| feature)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vm, timeline::Timeline};

    #[test]
    fn kernels_get_what_was_asked_for_and_nothing_else() {
        let names = |settings: &Settings| -> Vec<String> {
            let made = options(TransportKind::Direct, settings, &CompileOptions::default());
            assert!(made.include_dirs.is_empty() && made.headers.is_empty());
            made.defines
                .into_iter()
                .map(|(name, value)| name + value.as_deref().unwrap_or_default())
                .collect()
        };
        let mut settings = Vm::builder().settings().clone();
        assert_eq!(names(&settings), ["GPUVM_FEATURES1"]);
        settings.timeline = Some(Timeline::to("timeline.json"));
        assert_eq!(names(&settings), ["GPUVM_FEATURES33"]);
    }
}
