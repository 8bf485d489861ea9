//! The watch of all ranks but 0.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::line::{ALIVE, BEAT, DONE, GRACE, HOST_BYTES, How, LOOK, LOST, Line, Loss, Token, is_done, own_host};
use crate::Place;

/// The watch of a rank that is not 0.
#[derive(Debug)]
pub(super) struct Other {
    line: Line,
    size: usize,
    silence: Duration,
}

/// What rank 0 has said.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Done,
    Lost(usize, How),
}

impl Other {
    /// Comes to rank 0.
    pub fn connect(address: &str, token: Token, place: Place, silence: Duration) -> io::Result<Self> {
        let mut failure = io::Error::from(ErrorKind::NotFound);
        for peer in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&peer, silence) {
                Ok(mut stream) => {
                    stream.write_all(&hello(token, place))?;
                    return Ok(Self {
                        line: Line::new(stream)?,
                        size: place.size,
                        silence,
                    });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Watches until this rank or rank 0 is done, or a rank is lost.
    pub fn run(mut self, done: &AtomicBool) -> Option<Loss> {
        let (mut beat, mut last) = (Instant::now(), Instant::now());
        let loss = |rank, how, is_first_to_know| Loss {
            rank,
            of: self.size,
            how,
            who: None,
            is_first_to_know,
        };
        loop {
            if self.line.listen() {
                last = Instant::now();
            }
            match said(&self.line.heard) {
                Said::Done => return None,
                Said::Lost(rank, how) => return Some(loss(rank, how, false)),
                Said::Nothing => {}
            }
            let alive = self.line.heard.iter().take_while(|&&byte| byte == ALIVE).count();
            self.line.heard.drain(..alive);
            if is_done(done) {
                self.line.say(&[DONE]);
                return None;
            }
            let how = match self.line.is_closed {
                true => Some(How::Closed),
                false => (last.elapsed() > self.silence).then_some(How::Silent),
            };
            if let Some(how) = how {
                std::thread::sleep(GRACE);
                // Both may end at one time, and what rank 0 said last be lost with its end.
                return (!is_done(done)).then(|| loss(0, how, true));
            }
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                self.line.say(&[ALIVE]);
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn hello(token: Token, place: Place) -> Vec<u8> {
    let mut hello = token.to_vec();
    // Ranks are of 31 bits.
    hello.extend((place.rank as u32).to_le_bytes());
    hello.extend(std::process::id().to_le_bytes());
    let mut host = own_host().into_bytes();
    host.resize(HOST_BYTES, 0);
    hello.extend(host);
    hello
}

/// The first that matters of what came; a piece of a message is nothing yet.
fn said(heard: &[u8]) -> Said {
    let mut rest = heard;
    while let [kind, behind @ ..] = rest {
        match *kind {
            DONE => return Said::Done,
            LOST => {
                return match behind.split_first_chunk::<4>() {
                    Some((rank, [how, ..])) => Said::Lost(u32::from_le_bytes(*rank) as usize, How::of(*how)),
                    _ => Said::Nothing,
                };
            }
            _ => rest = behind,
        }
    }
    Said::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_pieces_waits_for_its_end() {
        let whole = [ALIVE, ALIVE, LOST, 98, 0, 0, 0, 1];
        for length in 0..whole.len() {
            assert_eq!(said(&whole[..length]), Said::Nothing, "{length} bytes");
        }
        // Rank 98 is a byte that means something else elsewhere.
        assert_eq!(said(&whole), Said::Lost(98, How::Silent));
        assert_eq!(said(b"bbd"), Said::Done);
    }
}
