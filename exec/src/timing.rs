//! How long kernels took on the GPU, for `--verbose`: each launch between two of the driver's events.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::time::Duration;

use crate::driver::{self, SUCCESS, Status, call};
use crate::settings;

/// Launches whose events are kept before they are asked.
const KEPT: usize = 512;

/// An event of the driver's.
struct Event(*mut c_void);

// SAFETY: a handle, which any thread may use.
unsafe impl Send for Event {}

impl Event {
    /// Behind what is on a stream by now. None where the driver has none.
    fn on(stream: u64) -> Option<Self> {
        let mut event: *mut c_void = std::ptr::null_mut();
        // SAFETY: an out-value; the stream is the program's, which launches on it now.
        unsafe {
            if call!(cuEventCreate(&raw mut event => *mut *mut c_void, 0 => u32)) != SUCCESS {
                return None;
            }
            let event = Self(event);
            let recorded = call!(cuEventRecord(event.0 => *mut c_void, stream => u64));
            (recorded == SUCCESS).then_some(event)
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was made above. The driver frees it once it has happened.
        let _ = unsafe { call!(cuEventDestroy_v2(self.0 => *mut c_void)) };
    }
}

/// A launch.
pub struct Launched {
    begun: Event,
    ended: Event,
}

/// Of all kernels.
#[derive(Default)]
pub struct Timing {
    open: VecDeque<(String, Launched)>,
    /// How often each ran, the longest, and all together.
    kernels: BTreeMap<String, (u64, Duration, Duration)>,
}

impl Timing {
    /// Puts a kernel on a stream, and marks where it begins and ends there if that is to be told.
    pub fn around(stream: u64, put: impl FnOnce() -> Status) -> (Status, Option<Launched>) {
        if !settings::is_verbose() {
            return (put(), None);
        }
        let begun = Event::on(stream);
        let status = put();
        let ended = begun.filter(|_| status == SUCCESS).zip(Event::on(stream));
        (status, ended.map(|(begun, ended)| Launched { begun, ended }))
    }

    /// Sees to how long it takes.
    pub fn add(&mut self, name: &str, launched: Option<Launched>) {
        self.open.extend(launched.map(|launched| (name.to_owned(), launched)));
        // None may be asked while something is captured.
        if self.open.len() > KEPT && !driver::somebody_captures() {
            self.collect();
        }
    }

    /// Counts those that have ended.
    fn collect(&mut self) {
        while let Some((_, Launched { begun, ended })) = self.open.front() {
            let mut took = 0.0f32;
            // SAFETY: an out-value and two events of ours.
            let status = unsafe {
                call!(cuEventElapsedTime(&raw mut took => *mut f32, begun.0 => *mut c_void, ended.0 => *mut c_void))
            };
            if status != SUCCESS {
                return;
            }
            let Some((name, ..)) = self.open.pop_front() else {
                return;
            };
            let took = Duration::from_secs_f64(f64::from(took.max(0.0)) / 1e3);
            let (times, longest, all) = self.kernels.entry(name).or_default();
            *times += 1;
            *longest = took.max(*longest);
            *all += took;
        }
    }

    /// A line for each kernel.
    pub fn lines(&mut self) -> Vec<String> {
        self.collect();
        let line = |(name, (times, longest, all)): (&String, &(u64, Duration, Duration))| {
            let rest = (*all - *longest).as_secs_f64() * 1e3 / (*times - 1).max(1) as f64;
            let longest = longest.as_secs_f64() * 1e3;
            format!("`{name}` on the GPU: {times} times, the longest {longest:.3} ms, the others {rest:.3} ms each")
        };
        self.kernels.iter().map(line).collect()
    }
}
