//! The watch of rank 0, to which all others come.

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::line::{
    ALIVE, BEAT, DONE, GRACE, HELLO_BYTES, HOST_BYTES, How, LOOK, LOST, Line, Loss, TELLING, Token, is_done,
};

/// Connections that have not said who they are, at most.
const STRANGERS: usize = 64;

/// Another rank.
#[derive(Debug)]
struct Peer {
    /// None before it came, and when it is done.
    line: Option<Line>,
    who: Option<(u32, String)>,
    last: Instant,
    is_done: bool,
}

/// The watch of rank 0.
#[derive(Debug)]
pub(super) struct First {
    listener: TcpListener,
    token: Token,
    silence: Duration,
    /// By rank; the first is this one.
    peers: Vec<Peer>,
    strangers: Vec<(Line, Instant)>,
}

impl First {
    pub fn new(listener: TcpListener, token: Token, size: usize, silence: Duration) -> Self {
        let peer = |rank| Peer {
            line: None,
            who: None,
            last: Instant::now(),
            is_done: rank == 0,
        };
        Self {
            listener,
            token,
            silence,
            peers: (0..size).map(peer).collect(),
            strangers: Vec::new(),
        }
    }

    /// Watches until this rank is done, or another is lost.
    pub fn run(mut self, done: &AtomicBool, on_loss: impl FnOnce(&Loss), end: impl FnOnce()) {
        let mut beat = Instant::now();
        loop {
            self.admit();
            if let Some((rank, how)) = self.listen() {
                std::thread::sleep(GRACE);
                // All have passed their last barrier, and what that rank said last was lost with its end.
                if is_done(done) {
                    return;
                }
                let loss = Loss {
                    rank,
                    of: self.peers.len(),
                    how,
                    who: self.peers[rank].who.clone(),
                    is_first_to_know: true,
                };
                on_loss(&loss);
                self.tell(&loss);
                end();
                return;
            }
            if is_done(done) {
                self.say(&[DONE]);
                return;
            }
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                self.say(&[ALIVE]);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Takes new connections, and those that have said which rank they are.
    fn admit(&mut self) {
        while self.strangers.len() < STRANGERS
            && let Ok((stream, _)) = self.listener.accept()
        {
            // One that cannot be set up is closed.
            self.strangers
                .extend(Line::new(stream).map(|line| (line, Instant::now())));
        }
        for (mut line, since) in std::mem::take(&mut self.strangers) {
            line.listen();
            match line.heard.split_at_checked(HELLO_BYTES) {
                None if line.is_closed || since.elapsed() > self.silence => {}
                None => self.strangers.push((line, since)),
                Some((hello, rest)) => {
                    let Some((rank, who)) = read_hello(hello, &self.token) else {
                        continue;
                    };
                    line.heard = rest.to_vec();
                    if let Some(peer) = self
                        .peers
                        .get_mut(rank)
                        .filter(|peer| peer.who.is_none() && !peer.is_done)
                    {
                        peer.who = Some(who);
                        peer.line = Some(line);
                        peer.last = Instant::now();
                    }
                }
            }
        }
    }

    /// Hears all ranks; the first that is lost.
    fn listen(&mut self) -> Option<(usize, How)> {
        let mut lost = None;
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let mut closed = false;
            if let Some(line) = &mut peer.line {
                if line.listen() {
                    peer.last = Instant::now();
                }
                peer.is_done |= line.heard.contains(&DONE);
                line.heard.clear();
                closed = line.is_closed;
            }
            let how = match &peer.line {
                _ if peer.is_done => continue,
                Some(_) if closed => How::Closed,
                _ if peer.last.elapsed() <= self.silence => continue,
                Some(_) => How::Silent,
                None => How::Absent,
            };
            lost = lost.or(Some((rank, how)));
        }
        lost
    }

    fn say(&mut self, bytes: &[u8]) {
        self.peers
            .iter_mut()
            .filter_map(|peer| peer.line.as_mut())
            .for_each(|line| line.say(bytes));
    }

    /// Tells all others, and stays until they have heard it: what lies unread here when this process ends would take it from them.
    fn tell(&mut self, loss: &Loss) {
        let mut said = vec![LOST];
        said.extend((loss.rank as u32).to_le_bytes());
        said.push(loss.how.code());
        self.say(&said);
        let until = Instant::now() + TELLING;
        let mut waits = true;
        while waits && Instant::now() < until {
            waits = false;
            for peer in self
                .peers
                .iter_mut()
                .enumerate()
                .filter(|(rank, _)| *rank != loss.rank)
                .map(|(_, peer)| peer)
            {
                if let Some(line) = &mut peer.line {
                    line.listen();
                    waits |= !line.is_closed;
                }
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The rank that says hello, with its process and host; none where the token is another one.
fn read_hello(hello: &[u8], token: &Token) -> Option<(usize, (u32, String))> {
    let (given, rest) = hello.split_at_checked(token.len())?;
    if given != token {
        return None;
    }
    let (rank, rest) = rest.split_first_chunk::<4>()?;
    let (process, host) = rest.split_first_chunk::<4>()?;
    let host = host.split(|&byte| byte == 0).next().unwrap_or_default();
    let host = String::from_utf8_lossy(&host[..host.len().min(HOST_BYTES)]);
    // It comes to a terminal.
    let host = host.replace(char::is_control, "?");
    Some((u32::from_le_bytes(*rank) as usize, (u32::from_le_bytes(*process), host)))
}
