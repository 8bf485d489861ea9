//! What reads and writes blocks, many at a time: io_uring, threads, or the caller itself.

use std::{
    io,
    sync::{Arc, Mutex as StdMutex, mpsc},
    thread::JoinHandle,
};

use io_uring::{IoUring, opcode, types};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{FileError, device::Span, opened::Opened};

/// Threads that read and write where io_uring cannot.
const THREADS: usize = 16;

/// One read or write of neighbouring blocks.
///
/// Its slots belong to the operation until it is done: nothing frees or reuses their memory, which outlives every engine.
pub(crate) struct Op {
    pub file: Arc<Opened>,
    pub write: bool,
    /// A read that failed before: it is not repeated once more.
    pub again: bool,
    /// Of a write: how many had begun, with this one.
    pub number: u64,
    /// Of the first byte, in the file.
    pub offset: u64,
    /// The blocks' slots, in the file's order.
    pub slots: Vec<u32>,
    /// Their memory.
    pub spans: Vec<Span>,
}

impl Op {
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.bytes).sum()
    }

    /// Does it here and returns the bytes moved.
    fn run(&self) -> io::Result<u64> {
        let mut done = 0;
        for &span in &self.spans {
            let Span { address, bytes } = span;
            if let Some(device) = &self.file.device {
                let (storage, offset) = (&*self.file.storage, self.offset + done);
                let got = match self.write {
                    true => device.store(storage, offset, span).map(|()| bytes)?,
                    false => device.load(storage, offset, span)?,
                };
                done += got;
                if got < bytes {
                    break;
                }
                continue;
            }
            let memory = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            let offset = self.offset + done;
            if self.write {
                // SAFETY: a slot's memory, which the operation keeps. Lanes may write it meanwhile by way of a NIC, which marks
                // the block dirty again: what is read here then is stored once more.
                let data = unsafe { std::slice::from_raw_parts(memory, bytes as usize) };
                self.file.storage.write_at(offset, data)?;
                done += bytes;
            } else {
                // SAFETY: a slot's memory that is being loaded: nothing else reaches it.
                let out = unsafe { std::slice::from_raw_parts_mut(memory, bytes as usize) };
                let got = self.file.storage.read_at(offset, out)? as u64;
                done += got;
                if got < bytes {
                    break;
                }
            }
        }
        Ok(done)
    }
}

/// An operation that has ended, and the bytes it moved.
pub(crate) type Done = (Op, io::Result<u64>);

/// Who reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring where this process may use it, else threads.
    #[default]
    Auto,
    /// io_uring, or an error. Blocks that do not go by O_DIRECT are read by threads all the same.
    Ring,
    /// Threads.
    Threads,
    /// A thread that polls, one operation a time, in an order that the seed draws: for runs that are to repeat.
    Polled(u64),
}

/// Whether this process may use io_uring.
///
/// # Errors
/// The system's reason: a kernel without it, a limit, a container's filter.
pub fn try_io_uring() -> io::Result<()> {
    Ring::new(1).map(drop)
}

/// Engines at work.
pub(crate) struct Engines {
    ring: Option<Ring>,
    threads: Threads,
    polled: Option<Polled>,
    /// What moves blocks where slots are a device's memory.
    device: Option<&'static str>,
    depth: usize,
    under_way: usize,
}

impl Engines {
    /// `device`: what moves blocks where slots are a device's memory, in threads.
    pub fn start(engine: Engine, depth: usize, device: Option<&'static str>) -> Result<Self, FileError> {
        let ring = match engine {
            _ if device.is_some() => None,
            Engine::Threads | Engine::Polled(_) => None,
            Engine::Auto | Engine::Ring => match (Ring::new(depth), engine) {
                (Ok(ring), _) => Some(ring),
                (Err(source), Engine::Ring) => {
                    return Err(FileError::Ring {
                        source: Arc::new(source),
                    });
                }
                (Err(error), _) => {
                    tracing::info!(%error, "no io_uring here: threads read files");
                    None
                }
            },
        };
        let polled = match engine {
            Engine::Polled(seed) => Some(Polled {
                waiting: Vec::new(),
                draw: ChaCha8Rng::seed_from_u64(seed),
            }),
            _ => None,
        };
        Ok(Self {
            ring,
            threads: Threads::default(),
            polled,
            device,
            depth,
            under_way: 0,
        })
    }

    /// What reads and writes, for reports.
    pub fn name(&self) -> &'static str {
        match (&self.ring, &self.polled) {
            (Some(_), _) => "io_uring",
            (None, Some(_)) => "polled",
            (None, None) => self.device.unwrap_or("threads"),
        }
    }

    /// Operations that may be added now.
    pub fn room(&self) -> usize {
        self.depth - self.under_way
    }

    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Begins it, at the latest with [`start_all`](Self::start_all). There is room.
    pub fn begin(&mut self, op: Op) {
        self.under_way += 1;
        if let Some(polled) = &mut self.polled {
            return polled.push(op);
        }
        match (&mut self.ring, op.file.storage.descriptor(op.offset, op.bytes())) {
            (Some(ring), Some(descriptor)) => {
                if let Some(op) = ring.push(op, descriptor) {
                    self.threads.push(op);
                }
            }
            _ => self.threads.push(op),
        }
    }

    /// Tells the kernel of what was begun.
    pub fn start_all(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.start_all();
        }
    }

    /// Appends what has ended. It does not wait.
    pub fn reap(&mut self, done: &mut Vec<Done>) {
        let before = done.len();
        if let Some(polled) = &mut self.polled {
            done.extend(polled.next());
        }
        if let Some(ring) = &mut self.ring {
            ring.reap(done);
        }
        self.threads.reap(done);
        self.under_way -= done.len() - before;
    }
}

/// Operations that the thread that polls does. A device reads and writes memory at any time between an operation's begin and its end: here at
/// one of the two.
struct Polled {
    waiting: Vec<(Op, Option<io::Result<u64>>)>,
    draw: ChaCha8Rng,
}

impl Polled {
    fn push(&mut self, op: Op) {
        let at_once = self.draw.random_bool(0.5);
        let result = at_once.then(|| op.run());
        self.waiting.push((op, result));
    }

    fn next(&mut self) -> Option<Done> {
        if self.waiting.is_empty() {
            return None;
        }
        let place = self.draw.random_range(0..self.waiting.len());
        let (op, result) = self.waiting.swap_remove(place);
        let result = result.unwrap_or_else(|| op.run());
        Some((op, result))
    }
}

/// io_uring.
struct Ring {
    ring: IoUring,
    /// Operations under way, by the number that the kernel gives back, with the vectors that it reads.
    ops: Vec<Option<(Op, Box<[libc::iovec]>)>>,
    free: Vec<usize>,
    /// Pushed, and the kernel does not know.
    fresh: usize,
}

// SAFETY: the vectors are plain addresses of slots, which the thread that holds the ring may use; the ring itself is Send.
unsafe impl Send for Ring {}

impl Ring {
    fn new(depth: usize) -> io::Result<Self> {
        // Without IORING_SETUP_COOP_TASKRUN: then completions come only when a thread of ours enters the kernel, and who looks for them does not.
        let ring = IoUring::new((depth as u32).next_power_of_two())?;
        Ok(Self {
            ring,
            ops: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            fresh: 0,
        })
    }

    /// Gives the operation back where it has no place for it.
    fn push(&mut self, op: Op, descriptor: i32) -> Option<Op> {
        let Some(place) = self.free.pop() else { return Some(op) };
        let vectors: Box<[_]> = op
            .spans
            .iter()
            .map(|span| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(span.address as usize),
                iov_len: span.bytes as usize,
            })
            .collect();
        let (first, count) = (vectors.as_ptr(), vectors.len() as u32);
        let fd = types::Fd(descriptor);
        let entry = match op.write {
            true => opcode::Writev::new(fd, first, count).offset(op.offset).build(),
            false => opcode::Readv::new(fd, first, count).offset(op.offset).build(),
        };
        // The file stays open, and the vectors stay where they are, until the operation is reaped.
        self.ops[place] = Some((op, vectors));
        let entry = entry.user_data(place as u64);
        // SAFETY: descriptor, vectors and slots are valid until the operation has ended: see `Op` and the line above; `drop` waits.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            self.fresh += 1;
            return None;
        }
        // The ring has a place for each operation that may be under way; should it be full all the same, others do this one.
        self.free.push(place);
        self.ops[place].take().map(|(op, _)| op)
    }

    fn start_all(&mut self) {
        while self.fresh > 0 {
            match self.ring.submit() {
                Ok(count) if count > 0 => self.fresh -= count.min(self.fresh),
                // Too many completions wait, or memory is short: both pass, when completions are reaped at the latest. The next poll tries again.
                Ok(_) | Err(_) => return,
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        for entry in self.ring.completion() {
            let place = entry.user_data() as usize;
            let Some((op, _)) = self.ops.get_mut(place).and_then(Option::take) else {
                continue;
            };
            self.free.push(place);
            let result = match entry.result() {
                moved if moved >= 0 => Ok(moved as u64),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            done.push((op, result));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel reads and writes slots until then.
        let mut done = Vec::new();
        while self.ops.iter().any(Option::is_some) {
            self.start_all();
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "cannot wait for reads and writes: their memory is kept");
                std::mem::forget(std::mem::take(&mut self.ops));
                return;
            }
            self.reap(&mut done);
        }
    }
}

/// Threads that do one operation after the other. They are started when the first one comes.
#[derive(Default)]
struct Threads {
    at_work: Option<AtWork>,
}

struct AtWork {
    /// None once the threads are to end.
    todo: Option<mpsc::Sender<Op>>,
    done: mpsc::Receiver<Done>,
    tell: mpsc::Sender<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn push(&mut self, op: Op) {
        let at_work = self.at_work.get_or_insert_with(AtWork::start);
        match &at_work.todo {
            // They listen as long as it lives.
            Some(todo) if !at_work.threads.is_empty() => drop(todo.send(op)),
            // The system gives no thread: it is done here.
            _ => {
                let result = op.run();
                drop(at_work.tell.send((op, result)));
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        if let Some(at_work) = &self.at_work {
            done.extend(at_work.done.try_iter());
        }
    }
}

impl AtWork {
    fn start() -> Self {
        let (todo, listen) = mpsc::channel::<Op>();
        let (tell, done) = mpsc::channel();
        let listen = Arc::new(StdMutex::new(listen));
        let thread = |index| {
            let (listen, tell) = (Arc::clone(&listen), tell.clone());
            let body = move || {
                loop {
                    // Nothing panics with the lock.
                    let next = listen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
                    let Ok(op) = next else { return };
                    let result = op.run();
                    if tell.send((op, result)).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name(format!("files-{index}")).spawn(body)
        };
        let threads = (0..THREADS).map_while(|index| thread(index).ok()).collect();
        Self {
            todo: Some(todo),
            done,
            tell,
            threads,
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        // They end what was begun first: it is in slots that are in use.
        self.todo = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
