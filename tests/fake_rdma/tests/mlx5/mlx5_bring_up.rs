//! The mlx5 back end from the first call to the last, over a fake of its libraries whose queues move data.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::bed::{
    Failing, LONG, Memory, Outcome, PAGE, assert_filled, config, each_call_fails, fill, open, over_fake, pattern,
};
use gpuvm_nic::mlx5::{Mlx5Options, ProcessMemory, SharedMemory, devices};
use gpuvm_nic::poster::{Flags, Poster};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Operation, Segment};
use gpuvm_nic::{Access, Mlx5Nic, Nic, NicError, QueueAttributes, QueueFormat, QueuePairState, QueueRings};

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

/// A file in memory, as a dma-buf.
fn memory_file(bytes: u64) -> OwnedFd {
    // SAFETY: the name ends with a zero.
    let fd = unsafe { libc::memfd_create(c"gpuvm-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else closes it.
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
        let failing = Failing {
            silent: &["mlx5dv_is_supported", "ibv_free_device_list"],
            replaced: None,
            end: "ibv_dealloc_pd",
            // What failed, and what it is made of, stay until the device file is closed.
            may_breach: |_, breach, in_end| in_end && breach.contains("domain"),
        };
        let calls = each_call_fails(fake, whole_life, &failing);
        assert!(calls.len() > 30, "{calls:?}");
        // The context that could not be closed.
        assert_eq!(fake.live(), ["context"]);
        std::process::exit(0);
    });
}

#[test]
fn tear_down_is_in_order() {
    over_fake("tear_down_is_in_order", &[], |fake| {
        {
            let nic = open(Mlx5Options::default()).expect("a device");
            let _memory = Memory::register(&nic).expect("memory");
            // SAFETY: nothing accesses the rings.
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
fn many_queue_pairs_work_at_one_time() {
    over_fake(
        "many_queue_pairs_work_at_one_time",
        &[("FAKE_RDMA_ENGINES", "2")],
        |_| {
            const THREADS: usize = 4;
            const EACH: usize = 16;
            const DEPTH: u32 = 16;
            let nic = open(Mlx5Options::default()).expect("a device");
            let work = || {
                let memory = Memory::register(&nic).expect("memory");
                let make = |_| Poster::loopback(nic.clone(), config(DEPTH)).expect("a queue pair");
                let mut posters: Vec<Poster> = (0..EACH).map(make).collect();
                fill(memory.home, 3);
                for _ in 0..20 {
                    for poster in &mut posters {
                        for _ in 0..DEPTH {
                            poster
                                .post(memory.read(), &memory.frame_segment(), Flags::SIGNALLED)
                                .expect("room");
                        }
                        poster.ring();
                    }
                    for poster in &mut posters {
                        for _ in 0..DEPTH {
                            let completion = poster.wait(LONG).expect("a completion");
                            assert!(
                                matches!(completion.detail, CompletionDetail::Success { .. }),
                                "{completion}"
                            );
                        }
                    }
                }
                assert_filled(memory.frame, 3);
                drop(posters);
                memory.deregister(&nic).expect("their end");
            };
            std::thread::scope(|scope| {
                (0..THREADS).for_each(|_| {
                    scope.spawn(work);
                });
            });
        },
    );
}
