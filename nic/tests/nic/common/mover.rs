//! A mover that copies by the processor, when it is let.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuvm_nic::soft::SoftNicBuilder;
use gpuvm_nic::{Move, Mover, MoverError, MoverLane, Pages, SoftNic};

use crate::common::Bed;

/// How long calls may wait for a mover that a test holds.
pub const SHORT: Duration = Duration::from_millis(50);

/// What a test says to the mover, and hears of it.
#[derive(Default)]
pub struct Wires {
    /// Nothing arrives while set.
    pub held: bool,
    /// Submits of data that are refused.
    pub refuse_data: u32,
    /// Every submit is refused, and `completed` says so too.
    pub broken: bool,
    /// Most copies of data in one submit.
    pub largest: usize,
    /// Batches started.
    pub submits: u64,
    /// Copies of data, in the order of their start.
    pub moves: Vec<Move>,
}

/// Copies by the processor, when it is let.
#[derive(Clone, Default)]
pub struct TestMover(pub Arc<Mutex<Wires>>);

struct TestLane {
    wires: Arc<Mutex<Wires>>,
    staging: Pages,
    waiting: VecDeque<(Vec<Move>, Vec<Move>)>,
    arrived: u64,
}

impl TestMover {
    pub fn with<R>(&self, act: impl FnOnce(&mut Wires) -> R) -> R {
        act(&mut self.0.lock().unwrap())
    }

    pub fn hold(&self, held: bool) {
        self.with(|wires| wires.held = held);
    }

    pub fn bed(&self, builder: SoftNicBuilder) -> Bed {
        Bed::new(builder.mover(Arc::new(self.clone())))
    }

    pub fn manual(&self) -> Bed {
        self.bed(SoftNic::builder().engines(0).bound(SHORT))
    }
}

impl Mover for TestMover {
    fn lane(&self, staging_bytes: u64) -> Result<Box<dyn MoverLane>, MoverError> {
        if self.with(|wires| wires.broken) {
            return Err("the test has no lanes".into());
        }
        Ok(Box::new(TestLane {
            wires: Arc::clone(&self.0),
            staging: Pages::new(staging_bytes as usize),
            waiting: VecDeque::new(),
            arrived: 0,
        }))
    }
}

fn copy(span: &Move) {
    for at in 0..span.bytes {
        // SAFETY: spans of a bed's memory, of a poster's pages and of the staging, all accessed by atomics only.
        let (to, from): (&AtomicU8, &AtomicU8) = unsafe {
            (
                &*std::ptr::with_exposed_provenance((span.to + at) as usize),
                &*std::ptr::with_exposed_provenance((span.from + at) as usize),
            )
        };
        // Release, ascending: the last byte of a completion makes it valid.
        to.store(from.load(Ordering::Relaxed), Ordering::Release);
    }
}

impl TestLane {
    fn deliver(&mut self) {
        while let Some((data, then)) = self.waiting.pop_front() {
            // Backwards: nothing may count on an order inside a batch.
            data.iter().rev().for_each(copy);
            then.iter().rev().for_each(copy);
            self.arrived += 1;
        }
    }
}

impl MoverLane for TestLane {
    fn staging(&self) -> u64 {
        self.staging.address()
    }

    unsafe fn submit(&mut self, data: &[Move], then: &[Move]) -> Result<(), MoverError> {
        let held = {
            let mut wires = self.wires.lock().unwrap();
            if wires.broken {
                return Err("the wire is cut".into());
            }
            if wires.refuse_data > 0 && !data.is_empty() {
                wires.refuse_data -= 1;
                return Err("the wire is too thin".into());
            }
            wires.submits += 1;
            wires.largest = wires.largest.max(data.len());
            wires.moves.extend(data);
            wires.held
        };
        self.waiting.push_back((data.to_vec(), then.to_vec()));
        if !held {
            self.deliver();
        }
        Ok(())
    }

    fn completed(&mut self) -> Result<u64, MoverError> {
        let (held, broken) = {
            let wires = self.wires.lock().unwrap();
            (wires.held, wires.broken)
        };
        if broken {
            self.waiting.clear();
            return Err("the wire is cut".into());
        }
        if !held {
            self.deliver();
        }
        Ok(self.arrived)
    }
}

impl Drop for TestLane {
    fn drop(&mut self) {
        self.deliver();
    }
}
