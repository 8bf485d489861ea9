//! The file of a timeline: a JSON array of Chrome trace events, which is whole after each write.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::Serialize;

/// Written when this many bytes have gathered, if nothing asks before.
const GATHERED: usize = 256 << 10;
/// Of the most bytes, this many are kept for what is said at the end.
const RESERVE: u64 = 16 << 10;

/// How an array begins, and how a timeline does.
const START: &str = "[\n";
const BEGINS: &[u8; 26] = b"[\n{\"name\":\"gpuvm_timeline\"";

/// An event in Chrome's format. Times are in microseconds since the sheet began.
#[derive(Serialize, Default)]
pub(super) struct Event<'a> {
    pub name: &'a str,
    /// `X` a slice, `i` an instant, `M` what a track is called.
    pub ph: &'a str,
    pub pid: u32,
    pub tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// Of an instant: `t`, it is of its track alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<serde_json::Value>,
}

struct Inner {
    file: File,
    /// Bytes before the closing bracket.
    written: u64,
    most: u64,
    gathered: String,
    omitted: u64,
    failed: bool,
    next_process: u32,
}

/// A file, for all GPUs of this process whose timeline goes there.
pub(crate) struct Sheet {
    path: PathBuf,
    began: Instant,
    inner: Mutex<Inner>,
}

/// All files that this process has begun. They stay: a later virtual memory goes on with a file, and the system closes it.
static SHEETS: Mutex<Vec<Arc<Sheet>>> = Mutex::new(Vec::new());

impl Sheet {
    /// The file at `path`, of `most` bytes at most, begun anew by the first of this process that asks for it.
    ///
    /// # Errors
    /// A file that cannot be written, that another process writes, or that is there and no timeline.
    pub fn open(path: &Path, most: u64) -> io::Result<Arc<Self>> {
        let mut sheets = SHEETS.lock();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        // After it is there.
        let path = path.canonicalize()?;
        if let Some(sheet) = sheets.iter().find(|sheet| sheet.path == path) {
            return Ok(Arc::clone(sheet));
        }
        // A pipe or a device has no length, and nothing in it can be written again.
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => io::Error::new(
                io::ErrorKind::WouldBlock,
                "another process writes it; put %p into the name, which becomes the process's number",
            ),
            error => error.into(),
        })?;
        refuse_others(&file)?;
        file.set_len(0)?;
        let sheet = Arc::new(Self {
            path,
            began: Instant::now(),
            inner: Mutex::new(Inner {
                file,
                written: 0,
                most: most.saturating_sub(RESERVE),
                gathered: START.to_owned(),
                omitted: 0,
                failed: false,
                next_process: 1,
            }),
        });
        let args = Some(serde_json::json!({"by": concat!("gpuvm ", env!("CARGO_PKG_VERSION"))}));
        sheet.add(&Event {
            name: "gpuvm_timeline",
            ph: "M",
            args,
            ..Event::default()
        });
        sheet.inner.lock().write()?;
        sheets.push(Arc::clone(&sheet));
        Ok(sheet)
    }

    /// Nanoseconds of the host's clock since the sheet began.
    pub fn ns_at(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.began).as_nanos() as u64
    }

    /// A number for a process of the timeline: a GPU of a virtual memory.
    pub fn next_process(&self) -> u32 {
        let mut inner = self.inner.lock();
        inner.next_process += 1;
        inner.next_process - 1
    }

    pub(super) fn add(&self, event: &Event<'_>) {
        let Ok(text) = serde_json::to_string(event) else {
            return;
        };
        let mut inner = self.inner.lock();
        // What tracks are called stays readable when the file is full; it is little.
        let most = if event.ph == "M" {
            inner.most + RESERVE
        } else {
            inner.most
        };
        if inner.written + (inner.gathered.len() + text.len()) as u64 + 8 > most {
            inner.omitted += 1;
            return;
        }
        if inner.gathered != START {
            inner.gathered.push_str(",\n");
        }
        inner.gathered.push_str(&text);
        if inner.gathered.len() >= GATHERED {
            self.write_or_warn(&mut inner);
        }
    }

    /// Writes what has gathered.
    pub fn flush(&self) {
        self.write_or_warn(&mut self.inner.lock());
    }

    /// Events for which the file had no room.
    pub fn omitted(&self) -> u64 {
        self.inner.lock().omitted
    }

    fn write_or_warn(&self, inner: &mut Inner) {
        if let Err(error) = inner.write() {
            tracing::warn!(%error, "the timeline {} ends here: it cannot be written", self.path.display());
        }
    }
}

/// An earlier timeline is written anew. Anything else may be somebody's data.
fn refuse_others(file: &File) -> io::Result<()> {
    let mut begins = [0; BEGINS.len()];
    let length = file.metadata()?.len().min(BEGINS.len() as u64) as usize;
    file.read_exact_at(&mut begins[..length], 0)?;
    match length == 0 || begins == *BEGINS {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file exists and is not a timeline; remove it, or name another file",
        )),
    }
}

impl Inner {
    /// The program goes on without a timeline when this fails.
    fn write(&mut self) -> io::Result<()> {
        if self.failed || self.gathered.is_empty() {
            self.gathered.clear();
            return Ok(());
        }
        let length = self.gathered.len() as u64;
        // Over the bracket of the last time, in one call: a process that dies leaves a whole array but for the instant of a write.
        self.gathered.push_str("\n]\n");
        let written = self.file.write_all_at(self.gathered.as_bytes(), self.written);
        self.gathered.clear();
        self.failed = written.is_err();
        self.written += length;
        written
    }
}
