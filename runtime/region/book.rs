//! The regions of a virtual memory: which of them lie over the same memory, and whose pages leave first. What is asked for a region that
//! is made or ends takes no look at all others: there may be 65,536.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Values},
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use gpuvm_gpu::back_end::Spans;
use gpuvm_layouts as layout;
use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    home::Home,
    launch::Standing,
};

/// A region, as it is compared with others.
pub(crate) trait Listed {
    /// No other has it.
    fn number(&self) -> u64;
    fn name(&self) -> &str;
    /// Whether kernels only read it.
    fn is_read_only(&self) -> bool;
    /// Its home; of two the first.
    fn home(&self) -> &dyn Home;
    /// Whose pages leave before its own.
    fn standing(&self) -> Standing;
    /// Tells lanes how many stand below it.
    ///
    /// # Errors
    /// The GPU's.
    fn set_rank(&self, rank: u32) -> Result<()>;
    /// Takes its place in the region table of its GPU, where kernels find it.
    ///
    /// # Errors
    /// Memory that is not available, and the GPU's.
    fn enter_table(&self) -> Result<()>;
}

/// The regions of a virtual memory, on all of its GPUs.
pub(crate) struct Regions<R> {
    made: AtomicU64,
    book: Mutex<Book<R>>,
    /// Held by who tells lanes whose pages leave first. Taken before the regions' `advised`.
    ranks: Mutex<Ranks<R>>,
}

/// None yet.
impl<R> Default for Regions<R> {
    fn default() -> Self {
        let (regions, lying) = (BTreeMap::new(), HashMap::new());
        let (classes, standings) = (BTreeMap::new(), HashMap::new());
        Self {
            made: AtomicU64::new(0),
            book: Mutex::new(Book { regions, lying }),
            ranks: Mutex::new(Ranks { classes, standings }),
        }
    }
}

/// The regions that have not ended, and what they lie over.
struct Book<R> {
    /// By their numbers, and so in the order in which they were made.
    regions: BTreeMap<u64, Weak<R>>,
    /// Their names, by what they lie over.
    lying: HashMap<Memory, Spans<String>>,
}

/// Memory that spans are of, those that kernels write apart from those that they only read.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct Memory {
    /// Device and number of a file; none for this host's memory.
    file: Option<(u64, u64)>,
    read_only: bool,
}

/// The regions by their standing.
struct Ranks<R> {
    classes: BTreeMap<Standing, Class<R>>,
    /// By their numbers.
    standings: HashMap<u64, Standing>,
}

/// Regions that stand alike.
struct Class<R> {
    /// Below how many classes it was last told to be, up to [`layout::REGION_RANK_MAX`].
    rank: u32,
    members: BTreeMap<u64, Weak<R>>,
}

/// What a region lies over: memory of this host, a span of a file.
fn spans_of<R: Listed>(region: &R) -> impl Iterator<Item = (Option<(u64, u64)>, Range<u64>)> {
    let home = region.home();
    let memory = home.host_memory().map(|memory| (None, memory.span()));
    let file = home.file_span().map(|span| (Some(span.identity), span.bytes));
    memory.into_iter().chain(file)
}

impl<R: Listed> Book<R> {
    /// The name of a region over the same host memory, or the same bytes of a file, where one of both may be written.
    fn clashing(&self, region: &R) -> Option<&str> {
        let beside = |file, read_only, span: &Range<u64>| {
            let spans = self.lying.get(&Memory { file, read_only })?;
            spans.meeting(span).map(|(_, name)| name.as_str())
        };
        spans_of(region).find_map(|(file, span)| {
            let read = || beside(file, true, &span).filter(|_| !region.is_read_only());
            beside(file, false, &span).or_else(read)
        })
    }
}

impl<R: Listed> Ranks<R> {
    /// Puts a region where it stands now, or nowhere.
    fn place(&mut self, number: u64, now: Option<(Standing, Weak<R>)>) {
        if let Some(before) = self.standings.remove(&number)
            && let Some(class) = self.classes.get_mut(&before)
        {
            class.members.remove(&number);
            if class.members.is_empty() {
                self.classes.remove(&before);
            }
        }
        if let Some((standing, region)) = now {
            let class = self.classes.entry(standing).or_insert_with(|| Class {
                // What it is unless it is among the first, which are told anew.
                rank: layout::REGION_RANK_MAX,
                members: BTreeMap::new(),
            });
            class.members.insert(number, region);
            self.standings.insert(number, standing);
        }
    }

    /// Tells those whose rank has changed: behind the first classes all have the last one.
    fn tell(&mut self) -> Result<()> {
        let mut told = Ok(());
        for (rank, class) in (0..=layout::REGION_RANK_MAX).zip(self.classes.values_mut()) {
            if std::mem::replace(&mut class.rank, rank) == rank {
                continue;
            }
            for member in class.members.values().filter_map(Weak::upgrade) {
                told = told.and(member.set_rank(rank));
            }
        }
        told
    }
}

impl<R: Listed> Regions<R> {
    /// The number of a region to come.
    pub(super) fn next_number(&self) -> u64 {
        // Relaxed: a number by itself.
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives a region its place among the others, and in the region table of its GPU, where kernels find it.
    pub(super) fn enter(&self, region: &Arc<R>) -> Result<()> {
        let mut book = self.book.lock();
        if let Some(other) = book.clashing(region) {
            return Err(Error::Overlap {
                region: region.name().to_owned(),
                other: other.to_owned(),
            });
        }
        region.enter_table()?;
        for (file, span) in spans_of(&**region) {
            let read_only = region.is_read_only();
            let spans = book.lying.entry(Memory { file, read_only }).or_default();
            spans.insert(span, region.number(), region.name().to_owned());
        }
        book.regions.insert(region.number(), Arc::downgrade(region));
        Ok(())
    }

    /// It has given its frames and its host memory back.
    pub(super) fn leave(&self, region: &R) {
        self.leave_ranks(region);
        let mut book = self.book.lock();
        if book.regions.remove(&region.number()).is_none() {
            return;
        }
        for (file, span) in spans_of(region) {
            let read_only = region.is_read_only();
            let memory = Memory { file, read_only };
            if let Some(spans) = book.lying.get_mut(&memory) {
                spans.remove(span.start, region.number());
                if spans.is_empty() {
                    book.lying.remove(&memory);
                }
            }
        }
    }

    /// Its pages are compared with others' no more.
    pub(super) fn leave_ranks(&self, region: &R) {
        let mut ranks = self.ranks.lock();
        ranks.place(region.number(), None);
        if let Err(error) = ranks.tell() {
            tracing::warn!(%error, "pages of other regions stay longer than they need to");
        }
    }

    /// Tells lanes whose pages leave before whose, after a region was made or stands elsewhere: a rank for each priority that a region has,
    /// from 0 for the lowest.
    pub(super) fn rank(&self, region: &Arc<R>) -> Result<()> {
        let mut ranks = self.ranks.lock();
        let standing = region.standing();
        ranks.place(region.number(), Some((standing, Arc::downgrade(region))));
        let told = ranks.tell();
        let rank = ranks.classes.get(&standing).map_or(0, |class| class.rank);
        told.and(region.set_rank(rank))
    }

    /// The regions that have not ended, in the order in which they were made. They are not held, so that what nothing wants any more can be told.
    /// None is made or ends while `look` looks at them.
    pub fn with_all<T>(&self, look: impl FnOnce(Values<'_, u64, Weak<R>>) -> T) -> T {
        look(self.book.lock().regions.values())
    }
}
