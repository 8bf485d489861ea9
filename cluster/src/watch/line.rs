//! What the ranks say to each other, over connections that never wait.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Between two signs of life.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// Between two looks at the connections.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// A launcher that ends the job has this long, so that a rank which it ends is not taken for the first that was lost.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How long rank 0 stays to tell of a loss.
pub(super) const TELLING: Duration = Duration::from_secs(1);
/// A host's name, cut or padded with zeroes.
pub(super) const HOST_BYTES: usize = 64;
/// What a rank says first.
pub(super) const HELLO_BYTES: usize = 16 + 4 + 4 + HOST_BYTES;

pub(super) const ALIVE: u8 = b'b';
pub(super) const DONE: u8 = b'd';
pub(super) const LOST: u8 = b'l';

pub(super) type Token = [u8; 16];

/// How a rank was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its connection has closed.
    Closed,
    /// Nothing came from it for so long.
    Silent,
    /// It never came.
    Absent,
}

impl How {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Silent => 1,
            Self::Absent => 2,
        }
    }

    pub(super) fn of(code: u8) -> Self {
        match code {
            0 => Self::Closed,
            1 => Self::Silent,
            _ => Self::Absent,
        }
    }
}

/// A rank that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which.
    pub rank: usize,
    /// Of how many.
    pub of: usize,
    /// How.
    pub how: How,
    /// Its process and host, where they are known here.
    pub who: Option<(u32, String)>,
    /// Whether this rank is the one that tells the user. The others were told by it.
    pub is_first_to_know: bool,
}

impl fmt::Display for Loss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rank {} of {}", self.rank, self.of)?;
        if let Some((process, host)) = &self.who {
            write!(out, " (process {process} on {host})")?;
        }
        out.write_str(match self.how {
            How::Closed => " is lost: its process has ended, or its host is gone",
            How::Silent => " is lost: it is silent, stopped or hanging, or its host or the network is gone",
            How::Absent => " is lost: it has not come to the watch",
        })?;
        out.write_str("; the job ends. Look at what that rank printed and at its host's log, then start the job again: memory nodes have nothing to be cleared of")
    }
}

pub(super) fn own_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(super) fn is_done(done: &AtomicBool) -> bool {
    // Relaxed: see `Watch::finish`.
    done.load(Ordering::Relaxed)
}

/// One end of a connection, which never waits.
#[derive(Debug)]
pub(super) struct Line {
    pub stream: TcpStream,
    /// What came and was not taken yet.
    pub heard: Vec<u8>,
    pub is_closed: bool,
}

impl Line {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            heard: Vec::new(),
            is_closed: false,
        })
    }

    /// Reads what is there; whether anything was.
    pub fn listen(&mut self) -> bool {
        let mut piece = [0; 256];
        let mut any = false;
        // So much is a lot: who sends more without an end does not keep the others waiting.
        for _ in 0..64 {
            match self.stream.read(&mut piece) {
                Ok(0) => self.is_closed = true,
                Ok(length) => {
                    any = true;
                    self.heard.extend(&piece[..length]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.is_closed = true,
            }
            break;
        }
        any
    }

    /// Says something short. One who takes nothing is silent soon, and a broken line is seen by the next [`listen`](Self::listen).
    pub fn say(&mut self, bytes: &[u8]) {
        let _ = self.stream.write(bytes);
    }
}
