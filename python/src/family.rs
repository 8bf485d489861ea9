//! What ends with a virtual memory.

use std::sync::{Arc, Weak};

use gpuvm::RawElasticBuffer;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{apart::Apart, launch::Flights, slot::Slot};

/// What ends with a virtual memory.
pub trait Child: Send + Sync {
    /// Ends it, and says whether all of it reached its home.
    ///
    /// # Errors
    /// What could not be done.
    fn end(&self, py: Python<'_>) -> PyResult<()>;

    /// Waits for what nothing else knows to run with it, and raises what that told.
    ///
    /// # Errors
    /// As said.
    fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        let _ = py;
        Ok(())
    }
}

/// A list of what others end.
struct Crowd<T> {
    all: Vec<T>,
    /// This many of them are looked through for those that are gone: a look whenever one is added would cost as much as all are many.
    full: usize,
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        let (all, full) = (Vec::new(), 0);
        Self { all, full }
    }
}

impl<T> Crowd<T> {
    fn push(&mut self, one: T, is_there: impl Fn(&T) -> bool) {
        if self.all.len() >= self.full {
            self.all.retain(is_there);
            self.full = 2 * self.all.len() + 16;
        }
        self.all.push(one);
    }
}

/// What a virtual memory and all that was made of it share.
#[derive(Default)]
pub struct Family {
    pub flights: Arc<Flights>,
    children: Mutex<Crowd<Weak<dyn Child>>>,
    /// Elastic buffers that have a tag.
    tagged: Mutex<Crowd<(String, Weak<Slot<RawElasticBuffer>>)>>,
}

impl Family {
    /// Notes what ends with the virtual memory.
    pub fn add(&self, child: &Arc<impl Child + 'static>) {
        let child: Weak<dyn Child> = Arc::downgrade(child) as _;
        let mut children = self.children.lock();
        children.push(child, |child| child.strong_count() > 0);
    }

    /// Notes an elastic buffer that has the tag.
    pub fn tag(&self, tag: String, buffer: &Arc<Slot<RawElasticBuffer>>) {
        let mut tagged = self.tagged.lock();
        tagged.push((tag, Arc::downgrade(buffer)), |(_, buffer)| buffer.strong_count() > 0);
    }

    /// The elastic buffers that have the tag.
    pub fn tagged(&self, tag: &str) -> Vec<Arc<Slot<RawElasticBuffer>>> {
        let tagged = self.tagged.lock();
        let those = tagged.all.iter().filter(|(other, _)| other == tag);
        those.filter_map(|(_, buffer)| buffer.upgrade()).collect()
    }

    /// Waits for what nothing else knows to run. The first error is returned; the rest is waited for all the same.
    ///
    /// # Errors
    /// What it told.
    pub fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        let children: Vec<_> = self.children.lock().all.iter().filter_map(Weak::upgrade).collect();
        let mut outcome = Ok(());
        for child in children {
            outcome = outcome.and(child.wait_idle(py));
        }
        outcome
    }

    /// Ends all of it. The first error is returned; the rest ends all the same.
    ///
    /// # Errors
    /// What could not be done.
    pub fn end(&self, py: Python<'_>) -> PyResult<()> {
        let children = std::mem::take(&mut *self.children.lock());
        let mut outcome = Ok(());
        for child in children.all.iter().filter_map(Weak::upgrade) {
            outcome = outcome.and(child.end(py));
        }
        outcome
    }
}

impl<T: Send + Sync> Child for Slot<T> {
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let value = self.take()?;
        py.apart(|| drop(value));
        Ok(())
    }
}
