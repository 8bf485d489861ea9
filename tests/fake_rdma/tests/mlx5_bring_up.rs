//! The mlx5 back end from the first call to the last, over a fake of its libraries whose queues move data.

mod common;

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Fake, StandIn, in_child};
use gpuvm_nic::mlx5::{Mlx5Options, ProcessMemory, SharedMemory, devices};
use gpuvm_nic::poster::{Flags, Poster, PosterConfig};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Operation, Segment};
use gpuvm_nic::{
    Access, MemoryKey, Mlx5Nic, Nic, NicError, Pages, QueueAttributes, QueueFormat, QueueMemory, QueuePairState,
    QueueRings,
};

const FAKE: [StandIn; 2] = [StandIn::Fake, StandIn::Fake];
const LONG: Duration = Duration::from_secs(30);
const PAGE: u64 = 4096;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Runs a test over the fake, and checks that it leaves nothing behind.
fn over_fake(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&Fake)) {
    in_child(name, FAKE, variables, || {
        let fake = Fake::new();
        body(&fake);
        fake.assert_clean();
    });
}

/// Memory of this process that counts what was taken from it.
#[derive(Default)]
struct Counted {
    memory: ProcessMemory,
    bytes: AtomicU64,
    spans: std::sync::Mutex<Vec<(u64, u64)>>,
}

// SAFETY: it is `ProcessMemory`'s.
unsafe impl SharedMemory for Counted {
    fn allocate(&self, bytes: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let address = self.memory.allocate(bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.spans.lock().expect("no panic").push((address, bytes));
        Ok(address)
    }
}

impl Counted {
    fn holds(&self, address: u64, bytes: u64) -> bool {
        let spans = self.spans.lock().expect("no panic");
        spans
            .iter()
            .any(|(start, length)| *start <= address && address + bytes <= start + length)
    }
}

fn open(options: Mlx5Options) -> Result<Arc<Mlx5Nic>, NicError> {
    Mlx5Nic::open(options, Arc::new(ProcessMemory::new())).map(Arc::new)
}

fn config(depth: u32) -> PosterConfig {
    PosterConfig {
        sq_entries: depth,
        ..PosterConfig::default()
    }
}

/// Two pages, each registered: a home and a frame. They stay for ever, so that a NIC may know them as long as it likes.
struct Memory {
    home: &'static Pages,
    frame: &'static Pages,
    home_key: MemoryKey,
    frame_key: MemoryKey,
}

fn word(pages: &Pages, at: u64) -> &AtomicU64 {
    assert!(at * 8 < pages.bytes());
    // SAFETY: within the pages, aligned; all access to them is atomic.
    unsafe { &*pages.as_ptr().cast::<AtomicU64>().add(at as usize) }
}

fn fill(pages: &Pages, seed: u64) {
    (0..pages.bytes() / 8).for_each(|at| word(pages, at).store(pattern(seed, at), Ordering::Relaxed));
}

fn assert_filled(pages: &Pages, seed: u64) {
    for at in 0..pages.bytes() / 8 {
        assert_eq!(word(pages, at).load(Ordering::Relaxed), pattern(seed, at), "word {at}");
    }
}

fn pattern(seed: u64, at: u64) -> u64 {
    (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Memory {
    fn register(nic: &Mlx5Nic) -> Result<Self, NicError> {
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

    fn deregister(&self, nic: &Mlx5Nic) -> Result<(), NicError> {
        nic.deregister(self.home_key)?;
        nic.deregister(self.frame_key)
    }

    fn frame_segment(&self) -> [Segment<'static>; 1] {
        [Segment::Data {
            address: self.frame.address(),
            lkey: self.frame_key.lkey,
            bytes: PAGE as u32,
        }]
    }

    fn read(&self) -> Operation {
        Operation::Read {
            remote: self.home.address(),
            rkey: self.home_key.rkey,
        }
    }

    fn write(&self) -> Operation {
        Operation::Write {
            remote: self.home.address(),
            rkey: self.home_key.rkey,
        }
    }

    /// A READ and a WRITE, both verified.
    fn exchange(&self, poster: &mut Poster, seed: u64) -> Outcome {
        fill(self.home, seed);
        self.do_one(poster, self.read())?;
        assert_filled(self.frame, seed);
        fill(self.frame, seed + 1);
        self.do_one(poster, self.write())?;
        assert_filled(self.home, seed + 1);
        Ok(())
    }

    fn do_one(&self, poster: &mut Poster, operation: Operation) -> Outcome {
        poster.submit(operation, &self.frame_segment(), Flags::SIGNALLED)?;
        let completion = poster.wait(LONG)?;
        assert!(
            matches!(completion.detail, CompletionDetail::Success { .. }),
            "{completion}"
        );
        Ok(())
    }
}

/// A file in memory, as a dma-buf.
fn memory_file(bytes: u64) -> OwnedFd {
    // SAFETY: the name ends with a zero.
    let fd = unsafe { libc::memfd_create(c"gpuvm-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nobody else closes it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::ftruncate(fd, bytes as libc::off_t) }, 0);
    file
}

/// The whole life of a NIC. Every function of the back end is called at least once.
fn whole_life() -> Outcome {
    let nic = open(Mlx5Options::default())?;
    let memory = Memory::register(&nic)?;
    let buffer = memory_file(2 * PAGE);
    // Where no process of this kind has anything mapped.
    let iova = 0x5a5a_0000_0000;
    let buffer_key = nic.register_dma_buf(buffer.as_fd(), PAGE, PAGE, iova, Access::ALL)?;
    drop(buffer);
    let shared: Arc<dyn Nic> = nic.clone();
    let mut poster = Poster::loopback(Arc::clone(&shared), config(16))?;
    memory.exchange(&mut poster, 1)?;
    assert_eq!(nic.state(poster.number())?, QueuePairState::ReadyToSend);
    nic.fail(poster.number())?;
    assert_eq!(nic.state(poster.number())?, QueuePairState::Error);
    poster.reset()?;
    nic.connect(poster.number(), poster.number())?;
    poster.use_doorbell_proxy()?;
    memory.exchange(&mut poster, 3)?;
    nic.deregister(buffer_key)?;
    memory.deregister(&nic)?;
    nic.destroy_queue_pair(poster.number())?;
    Ok(())
}

#[test]
fn data_moves_through_rings_in_shared_memory() {
    over_fake("data_moves_through_rings_in_shared_memory", &[], |fake| {
        let start = Instant::now();
        let shared = Arc::new(Counted::default());
        let nic = Arc::new(Mlx5Nic::open(Mlx5Options::default(), shared.clone()).expect("a device"));
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(64)).expect("a queue pair");
        memory.do_one(&mut poster, memory.read()).expect("a READ");
        let first = start.elapsed();
        println!("# from nothing to the first READ: {first:?}");

        let found = nic.queue_pair(poster.number()).expect("it lives");
        assert_eq!(found.format, QueueFormat::Mlx5);
        assert_eq!((found.send.slots, found.send.shift, found.send.start), (64, 6, 0));
        assert_eq!(
            (found.completion.slots, found.completion.shift, found.completion.start),
            (64, 6, 0)
        );
        assert!(shared.holds(found.send.address, 64 * 64), "send ring");
        assert!(shared.holds(found.completion.address, 64 * 64), "completion ring");
        assert!(shared.holds(found.doorbell_record, 4), "doorbell record");
        let pages = nic.doorbell_pages();
        let in_page = |(first, bytes): &(u64, u64)| (*first..first + bytes).contains(&found.doorbell);
        assert!(pages.iter().any(in_page), "{pages:x?} and {:#x}", found.doorbell);

        // Several laps of both rings.
        for seed in 0..200 {
            memory.exchange(&mut poster, 2 * seed).expect("data");
        }
        let limits = nic.capabilities();
        assert_eq!(limits.name, "mlx5_0");
        assert_eq!(limits.link_bits_per_second, Some(100_000_000_000));
        assert!(limits.makes_rings && !limits.needs_doorbell_call && !limits.has_mover);
        assert_eq!((limits.max_rd_atomic, limits.sq_entries_max), (16, 32_768));
        assert_eq!(nic.doorbell_calls(), 0);

        // A chunk that was used comes back zeroed, or the driver's rings would not be clean.
        let before = shared.bytes.load(Ordering::Relaxed);
        drop(poster);
        for _ in 0..1_000 {
            drop(Poster::loopback(nic.clone(), config(64)).expect("a queue pair"));
        }
        assert_eq!(shared.bytes.load(Ordering::Relaxed), before, "memory is used again");
        memory.deregister(&nic).expect("their end");
        drop(nic);
        let calls = fake.log();
        assert_eq!(calls.last().map(String::as_str), Some("ibv_close_device"));
        assert_eq!(devices().expect("a list"), ["mlx5_0"]);
    });
}

#[test]
fn every_call_that_fails_is_named_and_nothing_is_left() {
    over_fake("every_call_that_fails_is_named_and_nothing_is_left", &[], |fake| {
        whole_life().expect("a life without failures");
        fake.assert_clean();
        // These tell nothing of a failure.
        let silent = ["mlx5dv_is_supported", "ibv_free_device_list"];
        let calls: Vec<String> = fake
            .log()
            .into_iter()
            .filter(|call| !silent.contains(&&**call))
            .collect();
        assert!(calls.len() > 30, "{calls:?}");
        // When the NIC is dropped there is nobody to tell: what fails then is logged, and the rest goes on.
        let drops = calls.iter().position(|call| call == "ibv_dealloc_pd").expect("an end");
        for (at, name) in calls.iter().enumerate() {
            fake.clear();
            fake.fail("any", at as u32 + 1, libc::EIO);
            let outcome = whole_life();
            let step = format!("call {at}, {name}");
            if at < drops {
                let error = outcome.err().unwrap_or_else(|| panic!("{step}: no error"));
                let said = error.to_string();
                assert!(said.contains(name.as_str()), "{step}: {said}");
                let nic_error = error
                    .downcast::<NicError>()
                    .unwrap_or_else(|error| panic!("{step}: {error}"));
                let source = nic_error.source().unwrap_or_else(|| panic!("{step}: no source"));
                let errno = source.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
                assert_eq!(errno, Some(libc::EIO), "{step}");
                assert_eq!(fake.live(), [""; 0], "{step}: left behind");
                assert_eq!(fake.breaches(), [""; 0], "{step}");
            } else {
                outcome.unwrap_or_else(|error| panic!("{step}: {error}"));
                let left = fake.live();
                let expected: &[&str] = if name == "ibv_close_device" { &["context"] } else { &[] };
                assert_eq!(left, expected, "{step}");
                // What failed, and what it is made of, stay until the device file is closed.
                let domains = |breach: &String| breach.contains("domain");
                assert!(fake.breaches().iter().all(domains), "{step}: {:?}", fake.breaches());
            }
            let log = fake.log();
            if log.iter().any(|call| call == "ibv_open_device") && name != "ibv_open_device" {
                assert_eq!(log.last().map(String::as_str), Some("ibv_close_device"), "{step}");
            }
        }
        // The context that could not be closed above.
        assert_eq!(fake.live(), ["context"]);
        println!("# {} calls were made to fail", calls.len());
        std::process::exit(0);
    });
}

#[test]
fn tear_down_is_in_order() {
    over_fake("tear_down_is_in_order", &[], |fake| {
        {
            let nic = open(Mlx5Options::default()).expect("a device");
            let _memory = Memory::register(&nic).expect("memory");
            // SAFETY: nobody accesses the rings.
            unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) }.expect("a queue pair");
            fake.clear();
            // Nothing is given back by hand.
        }
        let order = [
            "ibv_destroy_qp",
            "ibv_destroy_cq",
            "ibv_dereg_mr",
            "ibv_dereg_mr",
            "ibv_dealloc_pd",
            "ibv_dealloc_pd",
            "ibv_close_device",
        ];
        assert_eq!(fake.log(), order);
    });
}

#[test]
fn completions_go_on_after_a_reset() {
    over_fake("completions_go_on_after_a_reset", &[], |_| {
        const DEPTH: u64 = 8;
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        for requests in [
            0,
            1,
            5,
            DEPTH - 1,
            DEPTH,
            DEPTH + 1,
            2 * DEPTH - 1,
            2 * DEPTH,
            2 * DEPTH + 3,
            70_000,
        ] {
            let mut poster = Poster::loopback(nic.clone(), config(DEPTH as u32)).expect("a queue pair");
            for _ in 0..requests {
                memory.do_one(&mut poster, memory.read()).expect("a READ");
            }
            let number = poster.number();
            for turn in 0..3 {
                poster.reset().expect("a reset");
                assert_eq!(nic.state(number).expect("it lives"), QueuePairState::Reset);
                let found = nic.queue_pair(number).expect("it lives");
                // Each turn but the first did two requests.
                let position = (requests + 2 * turn) % (2 * DEPTH);
                assert_eq!(
                    u64::from(found.completion.start),
                    position,
                    "after {requests} requests, turn {turn}"
                );
                assert_eq!(found.number, number);
                nic.connect(number, number).expect("ready again");
                memory.exchange(&mut poster, turn).expect("data");
            }
        }
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn a_failed_queue_pair_flushes_and_comes_back() {
    over_fake("a_failed_queue_pair_flushes_and_comes_back", &[], |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        let wrong = Operation::Read {
            remote: memory.home.address(),
            rkey: memory.home_key.rkey ^ 0x55,
        };
        poster
            .submit(wrong, &memory.frame_segment(), Flags::SIGNALLED)
            .expect("room");
        let refused = poster.wait(LONG).expect("a completion");
        assert!(matches!(refused.detail, CompletionDetail::Error { .. }), "{refused}");
        assert_eq!(nic.state(poster.number()).expect("it lives"), QueuePairState::Error);
        poster
            .submit(memory.read(), &memory.frame_segment(), Flags::SIGNALLED)
            .expect("room");
        let flushed = poster.wait(LONG).expect("a completion");
        assert!(flushed.to_string().contains("flush"), "{flushed}");

        let number = poster.number();
        let again = nic.connect(number, number);
        assert!(matches!(again, Err(NicError::WrongState { .. })), "{again:?}");
        // As a connection manager does it.
        nic.modify(number, &QueueAttributes::to_state(QueueAttributes::RESET))
            .expect("reset");
        poster.reset().expect("reset");
        nic.connect(number, number).expect("ready");
        memory.exchange(&mut poster, 7).expect("data");
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn queue_pairs_reach_each_other() {
    over_fake("queue_pairs_reach_each_other", &[], |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let make = || Poster::new(nic.clone(), config(16)).expect("a queue pair");
        let (mut one, mut other) = (make(), make());
        nic.connect(one.number(), other.number()).expect("ready");
        nic.connect(other.number(), one.number()).expect("ready");
        memory.exchange(&mut one, 1).expect("data");
        memory.exchange(&mut other, 5).expect("data");
        drop((one, other));
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn the_doorbell_proxy_rings_for_posters_that_cannot() {
    over_fake("the_doorbell_proxy_rings_for_posters_that_cannot", &[], |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        let register = poster.doorbell();
        assert_eq!(nic.doorbell_pages().len(), 1);
        poster.use_doorbell_proxy().expect("a proxy");
        let words = poster.doorbell();
        assert_ne!(words, register);
        assert_eq!(nic.queue_pair(poster.number()).expect("it lives").doorbell, words);
        assert_eq!(nic.doorbell_pages().len(), 2);
        assert_eq!(
            nic.use_doorbell_proxy(poster.number()).expect("the same").doorbell,
            words
        );
        for seed in 0..40 {
            memory.exchange(&mut poster, seed).expect("data");
        }
        assert_eq!(nic.doorbell_calls(), 80);
        // The word begins anew with its queue pair.
        poster.reset().expect("reset");
        nic.connect(poster.number(), poster.number()).expect("ready");
        memory.exchange(&mut poster, 50).expect("data");
        // Without a call the thread looks by itself, as a GPU needs it.
        std::thread::sleep(Duration::from_millis(20));
        poster
            .post(memory.read(), &memory.frame_segment(), Flags::SIGNALLED)
            .expect("room");
        let index = poster.written() as u16;
        poster.store_record(index);
        poster.store_doorbell(gpuvm_nic::wire::mlx5::Doorbell {
            index,
            queue_pair: poster.number(),
        });
        poster.wait(LONG).expect("a completion");
        assert!(matches!(
            nic.use_doorbell_proxy(0xabcdef),
            Err(NicError::UnknownQueuePair { queue_pair: 0xabcdef })
        ));
        drop(poster);
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn memory_of_a_dma_buf_is_reached_by_its_addresses() {
    over_fake("memory_of_a_dma_buf_is_reached_by_its_addresses", &[], |fake| {
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        let file = memory_file(4 * PAGE);
        let iova = 0x5a5a_0000_0000;
        let key = nic
            .register_dma_buf(file.as_fd(), PAGE, 2 * PAGE, iova, Access::LOCAL_WRITE)
            .expect("a registration");
        fill(memory.home, 9);
        // To the buffer's second page, which is the file's third.
        let segment = Segment::Data {
            address: iova + PAGE,
            lkey: key.lkey,
            bytes: PAGE as u32,
        };
        poster
            .submit(memory.read(), &[segment], Flags::SIGNALLED)
            .expect("room");
        poster.wait(LONG).expect("a completion");
        let mut found = vec![0u8; PAGE as usize];
        let read = std::os::unix::fs::FileExt::read_exact_at(
            &std::fs::File::from(file.try_clone().expect("a descriptor")),
            &mut found,
            2 * PAGE,
        );
        read.expect("the file's page");
        for (at, bytes) in found.as_chunks::<8>().0.iter().enumerate() {
            assert_eq!(u64::from_ne_bytes(*bytes), pattern(9, at as u64), "word {at}");
        }
        nic.deregister(key).expect("its end");

        let refused = |bytes, iova, access| nic.register_dma_buf(file.as_fd(), 0, bytes, iova, access);
        for (bytes, iova, access) in [
            (0, iova, Access::ALL),
            (PAGE, u64::MAX, Access::ALL),
            (PAGE, iova, Access::REMOTE_WRITE),
            ((1 << 31) + PAGE, iova, Access::ALL),
        ] {
            let refused = refused(bytes, iova, access);
            assert!(matches!(refused, Err(NicError::BadArgument { .. })), "{refused:?}");
        }
        let outside = refused(5 * PAGE, iova, Access::ALL)
            .expect_err("beyond the file")
            .to_string();
        assert!(outside.contains("ibv_reg_dmabuf_mr"), "{outside}");
        fake.fail("ibv_reg_dmabuf_mr", 1, libc::EOPNOTSUPP);
        let old = refused(PAGE, iova, Access::ALL).expect_err("planted").to_string();
        assert!(old.contains("Linux 5.12") && old.contains("nvidia-peermem"), "{old}");
        drop(poster);
        memory.deregister(&nic).expect("their end");
    });
}

/// What opening says.
fn refusal(options: Mlx5Options) -> String {
    let error = open(options).err().expect("it is refused");
    error.to_string()
}

#[test]
fn options_choose_device_port_and_gid() {
    over_fake("options_choose_device_port_and_gid", &[], |_| {
        let good = Mlx5Options::default();
        let said = refusal(Mlx5Options {
            gid_index: Some(9),
            ..good.clone()
        });
        for part in [
            "GID index 9",
            "port 1",
            "3 (RoCE v2, ::ffff:192.0.2.1)",
            "0 (RoCE v1",
            "mlx5_0",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let said = refusal(Mlx5Options {
            port: 2,
            ..good.clone()
        });
        assert!(said.contains("port is 0x2"), "{said}");
        let said = refusal(Mlx5Options {
            device: Some("mlx5_7".into()),
            ..good.clone()
        });
        assert!(
            said.contains("mlx5_7") && said.contains("there is rxe0, mlx5_0"),
            "{said}"
        );
        let said = refusal(Mlx5Options {
            device: Some("rxe0".into()),
            ..good.clone()
        });
        assert!(said.contains("rxe0 is not an mlx5 device"), "{said}");
        for options in [
            Mlx5Options {
                gid_index: Some(1),
                mtu: Some(1024),
                service_level: 3,
                traffic_class: 106,
                ..good.clone()
            },
            Mlx5Options {
                device: Some("mlx5_0".into()),
                ..good.clone()
            },
        ] {
            let nic = open(options).expect("a device");
            let memory = Memory::register(&nic).expect("memory");
            let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
            memory.exchange(&mut poster, 1).expect("data");
            drop(poster);
            memory.deregister(&nic).expect("their end");
        }
    });
}

#[test]
fn a_port_that_is_down_says_so() {
    over_fake("a_port_that_is_down_says_so", &[("FAKE_RDMA_PORT", "down")], |_| {
        let said = refusal(Mlx5Options::default());
        for part in ["port 1", "down", "ip link set", "mlx5_0"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    });
}

#[test]
fn infiniband_goes_by_lids() {
    over_fake("infiniband_goes_by_lids", &[("FAKE_RDMA_LINK", "infiniband")], |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        memory.exchange(&mut poster, 1).expect("data");
        drop(poster);
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn allocators_that_are_ignored_are_noticed() {
    let variables = [("FAKE_RDMA_ALLOCATORS", "ignored")];
    over_fake("allocators_that_are_ignored_are_noticed", &variables, |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        // SAFETY: none is made.
        let refused = unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) }.expect_err("out of reach");
        let source = refused.source().expect("a reason").to_string();
        assert!(source.contains("ignored the allocators"), "{refused}: {source}");
    });
}

#[test]
fn completions_of_128_bytes_are_refused() {
    let variables = [("FAKE_RDMA_ENTRY_BYTES", "128")];
    over_fake("completions_of_128_bytes_are_refused", &variables, |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        // SAFETY: none is made.
        let refused = unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) }.expect_err("too long");
        assert!(refused.to_string().contains("MLX5_"), "{refused}");
        let source = refused.source().expect("a reason").to_string();
        assert!(source.contains("128 bytes"), "{refused}: {source}");
    });
}

#[test]
fn a_send_ring_that_is_longer_than_asked_for_gets_its_completions() {
    let variables = [("FAKE_RDMA_REQUEST_BLOCKS", "4")];
    let name = "a_send_ring_that_is_longer_than_asked_for_gets_its_completions";
    over_fake(name, &variables, |_| {
        let nic = open(Mlx5Options::default()).expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        let found = nic.queue_pair(poster.number()).expect("it lives");
        assert_eq!((found.send.slots, found.completion.slots), (32, 32));
        for seed in 0..50 {
            memory.exchange(&mut poster, seed).expect("data");
        }
        drop(poster);
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn what_cannot_be_is_refused_with_the_cause() {
    over_fake("what_cannot_be_is_refused_with_the_cause", &[], |fake| {
        fake.fail("ibv_open_device", 1, libc::EPERM);
        let said = refusal(Mlx5Options::default());
        assert!(
            said.contains("/dev/infiniband") && said.contains("CAP_IPC_LOCK"),
            "{said}"
        );
        fake.fail("ibv_query_gid_table", 1, libc::EOPNOTSUPP);
        let said = refusal(Mlx5Options::default());
        assert!(said.contains("too old"), "{said}");

        let nic = open(Mlx5Options::default()).expect("a device");
        let create = |depth| {
            // SAFETY: nobody accesses the rings.
            unsafe { nic.create_queue_pair(QueueRings::Own { depth }) }
        };
        for depth in [0, 3, 1 << 16] {
            let refused = create(depth);
            assert!(matches!(refused, Err(NicError::BadArgument { .. })), "{refused:?}");
        }
        let given = QueueMemory {
            sq: 64,
            sq_entries: 8,
            cq: 64,
            cq_entries: 8,
            dbrec: 64,
            cq_dbrec: 64,
            collapsed: false,
        };
        // SAFETY: none is made.
        let refused = unsafe { nic.create_queue_pair(QueueRings::Given(given)) };
        assert!(matches!(refused, Err(NicError::Unsupported { .. })), "{refused:?}");

        fake.fail("ibv_create_cq_ex", 1, libc::ENOMEM);
        let said = create(8).expect_err("planted").to_string();
        assert!(said.contains("ulimit -l"), "{said}");

        let number = create(8).expect("a queue pair").number;
        fake.fail("ibv_modify_qp", 2, libc::EINVAL);
        let said = nic.connect(number, number).expect_err("planted").to_string();
        for part in ["ready to receive", "GID index 3", "MTU 4096", "16 READs"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        nic.reset(number).expect("reset");
        fake.fail("ibv_modify_qp", 2, libc::ETIMEDOUT);
        let said = nic.connect(number, number).expect_err("planted").to_string();
        assert!(said.contains("no route"), "{said}");

        // Memory that is not there, as that of a GPU without nvidia-peermem.
        // SAFETY: none is registered.
        let said = unsafe { nic.register(0x7a00_0000_0000, PAGE, Access::ALL) }.expect_err("not mapped");
        assert!(said.to_string().contains("nvidia-peermem"), "{said}");
        let key = MemoryKey { lkey: 1, rkey: 2 };
        assert!(matches!(nic.deregister(key), Err(NicError::UnknownKey { .. })));
        for refused in [
            nic.connect(number, 0xabcdef).err(),
            nic.queue_pair(0xabcdef).err(),
            nic.state(0xabcdef).err(),
            nic.reset(0xabcdef).err(),
            nic.fail(0xabcdef).err(),
            nic.destroy_queue_pair(0xabcdef).err(),
        ] {
            assert!(
                matches!(refused, Some(NicError::UnknownQueuePair { queue_pair: 0xabcdef })),
                "{refused:?}"
            );
        }
    });
}

/// Memory that is full.
struct Full;

// SAFETY: it returns no memory.
unsafe impl SharedMemory for Full {
    fn allocate(&self, _: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
        Err("the GPU's host memory is used up".into())
    }
}

#[test]
fn the_reason_for_missing_memory_reaches_the_caller() {
    over_fake("the_reason_for_missing_memory_reaches_the_caller", &[], |_| {
        let nic = Mlx5Nic::open(Mlx5Options::default(), Arc::new(Full)).expect("a device");
        // SAFETY: none is made.
        let refused = unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) }.expect_err("no memory");
        let said = refused.to_string();
        assert!(
            said.contains("the GPU's host memory is used up") && said.contains("ibv_create_cq_ex"),
            "{said}"
        );
    });
}

#[test]
fn without_the_verbs_library_the_package_is_named() {
    let name = "without_the_verbs_library_the_package_is_named";
    in_child(name, [StandIn::Garbage, StandIn::Fake], &[], || {
        let said = refusal(Mlx5Options::default());
        assert!(
            said.contains("libibverbs.so.1") && said.contains("apt install"),
            "{said}"
        );
        assert!(devices().is_err());
    });
}

#[test]
fn without_the_mlx5_library_the_package_is_named() {
    let name = "without_the_mlx5_library_the_package_is_named";
    in_child(name, [StandIn::Fake, StandIn::Garbage], &[], || {
        let said = refusal(Mlx5Options::default());
        assert!(
            said.contains("libmlx5.so.1") && said.contains("ibverbs-providers"),
            "{said}"
        );
    });
}

#[test]
fn a_library_without_the_functions_is_no_crash() {
    let name = "a_library_without_the_functions_is_no_crash";
    in_child(name, [StandIn::Fake, StandIn::Other], &[], || {
        let said = refusal(Mlx5Options::default());
        assert!(
            said.contains("mlx5dv_is_supported") && said.contains("rdma-core 34"),
            "{said}"
        );
    });
}

#[test]
fn a_verbs_library_without_the_functions_is_no_crash() {
    let name = "a_verbs_library_without_the_functions_is_no_crash";
    in_child(name, [StandIn::Other, StandIn::Fake], &[], || {
        let said = refusal(Mlx5Options::default());
        assert!(
            said.contains("ibv_get_device_list") && said.contains("too old"),
            "{said}"
        );
    });
}
