//! What a virtual memory is to be, as Python says it.

use std::time::Duration;

use gpuvm::{Gpu, Timeline, Transport, VmBuilder};
use pyo3::prelude::*;

use crate::errors::{self, Raised};

/// Settings; sizes in bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    memory: u64,
    page_size: u64,
    frame_capacity: Option<u64>,
    frame_minimum: Option<u64>,
    frame_priority: i32,
    frames_leave_free: Option<u64>,
    file_memory: Option<u64>,
    file_memory_on_gpu: bool,
    gpu: Option<String>,
    gpu_memory: Option<u64>,
    workers: Option<u32>,
    transport: Option<String>,
    launch_deadline: Option<f64>,
    timeline: Option<String>,
    timeline_one_in: Option<u32>,
    precompiled: Option<String>,
    precompile_into: Option<String>,
}

/// `builder` with a setting, where Python says one.
fn with<T>(builder: VmBuilder, value: Option<T>, set: impl FnOnce(VmBuilder, T) -> VmBuilder) -> VmBuilder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// A number of seconds.
///
/// # Errors
/// `SettingError`, which calls it `what`.
pub fn seconds(value: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| errors::setting(format!("{what} is {value}: {error}")))
}

impl Settings {
    /// The builder that follows them.
    ///
    /// # Errors
    /// `SettingError` for words that mean nothing, and for a simulated GPU's settings with another.
    pub fn builder(self) -> PyResult<VmBuilder> {
        let transport = self.transport.as_deref().map(|name| name.parse::<Transport>().raised());
        let deadline = self.launch_deadline.map(|value| seconds(value, "launch_deadline"));
        let builder = gpuvm::Vm::builder()
            .gpu(self.asked_gpu()?)
            .frame_memory(self.memory)
            .page_size(self.page_size)
            .frame_priority(self.frame_priority);
        let builder = with(builder, self.frame_capacity, VmBuilder::frame_capacity);
        let builder = with(builder, self.frame_minimum, VmBuilder::frame_minimum);
        let builder = with(builder, self.frames_leave_free, VmBuilder::frames_leave_free);
        let before_files = match self.file_memory_on_gpu {
            true => VmBuilder::file_memory_on_gpu,
            false => VmBuilder::file_memory,
        };
        let builder = with(builder, self.file_memory, before_files);
        let builder = with(builder, transport.transpose()?, VmBuilder::transport);
        let builder = with(builder, deadline.transpose()?, VmBuilder::launch_deadline);
        let builder = with(builder, self.timeline.map(Timeline::to), |builder, timeline| {
            builder.timeline(match self.timeline_one_in {
                Some(events) => timeline.one_in(events),
                None => timeline,
            })
        });
        let builder = with(builder, self.precompiled, VmBuilder::precompiled);
        Ok(with(builder, self.precompile_into, VmBuilder::precompile_into))
    }

    /// The NVIDIA GPU's place in the driver's list, if it is named by that.
    pub fn ordinal(&self) -> Option<i32> {
        self.gpu.as_deref()?.strip_prefix("cuda:")?.parse().ok()
    }

    fn asked_gpu(&self) -> PyResult<Gpu> {
        let name = match self.gpu.as_deref().unwrap_or("auto") {
            "simulated" => "sim",
            name => name,
        };
        let (workers, memory) = (self.workers, self.gpu_memory);
        match name.parse().raised()? {
            Gpu::Simulated(mut simulated) => {
                if let Some(workers) = workers {
                    simulated = simulated.workers(workers);
                }
                if let Some(bytes) = memory {
                    simulated = simulated.memory(bytes);
                }
                Ok(simulated.into())
            }
            _ if workers.is_some() => Err(errors::setting("workers are of gpu=\"simulated\" alone".into())),
            _ if memory.is_some() => Err(errors::setting(
                "gpu_memory is of gpu=\"simulated\" alone: others have what they have".into(),
            )),
            other => Ok(other),
        }
    }
}
