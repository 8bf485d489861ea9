//! The record of calls, calls that are made to fail, and breaches of the libraries' rules.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write as _;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};

use crate::config::config;
use crate::errno::Outcome;

/// A call that is to fail.
struct Planted {
    /// Its name, or `any`.
    name: String,
    errno: c_int,
    /// How many more calls of the name go well before it.
    left: u32,
}

#[derive(Default)]
struct Record {
    calls: Vec<String>,
    breaches: Vec<String>,
    planted: Vec<Planted>,
}

fn record() -> MutexGuard<'static, Record> {
    static RECORD: OnceLock<Mutex<Record>> = OnceLock::new();
    let record = RECORD.get_or_init(|| {
        let planted = config()
            .fail
            .iter()
            .flat_map(|rules| rules.split(','))
            .filter_map(parse);
        Mutex::new(Record {
            planted: planted.collect(),
            ..Record::default()
        })
    });
    // A panic leaves lists of whole entries.
    record.lock()
}

/// `name:errno` or `name:errno@n`.
fn parse(rule: &str) -> Option<Planted> {
    let (name, rest) = rule.trim().split_once(':')?;
    let (errno, nth) = rest.split_once('@').unwrap_or((rest, "1"));
    Some(Planted {
        name: name.to_owned(),
        errno: errno.parse().ok()?,
        left: nth.parse::<u32>().ok()?.saturating_sub(1),
    })
}

fn write_log(line: &str) {
    let Some(path) = &config().log else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // A log that cannot be written has no one to tell.
    let _ = file.and_then(|mut file| writeln!(file, "{line}"));
}

/// Notes a call that cannot fail.
pub(crate) fn called(name: &str) {
    write_log(name);
    record().calls.push(name.to_owned());
}

/// Notes a call, and fails it where that is planted.
pub(crate) fn enter(name: &str) -> Outcome<()> {
    called(name);
    let mut record = record();
    let mut failure = None;
    for planted in &mut record.planted {
        if planted.name != name && planted.name != "any" {
            continue;
        }
        if planted.left == 0 && failure.is_none() {
            failure = Some(planted.errno);
            // Once: its name is no call's.
            planted.name.clear();
        } else {
            planted.left = planted.left.saturating_sub(1);
        }
    }
    record.planted.retain(|planted| !planted.name.is_empty());
    failure.map_or(Ok(()), Err)
}

/// Notes a breach of the libraries' rules.
pub(crate) fn breach(what: String) {
    write_log(&format!("breach: {what}"));
    record().breaches.push(what);
}

/// Copies `text` to `out`, which has `room` bytes; returns how long it is.
///
/// # Safety
/// `out` has `room` bytes, or `room` is 0.
pub(crate) unsafe fn hand_out(text: &str, out: *mut c_char, room: usize) -> usize {
    let bytes = text.len().min(room);
    if bytes > 0 {
        // SAFETY: the caller's promise; the text is not the caller's.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), bytes) };
    }
    text.len()
}

/// The names of all calls since the last [`fake_rdma_clear`], one a line. Returns its length in bytes, however much room
/// there is.
///
/// # Safety
/// `out` has `room` bytes, or `room` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_rdma_log(out: *mut c_char, room: usize) -> usize {
    let text = record().calls.join("\n");
    // SAFETY: the caller's promise.
    unsafe { hand_out(&text, out, room) }
}

/// Breaches since the last [`fake_rdma_clear`], one a line.
///
/// # Safety
/// As [`fake_rdma_log`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_rdma_breaches(out: *mut c_char, room: usize) -> usize {
    let text = record().breaches.join("\n");
    // SAFETY: the caller's promise.
    unsafe { hand_out(&text, out, room) }
}

/// Fails the `nth` call (from 1 on) of a name, or of any name where it is `any`, from now on, once.
///
/// # Safety
/// `name` is a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_rdma_fail(name: *const c_char, nth: u32, errno: c_int) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    record().planted.push(Planted {
        name,
        errno,
        left: nth.saturating_sub(1),
    });
}

/// Forgets calls, breaches and planted failures.
#[unsafe(no_mangle)]
pub extern "C" fn fake_rdma_clear() {
    *record() = Record::default();
}
