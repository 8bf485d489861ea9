//! How a thread sleeps until a doorbell is rung, without losing a ring.
//!
//! | poster | sleeping thread |
//! |---|---|
//! | store the doorbell | [`Sleeper::doze`]: store `asleep` |
//! | [`Sleeper::rung`]: fence (SeqCst) | fence (SeqCst) |
//! | load `asleep`; if set, wake | look at the doorbells again; if one changed, do not sleep |
//!
//! Of two sequentially consistent fences one comes first, so at least one side sees the other's store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;
use std::time::Duration;

/// A thread that sleeps, and those who wake it.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// The thread sleeps, or is about to: a ring must wake it.
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// Names the calling thread as the one that sleeps. To be called before its first sleep.
    pub fn adopt(&self) {
        // It was not set before: `Err` is moot.
        let _ = self.thread.set(std::thread::current());
    }

    /// To be called after a doorbell store by the same thread: wakes the thread if it sleeps.
    #[inline]
    pub fn rung(&self) {
        // SeqCst fence: the caller's doorbell store before, the load of `asleep` after; pairs with the fence in `doze`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the thread if it sleeps.
    #[cold]
    pub fn wake(&self) {
        // Relaxed: only picks one of several wakers; the thread looks at the doorbells anew in any case.
        if self.asleep.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Says that this thread is about to sleep. Doorbells are to be looked at once more after this call.
    pub fn doze(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        // SeqCst: the store before, the loads of the doorbells after; pairs with the fence in `rung`.
        fence(Ordering::SeqCst);
    }

    /// Takes it back: there was work.
    pub fn stay_awake(&self) {
        // Relaxed: a waker that comes between finds a thread that is awake, and unparks it in vain.
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Sleeps until woken, at most `bound`; whether a ring ended it. Where none did, a ring still wakes this thread from its next sleep,
    /// until [`stay_awake`](Self::stay_awake).
    pub fn rest(&self, bound: Duration) -> bool {
        std::thread::park_timeout(bound);
        // Relaxed: as in `stay_awake`.
        !self.asleep.load(Ordering::Relaxed)
    }

    /// Sleeps until woken, at most `bound`; whether a ring ended it.
    pub fn sleep(&self, bound: Duration) -> bool {
        std::thread::park_timeout(bound);
        // Relaxed: as in `stay_awake`.
        !self.asleep.swap(false, Ordering::Relaxed)
    }
}
