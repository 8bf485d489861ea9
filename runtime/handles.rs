//! The handles of one GPU's memory: what its page table maps at once, kept for reuse when it is given back.

use std::sync::{Arc, Weak};
use std::time::Instant;

use gpuvm_gpu::{Gpu, GpuError, Piece};
use gpuvm_tenants::AskError;
use parking_lot::Mutex;

use crate::crowd::Crowd;
use crate::error::{Error, Result};
use crate::tenancy::Member;

/// Other tenants are asked so often for one request, since somebody else may take what they give, and since the driver may call free what
/// nothing can have: of that, this part is taken to be so each time. None, an eighth, all.
const FREE_NOT_HAD: [Option<u64>; 3] = [None, Some(8), Some(1)];

/// A handle of memory.
pub(crate) type Handle = Arc<dyn Piece>;

/// Who holds handles and can do without some of them.
pub(crate) trait GivesHandles: Send + Sync {
    /// What messages call it, and the bytes that it holds.
    fn holds(&self) -> (String, u64);

    /// Those of low priority are asked first. It may change at any time.
    fn priority(&self) -> i32;

    /// Gives up to this many handles back to the pool: how many it gave. Called by who needs some, at any time and on any thread: it waits
    /// for no launch, nor long for others and not beyond `until`, and passes over what is in use.
    fn give_up(&self, handles: usize, until: Option<Instant>) -> usize;
}

/// Whom to ask for handles when the driver has no memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    None,
    /// Others of this process.
    Process,
    /// Those, then other tenants of the GPU.
    Tenants,
}

/// What became of a GPU's handles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandleStats {
    /// Bytes of a handle.
    pub handle_bytes: u64,
    /// Handles in use.
    pub held: u64,
    /// Handles that were given back and wait to be used again.
    pub free: u64,
    /// Handles that the driver made, so far.
    pub from_driver: u64,
    /// Handles that went back to the driver, so far.
    pub to_driver: u64,
    /// Times that a free handle was used again.
    pub reused: u64,
}

/// The pool. Calls of the driver are made outside its lock.
pub(crate) struct Handles {
    gpu: Arc<dyn Gpu>,
    /// Who asks other processes; none where they have no part of the GPU.
    member: Option<Arc<Member>>,
    handle_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<Handle>,
    stats: HandleStats,
    /// As they came.
    givers: Crowd<Weak<dyn GivesHandles>>,
}

impl Handles {
    /// No handle yet.
    pub fn new(gpu: Arc<dyn Gpu>, member: Option<Arc<Member>>) -> Self {
        Self {
            handle_bytes: gpu.piece_bytes(),
            gpu,
            member,
            state: Mutex::default(),
        }
    }

    /// Whose they are.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Bytes of one; 0 where the GPU has none.
    pub fn handle_bytes(&self) -> u64 {
        self.handle_bytes
    }

    /// Someone to ask when the driver has no memory.
    pub fn register(&self, giver: Weak<dyn GivesHandles>) {
        let mut state = self.state.lock();
        state.givers.push(giver, |giver| giver.strong_count() > 0);
    }

    /// `count` handles: those that were given back, then new ones of the driver, then what others of this process give up, then other
    /// tenants. What they hold is unspecified. None are taken after an error.
    ///
    /// # Errors
    /// [`Error::OutOfHandles`], which says who holds how much; [`Error::Gpu`].
    pub fn take(&self, count: usize) -> Result<Vec<Handle>> {
        self.take_with(count, Ask::Tenants)
    }

    /// As [`take`](Self::take), but asks no one: for who can do without.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn take_unasked(&self, count: usize) -> Result<Vec<Handle>> {
        self.take_with(count, Ask::None)
    }

    /// As [`take`](Self::take), but asks no other tenant: for who has another way when there is none.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn take_of_process(&self, count: usize) -> Result<Vec<Handle>> {
        self.take_with(count, Ask::Process)
    }

    fn take_with(&self, count: usize, ask: Ask) -> Result<Vec<Handle>> {
        let (mut taken, mut made) = (Vec::new(), Vec::new());
        let mut round = 0;
        loop {
            self.reuse(count - made.len(), &mut taken);
            let missing = count - made.len() - taken.len();
            if missing == 0 {
                taken.append(&mut made);
                return Ok(taken);
            }
            match self.gpu.piece() {
                Ok(handle) => {
                    let mut state = self.state.lock();
                    state.stats.from_driver += 1;
                    state.stats.held += 1;
                    made.push(handle);
                }
                Err(GpuError::OutOfMemory { .. }) if ask != Ask::None && self.ask(missing, None) > 0 => {}
                Err(source) => {
                    let bytes = missing as u64 * self.handle_bytes;
                    let asked = match &source {
                        GpuError::OutOfMemory { .. } if ask == Ask::Tenants => self.ask_tenants(bytes, &mut round),
                        _ => Ok(false),
                    };
                    if let Ok(true) = asked {
                        continue;
                    }
                    self.give(taken);
                    self.unmake(made);
                    return Err(self.refused((count, missing), source, asked.err()));
                }
            }
        }
    }

    /// Gives back to the driver what it has just made: all memory that is left is no pool's to keep.
    fn unmake(&self, made: Vec<Handle>) {
        let mut state = self.state.lock();
        state.stats.held -= made.len() as u64;
        state.stats.to_driver += made.len() as u64;
    }

    /// Uses free handles again, until there are this many.
    fn reuse(&self, count: usize, taken: &mut Vec<Handle>) {
        let mut state = self.state.lock();
        let left = state.free.len().saturating_sub(count - taken.len());
        let reused = state.free.split_off(left);
        state.stats.reused += reused.len() as u64;
        state.stats.held += reused.len() as u64;
        taken.extend(reused);
    }

    /// Those who can be asked, by ascending priority; those of one priority as they came.
    fn givers(&self) -> Vec<Arc<dyn GivesHandles>> {
        let mut givers: Vec<_> = self.state.lock().givers.iter().filter_map(Weak::upgrade).collect();
        givers.sort_by_key(|giver| giver.priority());
        givers
    }

    /// Whether this process has handles that can be used for something else.
    pub fn has_some(&self) -> bool {
        !self.state.lock().free.is_empty() || self.givers().iter().any(|giver| giver.holds().1 > 0)
    }

    /// Asks others of this process for this many handles: how many came.
    fn ask(&self, wanted: usize, until: Option<Instant>) -> usize {
        let mut given = 0;
        for giver in self.givers() {
            if given >= wanted || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            given += giver.give_up(wanted - given, until);
        }
        given
    }

    /// Asks other tenants of the GPU for `bytes` bytes, once more for the same request: whether they are free now, for the first taker.
    ///
    /// # Errors
    /// [`AskError`], where they keep what they hold, or this process is at its limit.
    fn ask_tenants(&self, bytes: u64, round: &mut usize) -> Result<bool, AskError> {
        let (Some(member), Some(kept)) = (&self.member, FREE_NOT_HAD.get(*round)) else {
            return Ok(false);
        };
        *round += 1;
        let asked = member.ask(bytes, &*self.gpu, *kept);
        tracing::debug!(bytes, round, free = ?self.gpu.own_memory().map(|left| left.free), ?asked, "asked other tenants");
        asked
    }

    /// `take` until it finds memory for `bytes` bytes: what others of this process give up, then other tenants. `doing`: what it is for.
    ///
    /// # Errors
    /// [`Error::Tenants`] where nothing gives any, else as `take`.
    pub fn make_room<T>(&self, bytes: u64, doing: &str, mut take: impl FnMut() -> Result<T>) -> Result<T> {
        let is_short = |taken: &Result<T>| taken.as_ref().is_err_and(Error::is_out_of_memory);
        let mut taken = take();
        if is_short(&taken) && self.trim(bytes, None) > 0 {
            taken = take();
        }
        let mut round = 0;
        while is_short(&taken) {
            // What `take` had and gave back is of use to who takes memory in other ways.
            self.trim(bytes, None);
            match self.ask_tenants(bytes, &mut round) {
                Ok(true) => taken = take(),
                Ok(false) => break,
                Err(source) => {
                    let (doing, source) = (doing.to_owned(), Box::new(source));
                    return Err(Error::Tenants { doing, source });
                }
            }
        }
        taken
    }

    /// The driver's refusal, with who holds how much where memory is short.
    fn refused(&self, (wanted, missing): (usize, usize), source: GpuError, asked: Option<AskError>) -> Error {
        let doing = || format!("making {wanted} handles of GPU memory");
        if !matches!(source, GpuError::OutOfMemory { .. }) {
            return Error::Gpu { doing: doing(), source };
        }
        let mut holders: Vec<(String, u64)> = Vec::new();
        for (name, bytes) in self.givers().iter().map(|giver| giver.holds()) {
            match holders.iter_mut().find(|(other, _)| *other == name) {
                Some((_, all)) => *all += bytes,
                None => holders.push((name, bytes)),
            }
        }
        holders.retain(|(_, bytes)| *bytes > 0);
        Error::OutOfHandles {
            wanted: wanted as u64,
            missing: missing as u64,
            handle_bytes: self.handle_bytes,
            holders,
            asked: asked.map(Box::new),
            source,
        }
    }

    /// Takes handles back, whose addresses no kernel uses any more. They stay with the pool, to be used again first.
    pub fn give(&self, handles: Vec<Handle>) {
        let mut state = self.state.lock();
        state.stats.held -= handles.len() as u64;
        state.free.extend(handles);
    }

    /// Gives handles up for the driver, which has their memory when it is mapped nowhere any more: of memory that kernels may use still.
    pub fn drop_held(&self, handles: Vec<Handle>) {
        let mut state = self.state.lock();
        state.stats.held -= handles.len() as u64;
        state.stats.to_driver += handles.len() as u64;
        drop(state);
        drop(handles);
    }

    /// Gives `bytes` bytes back to the driver, rounded up to handles, so that other allocators of the process find memory: free handles,
    /// then those that others give up by `until`. How many bytes there were. On an NVIDIA GPU the driver has them when no kernel runs.
    pub fn trim(&self, bytes: u64, until: Option<Instant>) -> u64 {
        let wanted = usize::try_from(bytes.div_ceil(self.handle_bytes.max(1))).unwrap_or(usize::MAX);
        let free = self.state.lock().free.len();
        if free < wanted {
            self.ask(wanted - free, until);
        }
        let mut state = self.state.lock();
        let left = state.free.len().saturating_sub(wanted);
        let gone = state.free.split_off(left);
        state.stats.to_driver += gone.len() as u64;
        drop(state);
        gone.len() as u64 * self.handle_bytes
    }

    /// Counts, as they are now.
    pub fn stats(&self) -> HandleStats {
        let state = self.state.lock();
        HandleStats {
            handle_bytes: self.handle_bytes,
            free: state.free.len() as u64,
            ..state.stats
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;
    use gpuvm_sim_gpu::SimGpu;

    fn pool(handles: u64) -> Arc<Handles> {
        // The simulated GPU never gives its last one.
        let gpu = SimGpu::builder().workers(1).memory_bytes(1 << 30).build().unwrap();
        let bytes = (handles + 1) * gpu.piece_bytes();
        let gpu = SimGpu::builder().workers(1).memory_bytes(bytes).build().unwrap();
        Arc::new(Handles::new(Arc::new(gpu), None))
    }

    /// Gives what it was given, a handle at a time.
    struct Giver {
        name: &'static str,
        pool: Arc<Handles>,
        priority: AtomicI32,
        has: Mutex<Vec<Handle>>,
    }

    impl Giver {
        fn with(name: &'static str, pool: &Arc<Handles>, priority: i32, count: usize) -> Arc<Self> {
            let giver = Arc::new(Self {
                name,
                pool: Arc::clone(pool),
                priority: priority.into(),
                has: Mutex::new(pool.take(count).unwrap()),
            });
            let weak: Weak<Self> = Arc::downgrade(&giver);
            pool.register(weak);
            giver
        }

        fn left(&self) -> usize {
            self.has.lock().len()
        }
    }

    impl GivesHandles for Giver {
        fn priority(&self) -> i32 {
            self.priority.load(Ordering::Relaxed)
        }

        fn holds(&self) -> (String, u64) {
            (self.name.into(), self.left() as u64 * self.pool.handle_bytes())
        }

        fn give_up(&self, handles: usize, _until: Option<Instant>) -> usize {
            let mut has = self.has.lock();
            let left = has.len().saturating_sub(handles);
            let given = has.split_off(left);
            let count = given.len();
            self.pool.give(given);
            count
        }
    }

    #[test]
    fn handles_that_were_given_back_are_used_first_and_trim_gives_them_to_the_driver() {
        let pool = pool(8);
        let taken = pool.take(5).unwrap();
        pool.give(taken);
        let again = pool.take(6).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.held, stats.free, stats.from_driver, stats.reused), (6, 0, 6, 5));
        pool.give(again);
        let handle = pool.handle_bytes();
        assert_eq!(pool.trim(handle + 1, None), 2 * handle);
        assert_eq!((pool.stats().free, pool.stats().to_driver), (4, 2));
        assert_eq!(pool.trim(u64::MAX, None), 4 * handle);
        assert_eq!(pool.trim(1, None), 0);
        assert_eq!(pool.take(0).unwrap().len(), 0);
        // The driver has them: all of its memory is available.
        let most = pool.take(8).unwrap().len();
        assert_eq!(most, 8);
    }

    #[test]
    fn low_priorities_give_first_and_no_more_than_is_wanted() {
        let pool = pool(8);
        let dear = Giver::with("dear", &pool, 5, 3);
        let cheap = Giver::with("cheap", &pool, -1, 2);
        let between = Giver::with("between", &pool, 0, 3);
        let three = pool.take(3).unwrap();
        assert_eq!((cheap.left(), between.left(), dear.left()), (0, 2, 3));
        // Who can do without asks no one.
        assert!(matches!(pool.take_unasked(1), Err(Error::OutOfHandles { .. })));
        assert_eq!((between.left(), dear.left()), (2, 3));
        // It may change at any time.
        dear.priority.store(-2, Ordering::Relaxed);
        let one = pool.take(1).unwrap();
        assert_eq!((between.left(), dear.left()), (2, 2));
        pool.give(one);
        let error = pool.take(6).err().unwrap();
        let Error::OutOfHandles {
            wanted,
            missing,
            holders,
            ..
        } = error
        else {
            panic!("{error}")
        };
        // All that they had is free now, and was given back.
        assert_eq!((wanted, missing, holders.len()), (6, 1, 0));
        assert_eq!((pool.stats().free, pool.stats().held), (5, 3));
        pool.give(three);
        assert_eq!(pool.take(8).unwrap().len(), 8);
    }

    #[test]
    fn the_error_says_who_holds_how_much() {
        struct Miser(&'static str, u64);
        impl GivesHandles for Miser {
            fn priority(&self) -> i32 {
                0
            }
            fn holds(&self) -> (String, u64) {
                (self.0.into(), self.1)
            }
            fn give_up(&self, _: usize, _: Option<Instant>) -> usize {
                0
            }
        }
        let pool = pool(2);
        let misers =
            [("tables", 1 << 20), ("heaps", 0), ("tables", 3 << 20)].map(|(name, bytes)| Arc::new(Miser(name, bytes)));
        for miser in &misers {
            let weak: Weak<Miser> = Arc::downgrade(miser);
            pool.register(weak);
        }
        let message = pool.take(3).err().unwrap().to_string();
        assert!(
            message.contains("tables hold 4.0 MiB") && !message.contains("heaps"),
            "{message}"
        );
        // What the driver had made goes back to it.
        let stats = pool.stats();
        assert_eq!((stats.held, stats.free, stats.to_driver), (0, 0, 2));
        assert_eq!(pool.take(2).unwrap().len(), 2);
    }
}
