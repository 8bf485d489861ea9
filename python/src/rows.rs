//! Rows of an array for kernels on the streams of other libraries, and its memory as they use it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering},
};

use gpuvm::{LaunchConfig, OthersContext, RawRegion, Series, TellWords};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{apart::Apart, errors};

/// Words in which kernels tell a number that is out of range.
const WORDS: usize = 4;
/// Of an offset, which may be 0.
const IS_TOLD: u64 = 1 << 63;

/// What kernels on others' streams have of a region.
#[derive(Default)]
pub struct Rows {
    /// Numbers that were out of range: of a row, and of an offset.
    told: OnceLock<TellWords>,
    series: Mutex<Option<Arc<Series>>>,
    /// Those that graphs were captured of.
    captured: Mutex<Vec<Arc<Series>>>,
}

impl Drop for Rows {
    fn drop(&mut self) {
        // A series that is not waited for, and words, end by calls of the driver.
        let _others = OthersContext::keep();
        drop((self.told.take(), self.series.get_mut().take()));
        self.forget();
    }
}

impl Rows {
    /// Address of the words, for kernels.
    pub fn told_addr(&self, region: &RawRegion) -> gpuvm::Result<u64> {
        if self.told.get().is_none() {
            // Another thread may have been faster: its words are as good.
            let _ = self.told.set(region.tell_words(WORDS)?);
        }
        Ok(self.told.get().map_or(0, TellWords::device_addr))
    }

    /// Waits for kernels that were enqueued.
    pub fn end(&self) -> gpuvm::Result<()> {
        match self.series.lock().take() {
            Some(series) => self.retire(series),
            None => Ok(()),
        }
    }

    fn retire(&self, series: Arc<Series>) -> gpuvm::Result<()> {
        let ended = series.end();
        if series.was_captured() {
            self.captured.lock().push(series);
        }
        ended
    }

    /// Graphs are launched no more.
    pub fn forget(&self) {
        self.captured.lock().clear();
    }

    /// A number that was told, once: of a row, or of an offset.
    fn take_told(&self) -> Option<(&'static str, i64)> {
        let told = self.told.get()?;
        // Relaxed: who asks has waited for the kernels.
        let take = |at: usize| {
            let word = |n| {
                told.word(n)
                    .map_or(0, |word: &AtomicU32| word.swap(0, Ordering::Relaxed))
            };
            u64::from(word(2 * at + 1)) << 32 | u64::from(word(2 * at))
        };
        match (take(0), take(1)) {
            (0, 0) => None,
            // The second highest bit is its sign, as the highest says that it is told.
            (0, offset) => Some(("offsets", ((offset & !IS_TOLD) << 1) as i64 >> 1)),
            (row, _) => Some(("ids", row as i64)),
        }
    }

    /// Enqueues a kernel in the current series, or in one that begins now. False where pages are not looked up.
    fn enqueue(&self, region: &RawRegion, kernel: &gpuvm::Kernel, what: &Enqueued<'_>) -> Result<bool, Refused> {
        let word = kernel
            .info()
            .params
            .first()
            .map_or(1, |param| u64::from(param.element_bytes));
        let told = self.told_addr(region)?;
        let args: Vec<[u8; 8]> = std::iter::once(&told)
            .chain(what.args)
            .map(|arg| arg.to_ne_bytes())
            .collect();
        let args: Vec<&[u8]> = args.iter().map(<[u8; 8]>::as_slice).collect();
        let config = LaunchConfig::new(what.shape.0, what.shape.1).untimed();
        // SAFETY: the caller says that the stream is one of another library that is live.
        let is_captured = || unsafe { region.is_captured(what.stream) };
        let mut series = self.series.lock();
        loop {
            let fits = |series: &Arc<Series>| !series.is_over() && (series.writes() || !what.writes);
            if !series.as_ref().is_some_and(fits) || (region.is_worth_a_step() && !is_captured()) {
                if is_captured() {
                    return Err(Refused::Captured);
                }
                let writes = what.writes || series.as_ref().is_some_and(|series| series.writes());
                if let Some(old) = series.take() {
                    self.retire(old)?;
                }
                *series = region.series(writes)?.map(Arc::new);
            }
            let Some(current) = &*series else { return Ok(false) };
            // SAFETY: the stream is as above; the kernels are the package's own, which wait for nothing; who enqueues says that `args` live.
            if unsafe { kernel.launch_in(current, what.stream, &config, word, &args) }? {
                return Ok(true);
            }
        }
    }

    /// Has pages that were used at home come to frames, as far as those are free.
    pub fn step(&self, region: &RawRegion) -> gpuvm::Result<()> {
        let mut series = self.series.lock();
        let Some(old) = series.take() else { return Ok(()) };
        let writes = old.writes();
        self.retire(old)?;
        *series = region.series(writes)?.map(Arc::new);
        Ok(())
    }
}

/// A launch of a kernel whose first arguments are the array and the words to tell.
pub struct Enqueued<'a> {
    pub writes: bool,
    pub stream: u64,
    /// Blocks, and threads of each.
    pub shape: (u32, u32),
    pub args: &'a [u64],
}

/// Why nothing was enqueued.
enum Refused {
    Captured,
    Error(gpuvm::Error),
}

impl From<gpuvm::Error> for Refused {
    fn from(error: gpuvm::Error) -> Self {
        Self::Error(error)
    }
}

impl Rows {
    /// Raises what was told: once.
    ///
    /// # Errors
    /// `OutOfRangeError`.
    pub fn raise_told(&self, name: &str) -> PyResult<()> {
        match self.take_told() {
            None => Ok(()),
            Some(("ids", number)) => Err(errors::out_of_range(format!(
                "ids have {number}, out of range: array `{name}` has no such row"
            ))),
            Some((what, number)) => Err(errors::out_of_range(format!(
                "{what} have {number}, out of range: they ascend from 0 to the number of ids"
            ))),
        }
    }

    /// Enqueues a kernel of the package's, whose first parameters are the array and what tells numbers that are out of range.
    ///
    /// # Errors
    /// `StreamError` where a capture would have to wait for pages; the runtime's.
    pub fn launch(
        &self,
        py: Python<'_>,
        region: &RawRegion,
        kernel: &gpuvm::Kernel,
        what: &Enqueued<'_>,
    ) -> PyResult<bool> {
        match py.apart(|| self.enqueue(region, kernel, what)) {
            Ok(enqueued) => Ok(enqueued),
            Err(Refused::Error(error)) => Err(errors::of(error)),
            Err(Refused::Captured) => Err(errors::stream(format!(
                "the stream is being captured, and pages of array `{}` have to be made ready first: run the operation once before the capture",
                region.name()
            ))),
        }
    }
}
