//! The agent: runs in a machine below the first shell, sets up the RDMA device, and does what the host asks for.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::executor::Executor;
use crate::protocol::{Event, Request};
use crate::tools;

/// How long devices may take to appear and to become active.
const DEVICES: Duration = Duration::from_secs(30);

/// The name that the host gives the port; the kernel shows it in sysfs.
pub(crate) const PORT: &str = "softroce";

/// Serves the host until it closes the connection. `netdev` is the network device that rxe0 is put on.
///
/// # Errors
/// [`Error::File`] where the port to the host is not there; what else fails is told to the host.
pub fn serve(netdev: &str) -> Result<(), Error> {
    let path = wait_for("the port to the host", find_port)?;
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Error::file("open", &path))?;
    let writer = port.try_clone().map_err(Error::file("open", &path))?;
    let (events, queue) = channel();
    thread::spawn(move || write_events(writer, &queue));
    if let Err(error) = make_device(netdev) {
        let _ = events.send(Event::Broken {
            reason: error.to_string(),
        });
    } else {
        let _ = events.send(Event::Ready);
    }
    let executor = Executor::new(events);
    for line in BufReader::new(port).lines() {
        let line = line.map_err(Error::file("read", &path))?;
        match serde_json::from_str::<Request>(&line) {
            Ok(request) => executor.handle(request),
            Err(error) => eprintln!("softroce agent: a request that is none: {error}"),
        }
    }
    Ok(())
}

/// Writes events as they come, several at once when they come fast.
fn write_events(port: File, queue: &Receiver<Event>) {
    let mut port = BufWriter::with_capacity(64 << 10, port);
    let mut write = |event: Event| -> std::io::Result<()> {
        serde_json::to_writer(&mut port, &event)?;
        port.write_all(b"\n")?;
        loop {
            match queue.try_recv() {
                Ok(event) => {
                    serde_json::to_writer(&mut port, &event)?;
                    port.write_all(b"\n")?;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return port.flush(),
            }
        }
    };
    while let Ok(event) = queue.recv() {
        if let Err(error) = write(event) {
            eprintln!("softroce agent: the host does not listen: {error}");
            return;
        }
    }
}

fn find_port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?.flatten();
    let mut named =
        ports.filter(|port| fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT));
    let path = Path::new("/dev").join(named.next()?.file_name());
    path.exists().then_some(path)
}

/// Makes rxe0 and waits until its port is active and has the address of the network device.
fn make_device(netdev: &str) -> Result<(), Error> {
    let rdma = tools::find("rdma", "iproute2")?;
    tools::output(
        &rdma,
        &["link", "add", "rxe0", "type", "rxe", "netdev", netdev],
        Path::new("/"),
    )?;
    wait_for("rxe0", || {
        let port = Path::new("/sys/class/infiniband/rxe0/ports/1");
        let active = fs::read_to_string(port.join("state")).ok()?.contains("ACTIVE");
        (active && crate::native::address_of(port).is_some()).then_some(())
    })?;
    wait_for("the devices below /dev/infiniband", || {
        (Path::new("/dev/infiniband/uverbs0").exists() && Path::new("/dev/infiniband/rdma_cm").exists()).then_some(())
    })
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, Error> {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if started.elapsed() > DEVICES {
            return Err(Error::Check(format!("{what} did not appear within {DEVICES:?}")));
        }
        thread::sleep(Duration::from_millis(10));
    }
}
