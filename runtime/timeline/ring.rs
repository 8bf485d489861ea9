//! The ring that lanes put events into, as the host reads it while they do.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{TimelineDesc, TimelineEvent, TimelineState};

use crate::device::DeviceArray;

/// Events that are copied at a time.
const AT_ONCE: u64 = 4096;
/// A lane that has taken a place and left it empty for so long was stopped.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Ring {
    gpu: Arc<dyn Gpu>,
    state: DeviceArray<TimelineState>,
    events: DeviceArray<TimelineEvent>,
    count: u64,
    tail: u64,
    dropped: u64,
    /// Since when the event at the tail is awaited.
    stuck: Option<Instant>,
}

impl Ring {
    /// A ring for `count` events, a power of two.
    pub fn new(gpu: &Arc<dyn Gpu>, count: u64) -> Result<Self, GpuError> {
        Ok(Self {
            state: DeviceArray::zeroed(&**gpu, 1)?,
            events: DeviceArray::zeroed(&**gpu, count)?,
            gpu: Arc::clone(gpu),
            count,
            tail: 0,
            dropped: 0,
            stuck: None,
        })
    }

    /// It for lanes, which note one of `one_in` events.
    pub fn describe(&self, one_in: u32) -> TimelineDesc {
        TimelineDesc {
            state: self.state.addr(),
            events: self.events.addr(),
            mask: self.count as u32 - 1,
            threshold: u32::MAX / one_in.max(1),
            ..TimelineDesc::default()
        }
    }

    /// Events that found no room so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The events since the last call, in the order in which their lanes took places. With `idle` no lane runs: what is not complete
    /// never will be.
    pub fn read(&mut self, idle: bool) -> Result<Vec<TimelineEvent>, GpuError> {
        let state = self.state.read(&*self.gpu, 0, 1)?[0];
        self.dropped = state.dropped;
        let mut found = Vec::new();
        while self.tail < state.head {
            let first = self.tail & (self.count - 1);
            let length = (state.head - self.tail).min(self.count - first).min(AT_ONCE) as usize;
            // Twice: an event whose number was there before the second copy is whole in it.
            let numbers = self.events.read(&*self.gpu, first, length)?;
            let events = self.events.read(&*self.gpu, first, length)?;
            let mut taken = 0;
            for (seen, event) in numbers.iter().zip(events) {
                if seen.number == self.tail + taken + 1 {
                    found.push(event);
                } else if !idle && !self.is_given_up(taken) {
                    break;
                }
                taken += 1;
                self.stuck = None;
            }
            if taken == 0 {
                break;
            }
            self.tail += taken;
            let at = self.state.addr() + core::mem::offset_of!(TimelineState, tail) as u64;
            self.gpu.write(at, &self.tail.to_ne_bytes())?;
            if taken < length as u64 {
                break;
            }
        }
        Ok(found)
    }

    /// Whether the first event that is missing has been awaited long enough. Others are looked at when they are the first.
    fn is_given_up(&mut self, taken: u64) -> bool {
        taken == 0 && self.stuck.get_or_insert_with(Instant::now).elapsed() > TIMEOUT
    }
}
