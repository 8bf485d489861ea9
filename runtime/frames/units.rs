//! Frames that come and go: behind addresses that stay, each unit of them lies on handles of its own.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use gpuvm_gpu::{AddressSpace, Gpu, Piece};
use parking_lot::Mutex;

use crate::{
    error::{Doing, Error, Result},
    handles::{Handle, Handles},
    launch::InFlight,
};

/// Where frames can be, in units of whole handles and whole frames.
pub(crate) struct FrameUnits {
    space: Arc<dyn AddressSpace>,
    handles: Arc<Handles>,
    unit_bytes: u64,
    /// Frames of a unit.
    frames_each: u32,
    units: Mutex<Vec<Unit>>,
}

/// What lies behind a unit's addresses.
enum Unit {
    Present(Vec<Handle>),
    /// Its frames are withdrawn and its handles may be others' by now. Lanes of these launches may still read there what they then find
    /// to be no page's any more, so that the addresses, and the memory behind them, stay as they are.
    Lingering(Arc<Vec<Weak<InFlight>>>, Vec<Weak<dyn Piece>>),
    Absent,
}

/// Bytes of a unit: whole handles of `handle` bytes, and whole frames.
pub(crate) fn unit_bytes(handle: u64, page: u64) -> u64 {
    // Both are powers of two.
    handle.max(page).max(1)
}

impl FrameUnits {
    /// Addresses for `capacity` bytes, of which the first `present` have memory: both whole units.
    pub fn new(gpu: &dyn Gpu, handles: &Arc<Handles>, page: u64, present: u64, capacity: u64) -> Result<Self> {
        let unit_bytes = unit_bytes(handles.handle_bytes(), page);
        let doing = || format!("reserving addresses for {capacity} bytes of frames");
        let count = (capacity / unit_bytes) as usize;
        let units = Self {
            space: gpu.reserve(capacity, &[]).doing(doing)?,
            handles: Arc::clone(handles),
            unit_bytes,
            frames_each: (unit_bytes / page) as u32,
            units: Mutex::new((0..count).map(|_| Unit::Absent).collect()),
        };
        let wanted = (present / unit_bytes) as usize;
        let (added, short) = units.add(wanted);
        match short {
            Some(error) if added.len() < wanted => Err(error),
            _ => Ok(units),
        }
    }

    /// Address of frame 0.
    pub fn addr(&self) -> u64 {
        self.space.addr()
    }

    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    pub fn handles_each(&self) -> usize {
        (self.unit_bytes / self.handles.handle_bytes().max(1)) as usize
    }

    /// Units that there may be.
    pub fn count(&self) -> usize {
        self.units.lock().len()
    }

    /// The frames of a unit.
    pub fn frames(&self, unit: usize) -> Range<u32> {
        let first = unit as u32 * self.frames_each;
        first..first + self.frames_each
    }

    /// Which units have memory.
    pub fn present(&self) -> Vec<usize> {
        let units = self.units.lock();
        let present = |(_, unit): &(usize, &Unit)| matches!(unit, Unit::Present(_));
        units.iter().enumerate().filter(present).map(|(n, _)| n).collect()
    }

    /// Has up to `count` more units have memory, those that can: which ones, and why not more of them.
    pub fn add(&self, count: usize) -> (Vec<usize>, Option<Error>) {
        let mut units = self.units.lock();
        let (mut added, mut placing, mut short) = (Vec::new(), Vec::new(), None);
        let absent = units
            .iter()
            .enumerate()
            .filter(|(_, unit)| matches!(unit, Unit::Absent));
        for n in absent.map(|(n, _)| n).take(count) {
            match self.handles.take_unasked(self.handles_each()) {
                Ok(handles) => added.push((n, handles)),
                Err(error) => {
                    short = Some(error);
                    break;
                }
            }
        }
        for (n, handles) in &added {
            let first = *n as u64 * self.unit_bytes;
            let at = (0..).map(|k| first + k * self.handles.handle_bytes());
            placing.extend(at.zip(handles.iter().cloned()));
        }
        let placed = self.space.place(&placing);
        drop(placing);
        if let Err(source) = placed {
            for (_, handles) in added {
                self.handles.give(handles);
            }
            let doing = "giving frames memory".to_owned();
            return (Vec::new(), Some(Error::Gpu { doing, source }));
        }
        let numbers = added.iter().map(|(n, _)| *n).collect();
        for (n, handles) in added {
            units[n] = Unit::Present(handles);
        }
        (numbers, short)
    }

    /// Gives the handles of units to who needs some. Their frames are withdrawn, and these launches are in flight.
    pub fn lift(&self, which: &[usize], in_flight: Vec<Weak<InFlight>>) {
        let in_flight = Arc::new(in_flight);
        let mut units = self.units.lock();
        for &n in which {
            let before = std::mem::replace(&mut units[n], Unit::Absent);
            if let Unit::Present(handles) = before {
                let behind = handles.iter().map(Arc::downgrade).collect();
                units[n] = Unit::Lingering(Arc::clone(&in_flight), behind);
                self.handles.give(handles);
            }
        }
    }

    /// Bytes that the pool has given back to the driver, but that addresses of frames keep.
    pub fn lingering_bytes(&self) -> u64 {
        let kept_here = |unit: &Unit| match unit {
            Unit::Lingering(_, behind) => behind.iter().filter(|handle| handle.strong_count() == 1).count() as u64,
            _ => 0,
        };
        let units = self.units.lock();
        units.iter().map(kept_here).sum::<u64>() * self.handles.handle_bytes()
    }

    /// Takes memory out of the addresses of units whose launches have ended.
    pub fn unmap_ended(&self) -> Result<()> {
        let mut units = self.units.lock();
        let ended = |unit: &Unit| match unit {
            Unit::Lingering(launches, _) => launches.iter().all(|one| one.upgrade().is_none_or(|one| one.is_done())),
            _ => false,
        };
        let gone: Vec<usize> = (0..units.len()).filter(|n| ended(&units[*n])).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let (each, handle) = (self.handles_each() as u64, self.handles.handle_bytes());
        let offsets = gone.iter().flat_map(|n| (0..each).map(move |k| (*n as u64, k)));
        let offsets: Vec<u64> = offsets.map(|(n, k)| n * self.unit_bytes + k * handle).collect();
        self.space
            .take(&offsets)
            .doing(|| "taking memory out of frames".into())?;
        for n in gone {
            units[n] = Unit::Absent;
        }
        Ok(())
    }
}

impl Drop for FrameUnits {
    fn drop(&mut self) {
        for unit in self.units.get_mut().drain(..) {
            if let Unit::Present(handles) = unit {
                self.handles.give(handles);
            }
        }
    }
}
