//! The tenants that are there, and what one of them is asked.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::entry::{self, Name};
use crate::folder::{Folder, FolderError, GpuFolder, GpuKey};
use crate::message::{self, Answer, Changed, Description, PeerError, Request};
use crate::plan::Stake;
use crate::terms::TermsChange;

/// How long a tenant may take to say what it is.
pub(crate) const DESCRIBE: Duration = Duration::from_secs(1);
/// How long all tenants may take together, however many do not answer.
const DESCRIBE_ALL: Duration = Duration::from_secs(3);
/// How long an answer may be under way after the work for it had to be done.
const UNDER_WAY: Duration = Duration::from_millis(500);
/// How often a tenant is looked after whose socket is not there yet, or not any more.
const LOOK: Duration = Duration::from_millis(5);
/// Tenants that are asked at once.
const AT_ONCE: usize = 16;

/// A tenant of a GPU, as it was found.
#[derive(Debug)]
pub struct Peer {
    folder: Arc<GpuFolder>,
    name: Name,
    /// What it says of itself, or why it says nothing.
    pub answer: Result<Description, PeerError>,
}

impl Peer {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.name.pid
    }

    pub(crate) fn name(&self) -> Name {
        self.name
    }

    /// Changes its terms. Where it holds more than a new limit it shrinks, within `within`.
    ///
    /// # Errors
    /// It does not answer, or refuses: the limit would be below the minimum.
    pub fn set(&self, change: &TermsChange, within: Duration) -> Result<Changed, PeerError> {
        let request = Request::Set {
            change: *change,
            within_ms: millis(within),
        };
        match self.call(&request, message::deadline_in(within.saturating_add(UNDER_WAY)))? {
            Answer::Changed(changed) => Ok(changed),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for memory; gives the bytes that are free now.
    pub(crate) fn give(&self, bytes: u64, asker: &Stake, within: Duration) -> Result<u64, PeerError> {
        let request = Request::Give {
            bytes,
            within_ms: millis(within),
            asker: *asker,
        };
        match self.call(&request, message::deadline_in(within.saturating_add(UNDER_WAY)))? {
            Answer::Gave { bytes } => Ok(bytes),
            other => Err(unexpected(other)),
        }
    }

    fn call(&self, request: &Request, deadline: Instant) -> Result<Answer, PeerError> {
        call(&self.folder, self.name, request, deadline)
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

fn unexpected(answer: Answer) -> PeerError {
    match answer {
        Answer::Refused { why } => PeerError::Refused {
            why: message::plain_text(&why),
        },
        _ => PeerError::Garbage {
            why: "its answer does not match the question".to_owned(),
        },
    }
}

/// The tenants of a GPU, in the order of their processes, with what they say of themselves. What dead ones left is removed.
/// It takes 3 seconds at most.
///
/// # Errors
/// A folder that cannot be read, or is not the user's alone.
pub fn tenants(folder: &Folder, gpu: &GpuKey) -> Result<Vec<Peer>, FolderError> {
    match folder.open(gpu)? {
        Some(folder) => described(&folder, None, Instant::now() + DESCRIBE_ALL),
        None => Ok(Vec::new()),
    }
}

/// The tenants of a GPU but `own`, described before `deadline`.
pub(crate) fn described(
    folder: &Arc<GpuFolder>,
    own: Option<Name>,
    deadline: Instant,
) -> Result<Vec<Peer>, FolderError> {
    let mut names = entry::living(folder)?;
    names.retain(|&name| Some(name) != own);
    let deadline = deadline.min(Instant::now() + DESCRIBE_ALL);
    let (queue, found) = (Mutex::new(names.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(&name) = { queue.lock().next() } {
                let until = deadline.min(Instant::now() + DESCRIBE);
                if let Some(answer) = describe(folder, name, until) {
                    let folder = Arc::clone(folder);
                    found.lock().push(Peer { folder, name, answer });
                }
            }
        };
        for number in 1..names.len().min(AT_ONCE) {
            let builder = std::thread::Builder::new().name(format!("gpuvm-peer-{number}"));
            // Without more threads it takes longer.
            if builder.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut found = found.into_inner();
    found.sort_by_key(|peer| peer.name);
    Ok(found)
}

/// What a tenant says of itself; nothing where it has ended.
fn describe(folder: &GpuFolder, name: Name, deadline: Instant) -> Option<Result<Description, PeerError>> {
    loop {
        let answer = call(folder, name, &Request::Describe, deadline);
        let error = match answer {
            Ok(Answer::Description(mut description)) => {
                description.program = message::plain_text(&description.program);
                return Some(Ok(description));
            }
            Ok(other) => unexpected(other),
            Err(error) => error,
        };
        if !entry::lives(folder, name) {
            return None;
        }
        // It is about to join or to leave.
        let is_moment = matches!(&error, PeerError::Io(_));
        if !is_moment || Instant::now() >= deadline {
            return Some(Err(error));
        }
        std::thread::sleep(LOOK);
    }
}

/// Asks a tenant, and waits for its answer until `deadline`.
fn call(folder: &GpuFolder, name: Name, request: &Request, deadline: Instant) -> Result<Answer, PeerError> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(io::Error::from)?;
    // The kernel waits with a connection too: as long as the peer has accepted none of those before.
    set_socket_timeout(&socket, Timeout::Send, Some(message::left(deadline)?)).map_err(io::Error::from)?;
    let address = SocketAddrUnix::new(folder.reach(name.socket())).map_err(io::Error::from)?;
    connect(&socket, &address).map_err(io::Error::from)?;
    let stream = UnixStream::from(socket);
    message::check_user(&stream)?;
    message::send(&stream, request, deadline)?;
    message::receive(&stream, deadline)
}
