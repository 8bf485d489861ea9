//! One application in one way: cold, then again, then warm, with all results compared.

use std::time::{Duration, Instant};

use gpuvm::{Stats, Vm};

use super::error::AppError;
use super::space::Space;
use super::way::Way;
use super::{App, Found, Loaded};

/// What a run took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The first run: no page is there, and prefetches and copies are part of it.
    pub cold: Duration,
    /// The second one: what the first has used comes to frames before its launches, where pages are looked up.
    pub second: Duration,
    /// The fourth one: what stays is there, and so are the forms of kernels that such runs take.
    pub warm: Duration,
    /// Values that were compared, of each run.
    pub verified: u64,
    /// What paging did in the first run.
    pub stats: Stats,
    /// Bytes that copies in chunks moved in the first run.
    pub copied: u64,
    /// What the fourth run came to.
    pub found: Found,
}

impl Measured {
    /// Bytes that are known to have crossed the link in the first run.
    pub fn bytes_moved(&self, page_bytes: u64) -> u64 {
        let Stats {
            bytes_fetched,
            bytes_in_place,
            pages_written_back,
            ..
        } = &self.stats;
        bytes_fetched + bytes_in_place + pages_written_back * page_bytes + self.copied
    }
}

/// Runs an application four times in that way beside the frames of `vm`, and compares all results. `ordinal`: the CUDA device, for managed
/// memory.
///
/// # Errors
/// [`AppError`]; [`AppError::Way`] when it does not run in that way.
pub fn measure(app: &dyn App, vm: &Vm, way: Way, ordinal: &str) -> Result<Measured, AppError> {
    let space = Space::new(vm, way, ordinal)?;
    let mut loaded = app.load(&space)?;
    let before = space.stats()?;
    let (cold, verified, _) = timed(app, &mut *loaded)?;
    // Reading a result may write pages back: they count as the run's.
    let stats = space.stats()?.difference(&before);
    let copied = space.copied_bytes();
    let (second, again, _) = timed(app, &mut *loaded)?;
    let (_, third, _) = timed(app, &mut *loaded)?;
    let (warm, at_last, found) = timed(app, &mut *loaded)?;
    Ok(Measured {
        cold,
        second,
        warm,
        verified: verified.min(again).min(third).min(at_last),
        stats,
        copied,
        found,
    })
}

fn timed(app: &dyn App, loaded: &mut dyn Loaded) -> Result<(Duration, u64, Found), AppError> {
    let started = Instant::now();
    loaded.run()?;
    let elapsed = started.elapsed();
    let found = loaded.found()?;
    Ok((elapsed, app.check(&found)?, found))
}
