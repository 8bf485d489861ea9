use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::first::First;
use super::line::*;
use super::other::Other;
use super::*;
use crate::Place;

const SILENCE: Duration = Duration::from_millis(1500);
/// Longest time in which something must have happened.
const SOON: Duration = Duration::from_secs(20);
const TOKEN: Token = [7; 16];

/// The watch of rank 0 of `size`, and what it reports.
struct Hub {
    address: SocketAddr,
    done: Arc<AtomicBool>,
    losses: Receiver<Loss>,
    thread: JoinHandle<()>,
}

fn hub(size: usize) -> Hub {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, losses) = channel();
    let done = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&done);
    let first = First::new(listener, TOKEN, size, SILENCE);
    let thread = std::thread::spawn(move || first.run(&stop, |loss| tell.send(loss.clone()).unwrap(), || {}));
    Hub {
        address,
        done,
        losses,
        thread,
    }
}

/// A rank's connection, by hand.
fn come(hub: &Hub, rank: u32, token: Token) -> TcpStream {
    let mut stream = TcpStream::connect(hub.address).unwrap();
    let mut hello = [&token[..], &rank.to_le_bytes(), &99u32.to_le_bytes(), b"far\x1baway"].concat();
    hello.resize(HELLO_BYTES, 0);
    stream.write_all(&hello).unwrap();
    stream
}

/// Says every so often that it lives, until the connection ends.
fn live(mut stream: TcpStream) {
    std::thread::spawn(move || {
        while stream.write_all(&[ALIVE]).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

/// The watch of another rank, and what it reports.
fn other(hub: SocketAddr, rank: usize, size: usize) -> (Arc<AtomicBool>, Receiver<Loss>, JoinHandle<()>) {
    let place = Place {
        rank,
        size,
        on_host: rank,
        of_host: size,
    };
    let other = Other::connect(&hub.to_string(), TOKEN, place, SILENCE).unwrap();
    let (tell, losses) = channel();
    let done = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&done);
    let thread = std::thread::spawn(move || {
        if let Some(loss) = other.run(&stop) {
            tell.send(loss).unwrap();
        }
    });
    (done, losses, thread)
}

#[test]
fn a_rank_whose_connection_closes_is_named_to_all() {
    let hub = hub(3);
    let (_, heard, thread) = other(hub.address, 2, 3);
    let stream = come(&hub, 1, TOKEN);
    std::thread::sleep(Duration::from_millis(300));
    drop(stream);
    let loss = hub.losses.recv_timeout(SOON).unwrap();
    assert_eq!((loss.rank, loss.of, loss.how), (1, 3, How::Closed));
    assert!(loss.is_first_to_know);
    let text = loss.to_string();
    assert!(
        text.starts_with("rank 1 of 3 (process 99 on far?away) is lost: its process has ended"),
        "{text}"
    );
    let told = heard.recv_timeout(SOON).unwrap();
    assert_eq!((told.rank, told.how, told.is_first_to_know), (1, How::Closed, false));
    thread.join().unwrap();
    hub.thread.join().unwrap();
}

#[test]
fn a_silent_rank_is_named() {
    let hub = hub(3);
    live(come(&hub, 1, TOKEN));
    // Before it comes: from then on it is silent.
    let begun = Instant::now();
    let silent = come(&hub, 2, TOKEN);
    let loss = hub.losses.recv_timeout(SOON).unwrap();
    assert_eq!((loss.rank, loss.how), (2, How::Silent));
    assert!(begun.elapsed() >= SILENCE);
    drop(silent);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let hub = hub(3);
    live(come(&hub, 2, TOKEN));
    let loss = hub.losses.recv_timeout(SOON).unwrap();
    assert_eq!((loss.rank, loss.how, loss.who), (1, How::Absent, None));
}

#[test]
fn strangers_change_nothing() {
    let hub = hub(2);
    // Another job's rank, one that says nothing, one that says too much, and a number that is no rank's.
    drop(come(&hub, 1, [8; 16]));
    let quiet = TcpStream::connect(hub.address).unwrap();
    let mut loud = TcpStream::connect(hub.address).unwrap();
    loud.write_all(&[0x5a; 4096]).unwrap();
    drop(come(&hub, 77, TOKEN));
    let (done, heard, thread) = other(hub.address, 1, 2);
    std::thread::sleep(SILENCE * 2);
    assert!(hub.losses.try_recv().is_err() && heard.try_recv().is_err());
    done.store(true, Ordering::Relaxed);
    hub.done.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    hub.thread.join().unwrap();
    assert!(hub.losses.try_recv().is_err() && heard.try_recv().is_err());
    drop((quiet, loud));
}

#[test]
fn ranks_that_are_done_are_no_loss() {
    for first_ends_first in [true, false] {
        let hub = hub(3);
        let others = [1, 2].map(|rank| other(hub.address, rank, 3));
        std::thread::sleep(Duration::from_millis(300));
        if first_ends_first {
            hub.done.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
        }
        for (done, _, _) in &others {
            done.store(true, Ordering::Relaxed);
        }
        std::thread::sleep(SILENCE * 2);
        hub.done.store(true, Ordering::Relaxed);
        hub.thread.join().unwrap();
        assert!(hub.losses.try_recv().is_err());
        for (_, heard, thread) in others {
            thread.join().unwrap();
            assert!(heard.try_recv().is_err());
        }
    }
}

#[test]
fn rank_0_is_missed_by_all() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let others = [1, 2].map(|rank| other(listener.local_addr().unwrap(), rank, 3));
    // One connection closes, one stays and is silent.
    drop(listener.accept().unwrap());
    let silent = listener.accept().unwrap();
    let mut ways: Vec<How> = Vec::new();
    for (_, heard, thread) in others {
        let loss = heard.recv_timeout(SOON).unwrap();
        assert_eq!((loss.rank, loss.is_first_to_know), (0, true));
        ways.push(loss.how);
        thread.join().unwrap();
    }
    ways.sort_by_key(|how| how.code());
    assert_eq!(ways, [How::Closed, How::Silent]);
    drop(silent);
}
