//! Threads that work in the background until they are dropped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A thread of the runtime's.
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that takes a turn every `period`, as long as the turn says so and it is not dropped: a long turn looks at
    /// the flag itself.
    ///
    /// # Errors
    /// The system's.
    pub fn start(
        name: &str,
        period: Duration,
        mut turn: impl FnMut(&AtomicBool) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let body = move || {
            // Acquire: pairs with the release in `drop`.
            while !told.load(Ordering::Acquire) {
                std::thread::park_timeout(period);
                if !turn(&told) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Has it take its next turn at once.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // The last handle of what it works for may have been the thread's own.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}
