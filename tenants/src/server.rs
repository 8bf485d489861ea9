//! What a tenant does for others: says what it is, gives up memory, takes other terms.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Holder;
use crate::entry::{Entry, Name};
use crate::folder::{Folder, FolderError, GpuKey};
use crate::message::{self, Answer, Changed, Description, Request};
use crate::places::{Place, Places};
use crate::plan::{Stake, plan};
use crate::terms::{Terms, TermsChange};

/// How long a client may take for its request, and for its answer.
const CLIENT: Duration = Duration::from_secs(1);
/// Clients whose requests are read at once. The others wait in the socket's queue.
const CLIENTS: usize = 16;
/// Requests for memory that wait or are served at once. More are refused.
const GIVES: usize = 32;
/// The longest that one request for memory may take.
pub(crate) const GIVE_MAX: Duration = Duration::from_secs(30);
/// How often a tenant looks whether others still find it.
const LOOK: Duration = Duration::from_secs(2);
/// How long the server rests where it cannot go on: no place, no file descriptor, no thread.
const REST: Duration = Duration::from_millis(20);

/// What a tenant's threads share.
pub(crate) struct Shared {
    pub(crate) folder: Folder,
    pub(crate) gpu: GpuKey,
    pub(crate) total_bytes: u64,
    pub(crate) program: String,
    pub(crate) since: u64,
    pub(crate) terms: Mutex<Terms>,
    /// The name of the entry, which changes where somebody removed it.
    pub(crate) name: Mutex<Name>,
    /// Held for reading while a holder is called; nothing once the tenant leaves.
    pub(crate) holder: RwLock<Option<Arc<dyn Holder>>>,
    /// Held by the one request for memory that is served.
    giving: Mutex<()>,
    clients: Places,
    gives: Places,
}

impl Shared {
    pub(crate) fn new(
        (folder, gpu, name): (Folder, GpuKey, Name),
        total_bytes: u64,
        program: String,
        since: u64,
        terms: Terms,
        holder: Arc<dyn Holder>,
    ) -> Self {
        Self {
            folder,
            gpu,
            total_bytes,
            program,
            since,
            terms: Mutex::new(terms),
            name: Mutex::new(name),
            holder: RwLock::new(Some(holder)),
            giving: Mutex::new(()),
            clients: Places::new(CLIENTS),
            gives: Places::new(GIVES),
        }
    }

    fn answer(&self, request: Request, client: Place) -> Answer {
        match request {
            Request::Describe => self.describe(),
            Request::Give {
                bytes,
                within_ms,
                asker,
            } => {
                let gave = self.in_turn(client, within_ms, |holder, deadline| {
                    self.give(holder, bytes, &asker, deadline)
                });
                gave.map_or_else(|refused| refused, |bytes| Answer::Gave { bytes })
            }
            Request::Set { change, within_ms } => self.set(&change, within_ms, client),
        }
    }

    fn describe(&self) -> Answer {
        let Some(holder) = &*self.holder.read() else {
            return leaving();
        };
        // Not under the lock of the terms: a holder may ask for them.
        let terms = *self.terms.lock();
        Answer::Description(Description {
            program: self.program.clone(),
            terms,
            holding: holder.holding(),
            total_bytes: self.total_bytes,
            since: self.since,
        })
    }

    /// Takes other terms, and comes down to a limit that is lower than what is held.
    fn set(&self, change: &TermsChange, within_ms: u64, client: Place) -> Answer {
        let terms = {
            let mut terms = self.terms.lock();
            match terms.changed(change) {
                Ok(changed) => *terms = changed,
                Err(error) => return Answer::Refused { why: error.to_string() },
            }
            *terms
        };
        let holding = || Some(self.holder.read().as_ref()?.holding().total());
        let Some(held) = holding() else { return leaving() };
        // A thread that had the turn before may have taken some of it.
        let give = |holder: &dyn Holder, deadline| {
            let limit = self.terms.lock().limit();
            let above = limit.map_or(0, |limit| holder.holding().total().saturating_sub(limit));
            if above == 0 { 0 } else { holder.give_up(above, deadline) }
        };
        let gave = match terms.limit() {
            // Where it is not its turn, the terms hold all the same: the next one who asks gets what is above the limit.
            Some(limit) if held > limit => self.in_turn(client, within_ms, give).unwrap_or_default(),
            _ => 0,
        };
        Answer::Changed(Changed {
            terms,
            gave,
            holding: holding().unwrap_or(0),
        })
    }

    /// Does what may take long: one such request at a time, and not in a place that others need to be heard.
    fn in_turn(
        &self,
        client: Place,
        within_ms: u64,
        work: impl FnOnce(&dyn Holder, Instant) -> u64,
    ) -> Result<u64, Answer> {
        let deadline = Instant::now() + Duration::from_millis(within_ms).min(GIVE_MAX);
        let refused = |why: &str| Err(Answer::Refused { why: why.to_owned() });
        let Some(_place) = self.gives.take_within(Duration::ZERO) else {
            return refused("too many tenants are asking it at this moment; ask again");
        };
        drop(client);
        let Some(_turn) = self.giving.try_lock_until(deadline) else {
            return refused("it is still giving up memory for another tenant; ask again");
        };
        match &*self.holder.read() {
            Some(holder) => Ok(work(holder.as_ref(), deadline)),
            None => Err(leaving()),
        }
    }

    /// Gives what the rule of shares lets this tenant give, whatever the asker has worked out.
    fn give(&self, holder: &dyn Holder, bytes: u64, asker: &Stake, deadline: Instant) -> u64 {
        let terms = *self.terms.lock();
        let own = message::stake(&terms, &holder.holding());
        let allowed: u64 = plan(&[own], asker, bytes).iter().map(|(_, bytes)| bytes).sum();
        match allowed {
            0 => 0,
            allowed => holder.give_up(allowed, deadline),
        }
    }
}

fn leaving() -> Answer {
    Answer::Refused {
        why: "it is leaving".to_owned(),
    }
}

/// Serves until the other end of `stop` is closed. Then the entry is removed.
pub(crate) fn serve(shared: &Arc<Shared>, mut entry: Entry, stop: &UnixStream) {
    let mut warned = false;
    loop {
        let [client, stopped] = wait([entry.listener().as_fd(), stop.as_fd()], LOOK);
        if stopped {
            return;
        }
        if !entry.is_listed() {
            match enter(&shared.folder, &shared.gpu) {
                Ok(new) => {
                    *shared.name.lock() = new.name();
                    entry = new;
                    warned = false;
                    continue;
                }
                Err(error) if !warned => {
                    tracing::warn!("the tenants' registry has lost this process, which cannot enter again: {error}");
                    warned = true;
                }
                Err(_) => {}
            }
        }
        if client && !accept(shared, &entry) {
            std::thread::sleep(REST);
        }
    }
}

/// A new entry in the folder of a GPU.
pub(crate) fn enter(folder: &Folder, gpu: &GpuKey) -> Result<Entry, FolderError> {
    Entry::create(folder.create(gpu)?)
}

/// Which of two can be read, after this time at the latest. One that is closed at its other end can.
fn wait<'a>(files: [std::os::fd::BorrowedFd<'a>; 2], time: Duration) -> [bool; 2] {
    let mut polled = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
    let time = Timespec::try_from(time).ok();
    if poll(&mut polled, time.as_ref()).is_err() {
        // A signal, or no memory for a moment.
        std::thread::sleep(REST);
        return [false; 2];
    }
    polled.map(|file| !file.revents().is_empty())
}

/// Takes the next client; false where that is not possible now.
fn accept(shared: &Arc<Shared>, entry: &Entry) -> bool {
    // Before the client: without a place it stays in the queue.
    let Some(place) = shared.clients.take_within(REST) else {
        return true;
    };
    let stream = match entry.listener().accept() {
        Ok((stream, _)) => stream,
        // It has gone.
        Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
    };
    let shared = Arc::clone(shared);
    let client = std::thread::Builder::new().name("gpuvm-tenant-client".to_owned());
    client.spawn(move || serve_client(&shared, &stream, place)).is_ok()
}

fn serve_client(shared: &Shared, stream: &UnixStream, place: Place) {
    let talked = message::check_user(stream)
        .and_then(|()| message::receive(stream, Instant::now() + CLIENT))
        .map(|request| shared.answer(request, place))
        .and_then(|answer| message::send(stream, &answer, Instant::now() + CLIENT));
    // The client knows what it sent and got; this process has no one to tell.
    if let Err(error) = talked {
        tracing::debug!("a client of this tenant was not served: {error}");
    }
}
