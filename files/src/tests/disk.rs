//! A disk in memory that fails when told to, and forgets what was not synced when its power is lost.

use std::{io, os::fd::RawFd, sync::Arc};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Look, Storage};

/// What a disk writes as one.
pub(super) const SECTOR: usize = 512;

#[derive(Default)]
struct State {
    /// What reads see.
    now: Vec<u8>,
    /// What survives.
    stored: Vec<u8>,
    bad_block: Option<u64>,
    refuses_writes: Option<i32>,
    refuses_block: Option<u64>,
    /// This many reads fail.
    fails_reads: u32,
    refuses_syncs: bool,
    /// One in this many reads and writes fails by chance.
    fails_one_in: Option<(u32, ChaCha8Rng)>,
}

pub(super) struct Disk(Mutex<State>);

impl Disk {
    pub fn new(bytes: u64) -> Arc<Self> {
        let state = State {
            now: vec![0; bytes as usize],
            stored: vec![0; bytes as usize],
            ..State::default()
        };
        Arc::new(Self(Mutex::new(state)))
    }

    pub fn bad_block(&self, block: u64) {
        self.0.lock().bad_block = Some(block);
    }

    pub fn refuse_writes(&self, code: Option<i32>) {
        self.0.lock().refuses_writes = code;
    }

    /// The next reads fail, this many of them.
    pub fn fail_reads(&self, count: u32) {
        self.0.lock().fails_reads = count;
    }

    /// It takes no writes of a block.
    pub fn refuse_block(&self, block: u64) {
        self.0.lock().refuses_block = Some(block);
    }

    pub fn refuse_syncs(&self, refuses: bool) {
        self.0.lock().refuses_syncs = refuses;
    }

    pub fn fail_one_in(&self, count: u32, seed: u64) {
        self.0.lock().fails_one_in = Some((count, ChaCha8Rng::seed_from_u64(seed)));
    }

    pub fn repair(&self) {
        let mut state = self.0.lock();
        state.bad_block = None;
        state.fails_one_in = None;
        state.refuses_writes = None;
        state.refuses_block = None;
    }

    pub fn byte(&self, at: u64) -> u8 {
        self.0.lock().now[at as usize]
    }

    /// A copy of what reads see.
    pub fn contents(&self) -> Vec<u8> {
        self.0.lock().now.clone()
    }

    /// Of each sector that was not synced, what was written or what was there before.
    pub fn lose_power(&self, seed: u64) {
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        let state = &mut *self.0.lock();
        for (now, stored) in state.now.chunks_mut(SECTOR).zip(state.stored.chunks_mut(SECTOR)) {
            match draw.random_bool(0.5) {
                true => now.copy_from_slice(stored),
                false => stored.copy_from_slice(now),
            }
        }
    }
}

impl State {
    fn strike(&mut self) -> io::Result<()> {
        let fails = self
            .fails_one_in
            .as_mut()
            .is_some_and(|(count, draw)| draw.random_ratio(1, *count));
        match fails {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

impl Storage for Disk {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let state = &mut *self.0.lock();
        state.strike()?;
        if state.fails_reads > 0 {
            state.fails_reads -= 1;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let blocks = offset / 4096..(offset + out.len() as u64).div_ceil(4096);
        if state.bad_block.is_some_and(|bad| blocks.contains(&bad)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let there = &state.now[(offset as usize).min(state.now.len())..];
        let bytes = there.len().min(out.len());
        out[..bytes].copy_from_slice(&there[..bytes]);
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.lock();
        state.strike()?;
        if let Some(code) = state.refuses_writes {
            return Err(io::Error::from_raw_os_error(code));
        }
        let blocks = offset / 4096..(offset + data.len() as u64).div_ceil(4096);
        if state.refuses_block.is_some_and(|block| blocks.contains(&block)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.now[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.0.lock();
        if state.refuses_syncs {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.stored.copy_from_slice(&state.now);
        Ok(())
    }

    fn look(&self) -> io::Result<Look> {
        // A disk is the only one at its address.
        let identity = (u64::MAX, std::ptr::from_ref(self).addr() as u64);
        let length = self.0.lock().now.len() as u64;
        Ok(Look {
            length,
            deleted: false,
            identity,
        })
    }

    fn descriptor(&self, _offset: u64, _bytes: u64) -> Option<RawFd> {
        None
    }
}
