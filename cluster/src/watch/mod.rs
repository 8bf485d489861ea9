//! Ends the job of a rank that dies or falls silent.
//!
//! A launcher sees a rank of its own that dies, though not every one ends the others; none sees a rank that hangs, or a host that lost its
//! network. So each rank has a thread that watches, over connections of its own beside MPI's: each rank keeps one to rank 0 and sends a sign
//! of life twice a second, and rank 0 answers with its own. A connection that closes before its rank has said that it is done, and a
//! silence, are a loss, which rank 0 tells to its user and to all ranks. Then each rank's process ends, in whatever call of MPI its other
//! threads wait.
//!
//! ```text
//! rank k ──▶ rank 0   token (16 bytes), rank (4), process (4), host (64)   then  b: I live   d: I am done
//! rank k ◀── rank 0   b: I live   d: I am done   l, rank (4), why (1): that rank is lost
//! ```

mod first;
mod line;
mod other;

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub use line::{How, Loss};
use line::{Token, own_host};

use crate::{ClusterError, Ranks};

/// The watch of one rank. Dropped without [`finish`](Self::finish) it goes on until the process ends, which the others take for a loss.
#[derive(Debug)]
pub struct Watch {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to watch: all ranks call it, before anything that may take long. `host`: where the ranks of other hosts find rank 0; without
    /// it by the name of its host. `silence`: how long a rank may say nothing. When a rank is lost, a thread of the watch calls `on_loss`, which
    /// tells the user, before any other rank hears of it: a launcher ends all ranks when the first has ended. Then it calls `end`, which ends
    /// the process.
    ///
    /// # Errors
    /// [`ClusterError::Watch`]; no random numbers, no socket.
    pub fn start(
        ranks: &dyn Ranks,
        host: Option<&str>,
        silence: Duration,
        on_loss: impl FnOnce(&Loss) + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ClusterError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| ClusterError::Watch { what, source }
        };
        let place = ranks.place();
        let is_one_host = ranks.sum(u64::from(place.of_host != place.size)) == 0;
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        let work: Box<dyn FnOnce() + Send> = if place.rank == 0 {
            let mut token = Token::default();
            getrandom::fill(&mut token).map_err(|error| failed("draw a token")(io::Error::other(error)))?;
            let listener = TcpListener::bind(if is_one_host { "127.0.0.1:0" } else { "0.0.0.0:0" });
            let listener = listener.map_err(failed("listen"))?;
            listener.set_nonblocking(true).map_err(failed("listen"))?;
            let port = listener.local_addr().map_err(failed("listen"))?.port();
            let address = match host {
                _ if is_one_host => format!("127.0.0.1:{port}"),
                Some(host) => format!("{host}:{port}"),
                None => format!("{}:{port}", own_host()),
            };
            ranks.hear_first(&[&token[..], address.as_bytes()].concat());
            let first = first::First::new(listener, token, place.size, silence);
            Box::new(move || first.run(&stop, on_loss, end))
        } else {
            let said = ranks.hear_first(&[]);
            let Some((token, address)) = said.split_first_chunk() else {
                return Err(failed("hear from rank 0 where it is")(ErrorKind::InvalidData.into()));
            };
            let (token, address) = (*token, String::from_utf8_lossy(address));
            let other = other::Other::connect(&address, token, place, silence);
            let other = other.map_err(|source| failed(&format!("reach rank 0 at {address}"))(source))?;
            Box::new(move || {
                if let Some(loss) = other.run(&stop) {
                    on_loss(&loss);
                    end();
                }
            })
        };
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(work);
        Ok(Self {
            done,
            thread: Some(thread.map_err(failed("start its thread"))?),
        })
    }

    /// Ends the watch, when all ranks have passed a barrier behind their last work: this one says that it is done.
    pub fn finish(mut self) {
        // Relaxed: the thread reads nothing else that was written before.
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
