//! All that the device and the connection manager know.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::net::SocketAddrV4;
use std::sync::LazyLock;

use gpuvm_nic::rdma_sys as sys;
use parking_lot::{Mutex, MutexGuard};

use crate::Outcome;

/// A descriptor that can be read while something waits behind it.
pub struct Bell(pub c_int);

impl Bell {
    pub fn new() -> Outcome<Self> {
        // SAFETY: the call takes no memory.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } {
            fd if fd >= 0 => Ok(Self(fd)),
            _ => Err(libc::EMFILE),
        }
    }

    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from a local.
        unsafe { libc::write(self.0, (&raw const one).cast(), 8) };
    }

    /// To be called only when nothing waits any more. Its owner has made the descriptor one that does not block.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes are written to a local.
        unsafe { libc::read(self.0, (&raw mut count).cast(), 8) };
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing else closes it.
        unsafe { libc::close(self.0) };
    }
}

pub struct Region {
    pub domain: usize,
    pub address: u64,
    pub bytes: u64,
    pub access: u32,
}

/// A completion; none of its fields is a pointer.
#[derive(Clone, Copy)]
pub struct Entry {
    pub id: u64,
    pub status: u32,
    pub opcode: u32,
    pub bytes: u32,
    pub queue: u32,
}

pub struct CompletionQueue {
    pub entries: VecDeque<Entry>,
    pub room: usize,
    pub channel: usize,
    pub armed: bool,
}

pub struct CompletionChannel {
    pub bell: Bell,
    /// Completion queues that have something new.
    pub events: VecDeque<usize>,
}

pub struct Receive {
    pub id: u64,
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

pub struct QueuePair {
    pub domain: usize,
    pub send_queue: usize,
    pub receive_queue: usize,
    pub state: u32,
    pub peer: u32,
    pub receives: VecDeque<Receive>,
    /// Messages that found no buffer here: whose, its request, and the bytes.
    pub waiting: VecDeque<(u32, u64, Vec<u8>)>,
}

/// An event of the connection manager that nothing has read.
pub struct Pending {
    pub id: usize,
    pub listener: usize,
    pub kind: u32,
    pub status: c_int,
    pub private_data: Vec<u8>,
    pub parameters: Parameters,
}

/// What a peer asks for, or answers.
#[derive(Clone, Copy, Default)]
pub struct Parameters {
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub queue: u32,
}

pub struct EventChannel {
    pub bell: Bell,
    pub events: VecDeque<Pending>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Idle,
    Asked,
    Joined,
    Over,
}

pub struct Identifier {
    pub channel: usize,
    pub stage: Stage,
    /// The other end, while it is there.
    pub peer: Option<usize>,
    pub remote_queue: u32,
    pub address: SocketAddrV4,
}

#[derive(Default)]
pub struct World {
    pub domains: HashSet<usize>,
    pub regions: HashMap<u32, Region>,
    pub completion_queues: HashMap<usize, CompletionQueue>,
    pub completion_channels: HashMap<usize, CompletionChannel>,
    pub queue_pairs: HashMap<u32, QueuePair>,
    pub event_channels: HashMap<usize, EventChannel>,
    pub identifiers: HashMap<usize, Identifier>,
    pub listeners: HashMap<SocketAddrV4, usize>,
    pub overruns: u64,
    next: u32,
}

/// The world, locked.
pub fn world() -> MutexGuard<'static, World> {
    static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
    WORLD.lock()
}

impl World {
    /// A number that was not given before.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn objects(&self) -> u64 {
        let counts = [
            self.domains.len(),
            self.regions.len(),
            self.completion_queues.len(),
            self.queue_pairs.len(),
            self.identifiers.len(),
        ];
        counts.iter().sum::<usize>() as u64
    }

    /// Tells of the end of a request or of a receive.
    pub fn complete(&mut self, queue: usize, entry: Entry) {
        let Some(found) = self.completion_queues.get_mut(&queue) else {
            return;
        };
        if found.entries.len() >= found.room {
            self.overruns += 1;
            return;
        }
        found.entries.push_back(entry);
        if std::mem::take(&mut found.armed)
            && let Some(channel) = self.completion_channels.get_mut(&found.channel)
        {
            channel.events.push_back(queue);
            channel.bell.ring();
        }
    }

    /// Takes a queue pair into its error state: what was posted is flushed.
    pub fn fail(&mut self, number: u32) {
        let Some(pair) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        pair.state = sys::IBV_QPS_ERR;
        let (receives, queue) = (std::mem::take(&mut pair.receives), pair.receive_queue);
        let waiting = std::mem::take(&mut pair.waiting);
        for receive in receives {
            let entry = Entry {
                id: receive.id,
                status: sys::IBV_WC_WR_FLUSH_ERR,
                opcode: sys::IBV_WC_RECV,
                bytes: 0,
                queue: number,
            };
            self.complete(queue, entry);
        }
        for (sender, id, _) in waiting {
            self.request_failed(sender, id, sys::IBV_WC_RETRY_EXC_ERR);
        }
    }

    /// A request ended in an error, and with it its queue pair.
    pub fn request_failed(&mut self, number: u32, id: u64, status: u32) {
        let Some(pair) = self.queue_pairs.get(&number) else {
            return;
        };
        let entry = Entry {
            id,
            status,
            opcode: 0,
            bytes: 0,
            queue: number,
        };
        self.complete(pair.send_queue, entry);
        if self.queue_pairs[&number].state != sys::IBV_QPS_ERR {
            self.fail(number);
        }
    }

    /// Tells an identifier's owner of something.
    pub fn tell(&mut self, event: Pending) {
        let Some(identifier) = self.identifiers.get(&event.id) else {
            return;
        };
        if let Some(channel) = self.event_channels.get_mut(&identifier.channel) {
            channel.events.push_back(event);
            channel.bell.ring();
        }
    }
}

/// How many completions found no room so far.
#[unsafe(no_mangle)]
pub extern "C" fn loopback_rdma_overruns() -> u64 {
    world().overruns
}

/// How many domains, regions, queues, queue pairs and identifiers there are.
#[unsafe(no_mangle)]
pub extern "C" fn loopback_rdma_objects() -> u64 {
    world().objects()
}
