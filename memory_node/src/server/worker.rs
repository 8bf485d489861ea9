//! Zeroing, registering and deregistering take long for gigabytes: a thread of its own does them, so that the node goes
//! on answering.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use super::shared::Shared;
use crate::error::NodeError;
use crate::pool::Slice;
use crate::protocol::Reason;
use crate::verbs::{Domain, Region, RegionAccess};

/// A grant's memory and its keys. Dropping it takes the keys back first, then the memory, unless other leases share it. It is counted
/// until then: where the node counts no grants, the device has nothing of theirs.
#[derive(Debug)]
pub struct Lease {
    region: Option<Region>,
    slice: Option<Arc<Slice>>,
    /// Bytes that are counted.
    counted: Option<u64>,
    shared: Arc<Shared>,
}

impl Lease {
    fn region(&self) -> &Region {
        self.region
            .as_ref()
            .expect("only a lease that is dropped or failed has none")
    }

    /// Its memory, for another client that may read it.
    pub fn memory(&self) -> &Arc<Slice> {
        self.slice.as_ref().expect("taken in `drop` alone")
    }

    pub fn rkey(&self) -> u32 {
        self.region().rkey()
    }

    pub fn address(&self) -> u64 {
        self.memory().pointer() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.memory().bytes()
    }

    fn register(&mut self, domain: &Arc<Domain>, access: RegionAccess) -> Result<(), NodeError> {
        let slice = self.memory();
        // SAFETY: the slice is released after the region, see `drop`; no reference points into it.
        let region = unsafe { Region::register(domain, slice.pointer(), slice.bytes() as usize, access) }?;
        self.region = Some(region);
        Ok(())
    }

    fn give_back(&mut self) {
        let Some(slice) = self.slice.take() else { return };
        if let Some(Err(error)) = self.region.take().map(Region::deregister) {
            // Somebody may still have a key to it: it must never be granted again.
            tracing::error!(%error, bytes = slice.bytes(), "memory of a grant is lost");
            self.shared.counted().lost_bytes += slice.bytes();
            std::mem::forget(slice);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
        if let Some(bytes) = self.counted {
            self.shared.uncount_grant(bytes);
        }
    }
}

/// Why a lease was not made.
pub type Failure = (Reason, u64);

/// What the worker is to do. Sessions and requests go through to the answer.
#[derive(Debug)]
pub enum Job {
    Make {
        session: u64,
        request: u64,
        domain: Arc<Domain>,
        slice: Slice,
    },
    /// Makes a key of another client's for what is shared, which allows READ alone.
    Attach {
        session: u64,
        request: u64,
        domain: Arc<Domain>,
        slice: Arc<Slice>,
    },
    /// Takes the key that allows WRITE back and makes one that does not.
    Seal {
        session: u64,
        request: u64,
        grant: u64,
        domain: Arc<Domain>,
        lease: Lease,
    },
    Release {
        session: u64,
        request: u64,
        lease: Lease,
    },
    /// Of a client that is gone: nothing waits for it.
    Revoke {
        leases: Vec<Lease>,
    },
}

/// What the worker has done.
#[derive(Debug)]
pub enum Done {
    Made {
        session: u64,
        request: u64,
        made: Result<Lease, Failure>,
    },
    Sealed {
        session: u64,
        request: u64,
        grant: u64,
        sealed: Result<Lease, Failure>,
    },
    Released {
        session: u64,
        request: u64,
    },
}

fn failure(error: &NodeError) -> Failure {
    match error {
        NodeError::Register {
            source,
            locked_max: Some(max),
            ..
        } if matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) => (Reason::MemoryLocked, *max),
        NodeError::Register { source, .. } => {
            let code = source.raw_os_error().unwrap_or(libc::EIO);
            (Reason::RegisterFailed, code.unsigned_abs().into())
        }
        _ => (Reason::RegisterFailed, libc::EIO as u64),
    }
}

/// Does jobs until nothing can send any.
pub fn run(jobs: &Receiver<Job>, done: &Sender<Done>, shared: &Arc<Shared>) {
    for job in jobs {
        let finished = match job {
            Job::Make {
                session,
                request,
                domain,
                slice,
            } => Some(Done::Made {
                session,
                request,
                made: make(&domain, slice, shared),
            }),
            Job::Attach {
                session,
                request,
                domain,
                slice,
            } => Some(Done::Made {
                session,
                request,
                made: lease(&domain, slice, shared, RegionAccess::RemoteRead),
            }),
            Job::Seal {
                session,
                request,
                grant,
                domain,
                lease,
            } => Some(Done::Sealed {
                session,
                request,
                grant,
                sealed: seal(&domain, lease),
            }),
            Job::Release {
                session,
                request,
                lease,
            } => {
                drop(lease);
                Some(Done::Released { session, request })
            }
            Job::Revoke { leases } => {
                drop(leases);
                None
            }
        };
        if let Some(finished) = finished {
            // A node that is gone needs no answer; what is in it is given back by its drop.
            let _ = done.send(finished);
            shared.waker.wake();
        }
    }
}

fn make(domain: &Arc<Domain>, mut slice: Slice, shared: &Arc<Shared>) -> Result<Lease, Failure> {
    // Before there is a key, so that nothing sees what another client left.
    if !slice.zero_unless(|| shared.is_stopping()) {
        return Err((Reason::Stopping, 0));
    }
    lease(domain, Arc::new(slice), shared, RegionAccess::RemoteAll)
}

/// A lease of memory whose content is the client's to see.
fn lease(
    domain: &Arc<Domain>,
    slice: Arc<Slice>,
    shared: &Arc<Shared>,
    access: RegionAccess,
) -> Result<Lease, Failure> {
    let mut lease = Lease {
        region: None,
        slice: Some(slice),
        counted: None,
        shared: Arc::clone(shared),
    };
    let registered = lease.register(domain, access);
    registered.map_err(|error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "a grant could not be registered"
        );
        failure(&error)
    })?;
    shared.count_grant(lease.bytes());
    lease.counted = Some(lease.bytes());
    Ok(lease)
}

fn seal(domain: &Arc<Domain>, mut lease: Lease) -> Result<Lease, Failure> {
    if let Some(Err(error)) = lease.region.take().map(Region::deregister) {
        tracing::error!(%error, "a grant could not be sealed");
        if let Some(slice) = lease.slice.take() {
            lease.shared.counted().lost_bytes += slice.bytes();
            std::mem::forget(slice);
        }
        let code = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        let code = code.and_then(io::Error::raw_os_error).unwrap_or(libc::EIO);
        return Err((Reason::RegisterFailed, code.unsigned_abs().into()));
    }
    lease
        .register(domain, RegionAccess::RemoteRead)
        .map_err(|error| failure(&error))?;
    Ok(lease)
}
