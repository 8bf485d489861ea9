//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic of a user's callback must not take the GPU with it; every critical section here leaves its data whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
