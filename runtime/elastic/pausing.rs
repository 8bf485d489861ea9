//! Buffers whose contents wait in host memory, so that others may have the GPU's.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{ElasticInner, Elastics, Mapping};
use crate::{
    error::{Doing, Error, Result},
    launch::LaunchTracker,
};

/// The buffers of one tag, all of whose launches have ended, and none of which is mapped or launched with meanwhile.
struct Held<'a> {
    buffers: &'a [Arc<ElasticInner>],
    _launches: Vec<MutexGuard<'a, LaunchTracker>>,
    mappings: Vec<MutexGuard<'a, Mapping>>,
}

impl<'a> Held<'a> {
    /// Waits for their launches. Locks are taken in the order of addresses, as launches take them.
    fn new(buffers: &'a [Arc<ElasticInner>]) -> Self {
        let mut launches: Vec<MutexGuard<'_, LaunchTracker>> =
            buffers.iter().map(|buffer| buffer.launches.lock()).collect();
        launches.iter_mut().for_each(|launches| launches.wait_idle());
        Self {
            buffers,
            _launches: launches,
            mappings: buffers.iter().map(|buffer| buffer.mapping.lock()).collect(),
        }
    }
}

impl Elastics {
    /// The buffers of a tag that are paused, or that are not.
    fn tagged(&self, tag: &str, paused: bool) -> Vec<Arc<ElasticInner>> {
        let mut buffers = self.live();
        buffers.retain(|buffer| buffer.tag.as_deref() == Some(tag) && buffer.state.lock().paused == paused);
        buffers.sort_by_key(|buffer| Arc::as_ptr(buffer) as usize);
        buffers
    }

    /// Brings the contents of all buffers of a tag to host memory, and gives their handles back: how many bytes those contents are. After an
    /// error nothing is paused that was not.
    ///
    /// # Errors
    /// [`Error::HostMemory`], [`Error::Gpu`].
    pub fn pause(&self, tag: &str) -> Result<u64> {
        let _turn = self.pausing.lock();
        let buffers = self.tagged(tag, false);
        let mut held = Held::new(&buffers);
        // One whose handle has gone stays as it is.
        let set = |paused: bool| {
            for buffer in &buffers {
                let mut state = buffer.state.lock();
                state.paused = paused || state.closed;
            }
        };
        // From here on no length moves.
        set(true);
        let contents: Result<Vec<Vec<u8>>> = buffers.iter().map(|buffer| buffer.contents()).collect();
        let contents = contents.inspect_err(|_| set(false))?;
        let bytes = contents.iter().map(|contents| contents.len() as u64).sum();
        let mut unmapped = Ok(());
        for ((buffer, mapping), contents) in held.buffers.iter().zip(&mut held.mappings).zip(contents) {
            mapping.contents = Some(contents);
            buffer.state.lock().mapped = 0;
            unmapped = unmapped.and(buffer.empty(mapping));
        }
        unmapped.map(|()| bytes)
    }

    /// Brings the contents of all paused buffers of a tag back, where they were: how many bytes they are. After an error all of them are
    /// paused still.
    ///
    /// # Errors
    /// [`Error::OutOfHandles`], [`Error::Gpu`].
    pub fn resume(&self, tag: &str) -> Result<u64> {
        let _turn = self.pausing.lock();
        let buffers = self.tagged(tag, true);
        let mut held = Held::new(&buffers);
        for (done, (buffer, mapping)) in buffers.iter().zip(&held.mappings).enumerate() {
            if let Err(error) = buffer.fill(mapping) {
                for (buffer, mapping) in buffers.iter().zip(&held.mappings).take(done + 1) {
                    if let Err(error) = buffer.empty(mapping) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "memory stays with elastic buffer `{}`", buffer.name);
                    }
                }
                return Err(error);
            }
        }
        let mut bytes = 0;
        for (buffer, mapping) in held.buffers.iter().zip(&mut held.mappings) {
            bytes += mapping.contents.take().map_or(0, |contents| contents.len() as u64);
            buffer.publish();
            let mut state = buffer.state.lock();
            state.paused = state.closed;
        }
        Ok(bytes)
    }
}

impl ElasticInner {
    /// What it holds.
    fn contents(&self) -> Result<Vec<u8>> {
        if self.state.lock().closed {
            // Its handle went after the tag's buffers were listed.
            return Ok(Vec::new());
        }
        let bytes = self.bytes_of(self.length());
        let mut contents = Vec::new();
        contents
            .try_reserve_exact(bytes as usize)
            .map_err(|source| Error::HostMemory {
                buffer: self.name.clone(),
                bytes,
                source,
            })?;
        contents.resize(bytes as usize, 0);
        if bytes == 0 {
            return Ok(contents);
        }
        let read = self.family.device.read(self.addr, &mut contents);
        read.doing(|| self.doing("reading"))?;
        Ok(contents)
    }

    /// Gives back all of its memory. Its contents are in host memory.
    fn empty(&self, mapping: &Mapping) -> Result<()> {
        let unmapped = self.unmap(&*mapping.space, 0, &mut 0);
        // What cannot be taken out is no one's to reach any more; it is replaced when the buffer is resumed.
        self.release(0);
        unmapped
    }

    /// Gives it memory where it had some, and what it held.
    fn fill(&self, mapping: &Mapping) -> Result<()> {
        let Some(contents) = mapping.contents.as_ref().filter(|contents| !contents.is_empty()) else {
            return Ok(());
        };
        if self.state.lock().closed {
            return Ok(());
        }
        let bytes = contents.len() as u64;
        self.family.supply(|book, fresh| book.reopen(self.id, bytes, fresh))?;
        self.place(&*mapping.space, 0)?;
        let written = self.family.device.write(self.addr, contents);
        written.doing(|| self.doing("writing"))
    }
}
