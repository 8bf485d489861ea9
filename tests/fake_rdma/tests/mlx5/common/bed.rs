//! A NIC over the fake, and memory that it knows.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpuvm_nic::mlx5::{Mlx5Options, ProcessMemory};
use gpuvm_nic::poster::{Flags, Poster, PosterConfig};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Operation, Segment};
use gpuvm_nic::{Access, MemoryKey, Mlx5Nic, Nic, NicError, Pages};

use super::{Fake, StandIn, in_child};

pub const FAKE: [StandIn; 2] = [StandIn::Fake, StandIn::Fake];

pub const LONG: Duration = Duration::from_secs(30);

pub const PAGE: u64 = 4096;

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Runs a test over the fake, and checks that it leaves nothing behind.
#[track_caller]
pub fn over_fake(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&Fake)) {
    in_child(name, FAKE, variables, || {
        let fake = Fake::new();
        body(&fake);
        fake.assert_clean();
    });
}

pub fn open(options: Mlx5Options) -> Result<Arc<Mlx5Nic>, NicError> {
    Mlx5Nic::open(options, Arc::new(ProcessMemory::new())).map(Arc::new)
}

pub fn config(depth: u32) -> PosterConfig {
    PosterConfig {
        sq_entries: depth,
        ..PosterConfig::default()
    }
}

/// Two pages, each registered: a home and a frame. They stay for ever, so that a NIC may know them as long as it likes.
pub struct Memory {
    pub home: &'static Pages,
    pub frame: &'static Pages,
    pub home_key: MemoryKey,
    pub frame_key: MemoryKey,
}

pub fn word(pages: &Pages, at: u64) -> &AtomicU64 {
    assert!(at * 8 < pages.bytes());
    // SAFETY: within the pages, aligned; all access to them is atomic.
    unsafe { &*pages.as_ptr().cast::<AtomicU64>().add(at as usize) }
}

pub fn fill(pages: &Pages, seed: u64) {
    (0..pages.bytes() / 8).for_each(|at| word(pages, at).store(pattern(seed, at), Ordering::Relaxed));
}

pub fn assert_filled(pages: &Pages, seed: u64) {
    for at in 0..pages.bytes() / 8 {
        assert_eq!(word(pages, at).load(Ordering::Relaxed), pattern(seed, at), "word {at}");
    }
}

pub fn pattern(seed: u64, at: u64) -> u64 {
    (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Memory {
    pub fn register(nic: &Mlx5Nic) -> Result<Self, NicError> {
        let page = || &*Box::leak(Box::new(Pages::new(PAGE as usize)));
        let (home, frame) = (page(), page());
        // SAFETY: both live for ever and are accessed by atomics only.
        let (home_key, frame_key) = unsafe {
            (
                nic.register(home.address(), PAGE, Access::ALL)?,
                nic.register(frame.address(), PAGE, Access::LOCAL_WRITE)?,
            )
        };
        Ok(Memory {
            home,
            frame,
            home_key,
            frame_key,
        })
    }

    pub fn deregister(&self, nic: &Mlx5Nic) -> Result<(), NicError> {
        nic.deregister(self.home_key)?;
        nic.deregister(self.frame_key)
    }

    pub fn frame_segment(&self) -> [Segment<'static>; 1] {
        [Segment::Data {
            address: self.frame.address(),
            lkey: self.frame_key.lkey,
            bytes: PAGE as u32,
        }]
    }

    pub fn read(&self) -> Operation {
        Operation::Read {
            remote: self.home.address(),
            rkey: self.home_key.rkey,
        }
    }

    pub fn write(&self) -> Operation {
        Operation::Write {
            remote: self.home.address(),
            rkey: self.home_key.rkey,
        }
    }

    /// A READ, verified.
    pub fn fetch(&self, poster: &mut Poster, seed: u64) -> Outcome {
        fill(self.home, seed);
        self.do_one(poster, self.read())?;
        assert_filled(self.frame, seed);
        Ok(())
    }

    /// A READ and a WRITE, both verified.
    pub fn exchange(&self, poster: &mut Poster, seed: u64) -> Outcome {
        self.fetch(poster, seed)?;
        fill(self.frame, seed + 1);
        self.do_one(poster, self.write())?;
        assert_filled(self.home, seed + 1);
        Ok(())
    }

    pub fn do_one(&self, poster: &mut Poster, operation: Operation) -> Outcome {
        poster.submit(operation, &self.frame_segment(), Flags::SIGNALLED)?;
        let completion = poster.wait(LONG)?;
        assert!(
            matches!(completion.detail, CompletionDetail::Success { .. }),
            "{completion}"
        );
        Ok(())
    }
}

/// What is to be expected of calls that fail.
pub struct Failing {
    /// These tell nothing of a failure.
    pub silent: &'static [&'static str],
    /// Something else does what this one does not.
    pub replaced: Option<&'static str>,
    /// The first call of the NIC's end. Then there is no one to tell: what fails is logged, and the rest goes on.
    pub end: &'static str,
    /// Whether a breach may follow the failure of a call of that name, before the end or in it.
    pub may_breach: fn(&str, &str, bool) -> bool,
}

/// Fails each call of a life in turn: it is named, and nothing is left. The calls.
pub fn each_call_fails(fake: &Fake, life: fn() -> Outcome, expected: &Failing) -> Vec<String> {
    life().expect("a life without failures");
    fake.assert_clean();
    let mut calls = fake.log();
    calls.retain(|call| !expected.silent.contains(&&**call));
    let end = calls.iter().position(|call| call == expected.end).expect("an end");
    for (at, name) in calls.iter().enumerate() {
        fake.clear();
        fake.fail("any", at as u32 + 1, libc::EIO);
        let outcome = life();
        let step = format!("call {at}, {name}");
        if expected.replaced == Some(name) {
            outcome.unwrap_or_else(|error| panic!("{step}: {error}"));
            fake.assert_clean();
            continue;
        }
        if at < end {
            let error = outcome.err().unwrap_or_else(|| panic!("{step}: no error"));
            let said = error.to_string();
            assert!(said.contains(name.as_str()), "{step}: {said}");
            let source = error.downcast_ref::<NicError>().and_then(Error::source);
            let source = source.unwrap_or_else(|| panic!("{step}: no source"));
            let errno = source.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            assert_eq!(errno, Some(libc::EIO), "{step}");
            assert_eq!(fake.live(), [""; 0], "{step}: left behind");
        } else {
            outcome.unwrap_or_else(|error| panic!("{step}: {error}"));
            let left: &[&str] = if name == "ibv_close_device" { &["context"] } else { &[] };
            assert_eq!(fake.live(), left, "{step}");
        }
        let mut breaches = fake.breaches();
        breaches.retain(|breach| !(expected.may_breach)(name, breach, at >= end));
        assert_eq!(breaches, [""; 0], "{step}");
        let log = fake.log();
        if log.iter().any(|call| call.ends_with("open_device")) && !name.ends_with("open_device") {
            assert_eq!(log.last().map(String::as_str), Some("ibv_close_device"), "{step}");
        }
    }
    println!("# {} calls were made to fail", calls.len());
    calls
}
