//! What tenants say to each other: one request and one answer per connection, as JSON behind its length.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{self, SendFlags};
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::plan::Stake;
use crate::terms::{Terms, TermsChange};

/// The version of the messages. Fields that a reader does not know are left out of account, so that new ones need no new version.
const VERSION: u32 = 1;

/// Longest message in bytes, without its length.
const MESSAGE_BYTES_MAX: u32 = 16 << 10;

/// What is asked of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// What it is and holds.
    Describe,
    /// To give up memory.
    Give {
        /// So much.
        bytes: u64,
        /// Within this time.
        within_ms: u64,
        /// For whom.
        asker: Stake,
    },
    /// To keep to other terms from now on.
    Set {
        /// The change.
        change: TermsChange,
        /// How long it may take to come down to a lower limit.
        within_ms: u64,
    },
}

/// What a tenant answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To `Describe`.
    Description(Description),
    /// To `Give`: what is free now.
    Gave {
        /// In bytes.
        bytes: u64,
    },
    /// To `Set`.
    Changed(Changed),
    /// It does not do it.
    Refused {
        /// Why.
        why: String,
    },
}

/// What a tenant holds of a GPU's memory now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Frames, which hold pages.
    pub frames: u64,
    /// Buffers and other arrays that the program asked for.
    pub buffers: u64,
    /// All else: page tables, queues, code.
    pub other: u64,
}

impl Holding {
    /// All of it, in bytes.
    pub fn total(&self) -> u64 {
        // A peer may claim anything.
        self.frames.saturating_add(self.buffers).saturating_add(self.other)
    }
}

/// What a tenant says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The name of its program.
    pub program: String,
    /// What it is promised and held to.
    pub terms: Terms,
    /// What it holds.
    pub holding: Holding,
    /// The memory of its GPU, in bytes.
    pub total_bytes: u64,
    /// When it joined, in seconds since 1970.
    pub since: u64,
}

impl Description {
    /// The tenant as the rule of shares sees it.
    pub fn stake(&self) -> Stake {
        stake(&self.terms, &self.holding)
    }
}

/// A tenant as the rule of shares sees it.
pub(crate) fn stake(terms: &Terms, holding: &Holding) -> Stake {
    Stake {
        holding: holding.total(),
        minimum: terms.minimum(),
        limit: terms.limit(),
        priority: terms.priority(),
    }
}

/// What became of a change of terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The terms from now on.
    pub terms: Terms,
    /// What the tenant gave up to come below a lower limit, in bytes.
    pub gave: u64,
    /// What it holds now, in bytes. More than the limit where it could not give up enough.
    pub holding: u64,
}

/// A peer's words without what would change a terminal, and not longer than a line can take.
pub(crate) fn plain_text(text: &str) -> String {
    const LENGTH_MAX: usize = 200;
    text.chars().filter(|c| !c.is_control()).take(LENGTH_MAX).collect()
}

/// Why a peer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It took too long.
    #[error("it did not answer in time")]
    Timeout,
    /// It has another user.
    #[error("it belongs to the user {uid}")]
    OtherUser {
        /// The number of that user.
        uid: u32,
    },
    /// It speaks otherwise.
    #[error(
        "it speaks version {theirs} of the protocol, and this program speaks {VERSION}; use one version of gpuvm in both"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// What it said means nothing.
    #[error("its message is invalid: {why}")]
    Garbage {
        /// What is wrong.
        why: String,
    },
    /// It refused.
    #[error("it refuses: {why}")]
    Refused {
        /// The peer's words.
        why: String,
    },
    /// The connection failed.
    #[error("the connection to it failed: {0}")]
    Io(io::Error),
}

impl From<io::Error> for PeerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The kernel says the former where a socket's time is over.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Io(error),
        }
    }
}

fn garbage(error: &serde_json::Error) -> PeerError {
    PeerError::Garbage { why: error.to_string() }
}

/// Whether the process at the other end belongs to this one's user.
pub(crate) fn check_user(peer: impl AsFd) -> Result<(), PeerError> {
    let theirs = socket_peercred(peer).map_err(io::Error::from)?.uid;
    match theirs == geteuid() {
        true => Ok(()),
        false => Err(PeerError::OtherUser { uid: theirs.as_raw() }),
    }
}

#[derive(Serialize)]
struct Sent<'a, T> {
    version: u32,
    body: &'a T,
}

#[derive(Deserialize)]
struct Received<T> {
    body: T,
}

/// Read first: the body of another version may be anything.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Sends a message before `deadline`.
pub(crate) fn send(stream: &UnixStream, message: &impl Serialize, deadline: Instant) -> Result<(), PeerError> {
    let sent = Sent {
        version: VERSION,
        body: message,
    };
    let text = serde_json::to_vec(&sent).map_err(|error| garbage(&error))?;
    let length = u32::try_from(text.len())
        .ok()
        .filter(|&length| length <= MESSAGE_BYTES_MAX);
    let Some(length) = length else {
        let why = format!("{} bytes are too long for a message", text.len());
        return Err(PeerError::Garbage { why });
    };
    let whole = [&length.to_le_bytes(), text.as_slice()].concat();
    let mut rest = whole.as_slice();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        // A peer that has gone must not end a program that leaves SIGPIPE as it is.
        match net::send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok(())
}

/// Reads a message that is there before `deadline`, however it comes.
pub(crate) fn receive<T: DeserializeOwned>(stream: &UnixStream, deadline: Instant) -> Result<T, PeerError> {
    let mut length = [0; 4];
    fill(stream, &mut length, deadline)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        let why = format!("a message of {length} bytes, and {MESSAGE_BYTES_MAX} is the most");
        return Err(PeerError::Garbage { why });
    }
    let mut text = vec![0; length as usize];
    fill(stream, &mut text, deadline)?;
    let Versioned { version } = serde_json::from_slice(&text).map_err(|error| garbage(&error))?;
    if version != VERSION {
        return Err(PeerError::Version { theirs: version });
    }
    let received: Received<T> = serde_json::from_slice(&text).map_err(|error| garbage(&error))?;
    Ok(received.body)
}

fn fill(mut stream: &UnixStream, mut rest: &mut [u8], deadline: Instant) -> Result<(), PeerError> {
    while !rest.is_empty() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(rest) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => rest = &mut rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The end of `time` from now on. Nothing of a tenant takes longer than a day, so that any time can be added.
pub(crate) fn deadline_in(time: Duration) -> Instant {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    Instant::now() + time.min(DAY)
}

/// The time to `deadline`, which is never nothing: to a socket that would mean forever.
pub(crate) fn left(deadline: Instant) -> Result<Duration, PeerError> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(PeerError::Timeout),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn requests() -> Vec<Request> {
        let asker = Stake {
            holding: 1,
            minimum: u64::MAX,
            limit: None,
            priority: -100,
        };
        vec![
            Request::Describe,
            Request::Give {
                bytes: u64::MAX,
                within_ms: 0,
                asker,
            },
            Request::Set {
                change: TermsChange::default(),
                within_ms: 1,
            },
        ]
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        for request in requests() {
            let (one, other) = UnixStream::pair().unwrap();
            send(&one, &request, soon()).unwrap();
            assert_eq!(receive::<Request>(&other, soon()).unwrap(), request);
        }
    }

    fn received(bytes: &[u8]) -> Result<Request, PeerError> {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(bytes).unwrap();
        drop(one);
        receive(&other, soon())
    }

    fn framed(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap();
        [&length.to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn other_versions_and_long_messages_are_named() {
        let other = received(&framed(r#"{"version":2,"body":{"sing":"a song"}}"#));
        assert!(matches!(other, Err(PeerError::Version { theirs: 2 })), "{other:?}");
        let newer = received(&framed(r#"{"version":1,"body":"describe","more":[1]}"#));
        assert_eq!(newer.unwrap(), Request::Describe);
        let long = received(&u32::MAX.to_le_bytes()).unwrap_err().to_string();
        assert!(long.contains("4294967295 bytes"), "{long}");
        let short = received(&framed("{}")[..5]);
        assert!(matches!(short, Err(PeerError::Io(_))), "{short:?}");
        let (one, _other) = UnixStream::pair().unwrap();
        let too_long = send(&one, &"x".repeat(1 << 20), soon());
        assert!(matches!(too_long, Err(PeerError::Garbage { .. })), "{too_long:?}");
    }

    #[test]
    fn a_peer_that_says_nothing_costs_a_bounded_time() {
        let (one, other) = UnixStream::pair().unwrap();
        let answer = receive::<Answer>(&one, Instant::now() + Duration::from_millis(20));
        assert!(matches!(answer, Err(PeerError::Timeout)), "{answer:?}");
        // Nor does one that drips.
        let dripping = std::thread::spawn(move || {
            let mut other = other;
            while other.write_all(b"\0").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // A length of nothing, which is no message.
        let answer = receive::<Answer>(&one, Instant::now() + Duration::from_millis(100));
        assert!(answer.is_err());
        let answer = fill(&one, &mut [0; 4096], Instant::now() + Duration::from_millis(100));
        assert!(matches!(answer, Err(PeerError::Timeout)), "{answer:?}");
        drop(one);
        dripping.join().unwrap();
    }

    #[test]
    fn names_change_no_terminal() {
        assert_eq!(plain_text("a\x1b[2Jb\n"), "a[2Jb");
        assert_eq!(plain_text(&"ä".repeat(1000)).chars().count(), 200);
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), headed: bool, at in 0..40usize, new: u8) {
            let bytes = if headed { [&(bytes.len() as u32).to_le_bytes(), bytes.as_slice()].concat() } else { bytes };
            prop_assert!(received(&bytes).is_err());
            // One byte of a message that is right otherwise.
            let mut almost = framed(r#"{"version":1,"body":{"give":{"bytes":1}}}"#);
            almost[at] = new;
            let _ = received(&almost);
        }
    }
}
