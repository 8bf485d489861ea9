//! The memory of a broadcast array: each GPU's addresses for it, and the pieces behind them.

use std::sync::Arc;

use gpuvm_gpu::{AddressSpace, DeviceMemory, Gpu, GpuError, Piece};
use parking_lot::Mutex;

use super::Subscriptions;

/// Views side by side, each a whole number of pages long.
pub(super) struct Views {
    /// Address of view 0.
    pub base: u64,
    /// Bytes from one view to the next.
    pub stride: u64,
    pub page_bytes: u64,
    memory: Behind,
}

/// A GPU's pieces, by page; none where it has not subscribed.
type Pieces = Vec<Option<Arc<dyn Piece>>>;

/// What lies behind the addresses.
enum Behind {
    /// One piece a page and subscriber.
    Pieces {
        space: Arc<dyn AddressSpace>,
        /// By view.
        pieces: Mutex<Vec<Pieces>>,
    },
    /// One allocation for all views: of tests that run all views on one GPU. Every view subscribes to every page.
    Plain { _memory: DeviceMemory },
}

/// Page size of views that are one allocation.
const PLAIN_PAGE_BYTES: u64 = 512;

impl Views {
    /// Addresses for the views of `gpus`, for `bytes` bytes each. Nothing lies there.
    pub fn reserve(gpus: &[&dyn Gpu], bytes: u64) -> Result<Self, GpuError> {
        let page_bytes = gpus
            .iter()
            .map(|gpu| gpu.piece_bytes())
            .max()
            .unwrap_or_default()
            .max(1);
        let pages = bytes.div_ceil(page_bytes).max(1);
        let stride = pages.saturating_mul(page_bytes);
        let others: Vec<u32> = gpus.iter().skip(1).filter_map(|gpu| gpu.ordinal()).collect();
        let space = gpus[0].reserve(stride.saturating_mul(gpus.len() as u64), &others)?;
        Ok(Self {
            base: space.addr(),
            stride,
            page_bytes,
            memory: Behind::Pieces {
                space,
                pieces: Mutex::new(vec![vec![None; pages as usize]; gpus.len()]),
            },
        })
    }

    /// `count` views in one allocation of `gpu`.
    pub fn plain(gpu: &dyn Gpu, count: u64, bytes: u64) -> Result<Self, GpuError> {
        let stride = bytes.max(1).next_multiple_of(PLAIN_PAGE_BYTES);
        let memory = gpu.allocate(stride.saturating_mul(count), PLAIN_PAGE_BYTES)?;
        Ok(Self {
            base: memory.addr(),
            stride,
            page_bytes: PLAIN_PAGE_BYTES,
            memory: Behind::Plain { _memory: memory },
        })
    }

    pub fn pages(&self) -> usize {
        (self.stride / self.page_bytes) as usize
    }

    pub fn addr(&self, view: usize) -> u64 {
        self.base + view as u64 * self.stride
    }

    /// Whether pages can be subscribed to one by one.
    pub fn is_paged(&self) -> bool {
        matches!(self.memory, Behind::Pieces { .. })
    }

    /// Takes memory for pages that views have subscribed to and have none for: which those were, as (view, page) in ascending order. What they hold is
    /// unspecified. Nothing is placed, and nothing taken after an error.
    pub fn supply(
        &self,
        gpus: &[&dyn Gpu],
        wanted: &Subscriptions,
        pages: &[usize],
    ) -> Result<Vec<(usize, usize)>, GpuError> {
        let Behind::Pieces { pieces, .. } = &self.memory else {
            return Ok(Vec::new());
        };
        let mut pieces = pieces.lock();
        let mut new: Vec<(usize, usize)> = Vec::new();
        for view in 0..gpus.len() {
            for &page in pages.iter().filter(|page| wanted.is_subscribed(view, **page)) {
                if pieces[view][page].is_some() {
                    continue;
                }
                match gpus[view].piece() {
                    Ok(piece) => pieces[view][page] = Some(piece),
                    Err(error) => {
                        for (view, page) in new {
                            pieces[view][page] = None;
                        }
                        return Err(error);
                    }
                }
                new.push((view, page));
            }
        }
        Ok(new)
    }

    /// Places what each view is to have behind these pages, and gives back what no view subscribes to any more. No kernel may use the
    /// array.
    pub fn place(&self, wanted: &Subscriptions, pages: &[usize]) -> Result<(), GpuError> {
        let Behind::Pieces { space, pieces } = &self.memory else {
            return Ok(());
        };
        let mut pieces = pieces.lock();
        let mut placing: Vec<(u64, Arc<dyn Piece>)> = Vec::new();
        for view in 0..wanted.views() {
            for &page in pages {
                if let Some(piece) = &pieces[wanted.behind(view, page)][page] {
                    let offset = view as u64 * self.stride + page as u64 * self.page_bytes;
                    placing.push((offset, Arc::clone(piece)));
                }
            }
        }
        space.place(&placing)?;
        drop(placing);
        for view in 0..wanted.views() {
            for &page in pages.iter().filter(|page| !wanted.is_subscribed(view, **page)) {
                pieces[view][page] = None;
            }
        }
        Ok(())
    }
}
