//! One thread that makes doorbell calls for GPU threads, for NICs whose doorbell needs a processor.
//!
//! Each queue pair has a word. A GPU thread publishes its requests and then stores their index there; the proxy sees a
//! word that differs from what it served last and makes the call. Words that change during a call are served by the
//! next one, so calls are coalesced, and since a word is read before its call, none is lost after the last store.
//! Without work the thread looks again for a moment, yields, and sleeps; see [`crate::sleeper`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::sleeper::Sleeper;
use crate::{NicError, Pages};

/// Bytes from one word to the next, so that posters do not share cache lines.
const WORD_STRIDE: usize = 64;
/// Words there are: queue pairs that one proxy serves.
const WORDS: usize = 4096;
/// How long the thread looks again before it yields: longer than the time from one fault to the next of a lane that
/// walks, since waking up costs as much as a call.
const SPIN: Duration = Duration::from_micros(200);
/// How often it yields before it sleeps.
const YIELDS: u32 = 4;
/// Longest sleep. A ring ends it at once; it bounds the wait all the same.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Longest sleep of a thread that is not called.
const NAP: Duration = Duration::from_micros(50);

/// Whether posters call [`DoorbellProxy::rung`] after they stored a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Each does: the thread sleeps until then.
    ByCall,
    /// Some cannot, such as threads of a GPU: without work the thread sleeps 50 microseconds at a time.
    Never,
}

/// Makes the doorbell call of one queue pair, up to the index given.
type Ring = Box<dyn FnMut(u64) -> io::Result<()> + Send>;

struct Entry {
    slot: usize,
    served: u64,
    ring: Ring,
}

struct Shared {
    words: Pages,
    entries: Mutex<Vec<Entry>>,
    sleeper: Sleeper,
    wake: Wake,
    stop: AtomicBool,
    calls: AtomicU64,
    failures: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock()
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        debug_assert!(slot < WORDS);
        // SAFETY: `words` holds WORDS words of this stride, aligned, for the life of `self`; all access is atomic.
        unsafe { &*self.words.as_ptr().add(slot * WORD_STRIDE).cast::<AtomicU64>() }
    }

    /// Makes the calls that are due. Whether there were any.
    fn round(&self) -> bool {
        let mut worked = false;
        for entry in self.lock().iter_mut() {
            // Acquire: pairs with the poster's store of the word; what it published before is visible to the call.
            let rung = self.word(entry.slot).load(Ordering::Acquire);
            if rung == entry.served {
                continue;
            }
            worked = true;
            // Relaxed: counters order nothing.
            self.calls.fetch_add(1, Ordering::Relaxed);
            let outcome = (entry.ring)(rung);
            // A refusal that may pass is tried again.
            let again = |error: &io::Error| {
                matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock
                )
            };
            if !outcome.as_ref().is_err_and(again) {
                entry.served = rung;
            }
            if let Err(error) = outcome {
                self.failures.fetch_add(1, Ordering::Relaxed);
                // The requests time out at their waiters, who report it.
                tracing::warn!(%error, "a doorbell call was refused");
            }
        }
        worked
    }

    fn run(&self) {
        self.sleeper.adopt();
        let mut idle = Idle::default();
        // Acquire: pairs with the release in `DoorbellProxy::drop`.
        while !self.stop.load(Ordering::Acquire) {
            if self.round() {
                idle = Idle::default();
            } else if idle.pause() {
                self.sleeper.doze();
                if self.round() || self.stop.load(Ordering::Acquire) {
                    self.sleeper.stay_awake();
                } else {
                    self.sleeper.sleep(match self.wake {
                        Wake::ByCall => SLEEP_MAX,
                        Wake::Never => NAP,
                    });
                }
                idle = Idle::default();
            }
        }
    }
}

/// How long the thread has been without work.
#[derive(Default)]
struct Idle {
    since: Option<Instant>,
    yields: u32,
}

impl Idle {
    /// Spins or yields once; returns whether it is time to sleep.
    fn pause(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < SPIN {
            std::hint::spin_loop();
            return false;
        }
        self.yields += 1;
        std::thread::yield_now();
        self.yields > YIELDS
    }
}

/// The doorbell proxy of one device. Dropping it ends its thread.
pub struct DoorbellProxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A queue pair's place at a [`DoorbellProxy`]. Dropping it ends the service: no call is made after that.
pub struct ProxySlot {
    shared: Arc<Shared>,
    slot: usize,
}

impl DoorbellProxy {
    /// Starts the thread, called `name`. `wake` tells whether posters call [`rung`](Self::rung).
    ///
    /// # Errors
    /// [`NicError::Thread`].
    pub fn start(name: &str, wake: Wake) -> Result<Self, NicError> {
        let shared = Arc::new(Shared {
            words: Pages::new(WORDS * WORD_STRIDE),
            entries: Mutex::default(),
            sleeper: Sleeper::default(),
            wake,
            stop: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serving.run())
            .map_err(|source| NicError::Thread {
                name: name.to_owned(),
                source,
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Serves one more queue pair: `ring` is called, by the proxy's thread, with the value of the slot's word each time
    /// it finds a new one there.
    ///
    /// # Errors
    /// [`NicError::Exhausted`].
    pub fn serve(&self, ring: impl FnMut(u64) -> io::Result<()> + Send + 'static) -> Result<ProxySlot, NicError> {
        let mut entries = self.shared.lock();
        let slot = (0..WORDS)
            .find(|slot| entries.iter().all(|entry| entry.slot != *slot))
            .ok_or(NicError::Exhausted {
                what: "doorbells of the proxy",
                limit: WORDS as u64,
            })?;
        // Relaxed: the word's address reaches its posters after this, by means that order it.
        self.shared.word(slot).store(0, Ordering::Relaxed);
        entries.push(Entry {
            slot,
            served: 0,
            ring: Box::new(ring),
        });
        Ok(ProxySlot {
            shared: Arc::clone(&self.shared),
            slot,
        })
    }

    /// Address and length in bytes of all words.
    pub fn pages(&self) -> (u64, u64) {
        (self.shared.words.address(), self.shared.words.bytes())
    }

    /// To be called after a store to a word by the same thread: wakes the proxy if it sleeps. Costs one fence and one
    /// load when it does not.
    #[inline]
    pub fn rung(&self) {
        self.shared.sleeper.rung();
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// Calls that were refused.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }
}

impl Drop for DoorbellProxy {
    fn drop(&mut self) {
        // Release: pairs with the acquire loads in `run`.
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Unparked whether asleep or not: a thread that is about to park returns at once.
            thread.thread().unpark();
            // A thread that panicked has ended as well; there is no one to tell in a drop.
            let _ = thread.join();
        }
    }
}

impl ProxySlot {
    /// Address of the word: 8 bytes. Indexes stored there only grow, from 1 on, until [`reset`](Self::reset).
    pub fn address(&self) -> u64 {
        self.shared.words.address() + (self.slot * WORD_STRIDE) as u64
    }

    /// Ends the service: waits for a call in progress, and no other is made.
    pub fn end(&self) {
        self.shared.lock().retain(|entry| entry.slot != self.slot);
    }

    /// Begins anew at 0: the queue pair was reset, and nothing posts.
    pub fn reset(&self) {
        for entry in self.shared.lock().iter_mut().filter(|entry| entry.slot == self.slot) {
            // Relaxed: nothing else stores it now; the lock orders it for the proxy's thread.
            self.shared.word(self.slot).store(0, Ordering::Relaxed);
            entry.served = 0;
        }
    }
}

impl Drop for ProxySlot {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc;

    use super::*;

    /// A poster's store and call.
    fn post(proxy: &DoorbellProxy, slot: &ProxySlot, index: u64) {
        proxy.shared.word(slot.slot).store(index, Ordering::Release);
        proxy.rung();
    }

    #[test]
    fn the_last_ring_is_never_lost() {
        let proxy = DoorbellProxy::start("proxy-test", Wake::ByCall).expect("a thread");
        let (told, heard) = mpsc::channel();
        let slot = proxy
            .serve(move |index| {
                told.send(index).expect("the test listens");
                Ok(())
            })
            .expect("a slot");
        let mut index = 0;
        for round in 0..2_000u64 {
            for _ in 0..=round % 5 {
                index += 1;
                post(&proxy, &slot, index);
            }
            if round % 100 == 0 {
                // Long enough for the thread to fall asleep.
                std::thread::sleep(Duration::from_millis(2));
            }
            loop {
                let seen = heard
                    .recv_timeout(Duration::from_secs(20))
                    .expect("the last ring arrives");
                if seen == index {
                    break;
                }
            }
        }
        assert!(proxy.calls() <= index, "no call without a ring");
    }

    #[test]
    fn rings_during_a_call_share_the_next_one() {
        let proxy = DoorbellProxy::start("proxy-test", Wake::ByCall).expect("a thread");
        let (entered, inside) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let slot = proxy
            .serve(move |index| {
                entered.send(index).expect("the test listens");
                released.recv().map_err(io::Error::other)
            })
            .expect("a slot");
        post(&proxy, &slot, 1);
        assert_eq!(inside.recv_timeout(Duration::from_secs(20)), Ok(1));
        (2..=50).for_each(|index| post(&proxy, &slot, index));
        release.send(()).expect("the call waits");
        assert_eq!(inside.recv_timeout(Duration::from_secs(20)), Ok(50));
        release.send(()).expect("the call waits");
        drop(slot);
        assert_eq!(proxy.calls(), 2);
    }

    #[test]
    fn a_slot_that_is_gone_is_not_called_and_can_be_given_again() {
        let proxy = DoorbellProxy::start("proxy-test", Wake::ByCall).expect("a thread");
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let slot = proxy
            .serve(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                Err(io::ErrorKind::InvalidInput.into())
            })
            .expect("a slot");
        let address = slot.address();
        post(&proxy, &slot, 7);
        let deadline = Instant::now() + Duration::from_secs(20);
        while proxy.failures() == 0 {
            assert!(Instant::now() < deadline, "the refusal is counted");
            std::thread::yield_now();
        }
        let number = slot.slot;
        drop(slot);
        proxy.shared.word(number).store(8, Ordering::Release);
        proxy.rung();
        let slot = proxy.serve(|_| Ok(())).expect("a slot");
        assert_eq!(slot.address(), address);
        drop(proxy);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_ring_without_a_call_is_seen() {
        let proxy = DoorbellProxy::start("proxy-test", Wake::Never).expect("a thread");
        let (told, heard) = mpsc::channel();
        let slot = proxy
            .serve(move |index| {
                told.send(index).expect("the test listens");
                Ok(())
            })
            .expect("a slot");
        let mut quick = 0;
        for index in 1..=50 {
            // Long enough for the thread to sleep.
            std::thread::sleep(Duration::from_millis(2));
            let start = Instant::now();
            proxy.shared.word(slot.slot).store(index, Ordering::Release);
            assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(index));
            quick += u32::from(start.elapsed() < SLEEP_MAX / 2);
        }
        // With sleeps of a second every ring would wait for longer; a busy machine delays some.
        assert!(quick >= 25, "{quick} of 50");
    }
}
