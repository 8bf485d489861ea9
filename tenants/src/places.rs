//! A bounded number of places, each of which one thread has at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// This many places.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A place that is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Inner>);

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new(Inner {
            free: Mutex::new(count),
            freed: Condvar::new(),
        }))
    }

    /// A place, if one is free or becomes free in this time.
    pub(crate) fn take_within(&self, time: Duration) -> Option<Place> {
        let until = Instant::now() + time;
        let mut free = self.0.free.lock();
        while *free == 0 {
            if self.0.freed.wait_until(&mut free, until).timed_out() && *free == 0 {
                return None;
            }
        }
        *free -= 1;
        Some(Place(Arc::clone(&self.0)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_places_are_taken_than_there_are() {
        let places = Places::new(2);
        let first = places.take_within(Duration::ZERO).unwrap();
        let _second = places.take_within(Duration::ZERO).unwrap();
        assert!(places.take_within(Duration::from_millis(1)).is_none());
        let waiting = {
            let places = places.clone();
            std::thread::spawn(move || places.take_within(Duration::from_secs(60)).is_some())
        };
        drop(first);
        assert!(waiting.join().unwrap());
    }
}
