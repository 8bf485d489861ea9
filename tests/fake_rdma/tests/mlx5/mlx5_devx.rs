//! Queue pairs that DEVX makes, from the first call to the last, over the fake: its firmware takes commands bit for bit.

use std::error::Error;
use std::ffi::c_void;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::bed::{self, Failing, LONG, Memory, Outcome, PAGE, config, each_call_fails, over_fake};
use gpuvm_nic::mlx5::{Mlx5Options, QueueMaking, QueueSlab, SharedMemory};
use gpuvm_nic::poster::{Flags, Poster};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Operation};
use gpuvm_nic::{Mlx5Nic, Nic, NicError, QueueAttributes, QueuePairState, QueueRings};

fn options() -> Mlx5Options {
    Mlx5Options {
        queues: QueueMaking::Devx,
        ..Mlx5Options::default()
    }
}

fn open() -> Result<Arc<Mlx5Nic>, NicError> {
    bed::open(options())
}

/// The whole life of a NIC. Every function of the way by DEVX is called at least once.
fn whole_life() -> Outcome {
    let nic = open()?;
    let memory = Memory::register(&nic)?;
    let shared: Arc<dyn Nic> = nic.clone();
    let mut poster = Poster::loopback(shared, config(16))?;
    memory.fetch(&mut poster, 1)?;
    assert_eq!(nic.state(poster.number())?, QueuePairState::ReadyToSend);
    nic.fail(poster.number())?;
    assert_eq!(nic.state(poster.number())?, QueuePairState::Error);
    poster.reset()?;
    nic.connect(poster.number(), poster.number())?;
    memory.fetch(&mut poster, 3)?;
    memory.deregister(&nic)?;
    nic.destroy_queue_pair(poster.number())?;
    Ok(())
}

#[test]
fn data_moves_and_every_completion_overwrites_one_entry() {
    over_fake("data_moves_and_every_completion_overwrites_one_entry", &[], |_| {
        let nic = open().expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(16)).expect("a queue pair");
        let found = nic.queue_pair(poster.number()).expect("it lives");
        assert!(found.collapsed);
        assert_eq!((found.send.slots, found.send.start, found.completion.start), (16, 0, 0));
        assert!(nic.doorbell_pages().contains(&(found.doorbell & !(PAGE - 1), PAGE)));
        // Past the end of the ring, and past the 16 bits of its count.
        for seed in 0..70_000 {
            if seed % 1_000 < 40 {
                memory.fetch(&mut poster, seed).expect("data");
            } else {
                let posted = poster.submit(memory.read(), &memory.frame_segment(), Flags::SIGNALLED);
                posted.expect("room");
                poster.wait(LONG).expect("a completion");
            }
        }
        // SAFETY: within the ring, which lives; all access to it is atomic.
        let entry = |slot: u64| unsafe {
            let place = found.completion.address + slot * 64 + 56;
            (*std::ptr::with_exposed_provenance::<AtomicU64>(place as usize)).load(Ordering::Relaxed)
        };
        assert_eq!(entry(0).to_be() >> 16 & 0xffff, 69_999 & 0xffff);
        assert!(
            (1..16).all(|slot| entry(slot).to_be() & 0xff == 0xf0),
            "others are as they were"
        );
        drop(poster);
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn a_queue_pair_comes_back_from_errors_with_clean_rings() {
    over_fake("a_queue_pair_comes_back_from_errors_with_clean_rings", &[], |_| {
        let nic = open().expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        let number = poster.number();
        for turn in 0..20 {
            memory.fetch(&mut poster, turn).expect("data");
            let wrong = Operation::Read {
                remote: memory.home.address(),
                rkey: memory.home_key.rkey ^ 0x55,
            };
            let posted = poster.submit(wrong, &memory.frame_segment(), Flags::SIGNALLED);
            posted.expect("room");
            let refused = poster.wait(LONG).expect("a completion");
            assert!(matches!(refused.detail, CompletionDetail::Error { .. }), "{refused}");
            assert_eq!(nic.state(number).expect("it lives"), QueuePairState::Error);
            let again = nic.connect(number, number);
            assert!(matches!(again, Err(NicError::WrongState { .. })), "{again:?}");
            poster.reset().expect("reset");
            assert_eq!(nic.state(number).expect("it lives"), QueuePairState::Reset);
            assert!(poster.poll().is_none(), "the old completion is gone");
            nic.connect(number, number).expect("ready");
        }
        memory.fetch(&mut poster, 77).expect("data");
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn every_call_that_fails_is_named_and_nothing_is_left() {
    over_fake("every_call_that_fails_is_named_and_nothing_is_left", &[], |fake| {
        let failing = Failing {
            silent: &["mlx5dv_is_supported", "ibv_free_device_list", "mlx5dv_devx_free_uar"],
            // Another kind of page does it.
            replaced: Some("mlx5dv_devx_alloc_uar"),
            end: "mlx5dv_devx_umem_dereg",
            // An address that cannot be destroyed, and its domain, stay until the device file is closed.
            may_breach: |name, breach, in_end| {
                in_end || name == "ibv_destroy_ah" && (breach.contains("address") || breach.contains("domain"))
            },
        };
        let calls = each_call_fails(fake, whole_life, &failing);
        for needed in ["open_device", "devx_alloc_uar", "devx_obj_query", "devx_umem_dereg"] {
            assert!(calls.contains(&format!("mlx5dv_{needed}")), "{needed}: {calls:?}");
        }
        std::process::exit(0);
    });
}

#[test]
fn tear_down_is_in_order() {
    over_fake("tear_down_is_in_order", &[], |fake| {
        {
            let nic = open().expect("a device");
            // SAFETY: nothing accesses the rings.
            unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) }.expect("a queue pair");
            fake.clear();
        }
        let order = [
            "mlx5dv_devx_obj_destroy",
            "mlx5dv_devx_obj_destroy",
            "mlx5dv_devx_free_uar",
            "mlx5dv_devx_umem_dereg",
            "ibv_dealloc_pd",
            "ibv_close_device",
        ];
        assert_eq!(fake.log(), order);
    });
}

#[test]
fn memory_is_used_again() {
    over_fake("memory_is_used_again", &[], |fake| {
        let nic = open().expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        for seed in 0..300 {
            let mut poster = Poster::loopback(nic.clone(), config(64)).expect("a queue pair");
            memory.fetch(&mut poster, seed).expect("data");
        }
        let registered = fake.log().iter().filter(|call| *call == "mlx5dv_devx_umem_reg").count();
        assert_eq!(registered, 1);
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn infiniband_goes_by_lids() {
    over_fake("infiniband_goes_by_lids", &[("FAKE_RDMA_LINK", "infiniband")], |fake| {
        let nic = open().expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(8)).expect("a queue pair");
        memory.fetch(&mut poster, 1).expect("data");
        assert!(
            !fake.log().iter().any(|call| call == "ibv_create_ah"),
            "nothing is resolved"
        );
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn what_the_firmware_refuses_is_said_with_its_codes() {
    over_fake("what_the_firmware_refuses_is_said_with_its_codes", &[], |_| {
        let nic = open().expect("a device");
        // SAFETY: nothing accesses the rings.
        let pair = unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) }.expect("a queue pair");
        let refused = nic.modify(pair.number, &QueueAttributes::to_state(QueueAttributes::READY_TO_SEND));
        let said = refused.expect_err("not from reset").to_string();
        assert!(said.contains("firmware status 0x09 (bad resource state)"), "{said}");
        let odd = nic.modify(pair.number, &QueueAttributes::to_state(5));
        assert!(matches!(odd, Err(NicError::BadArgument { .. })), "{odd:?}");
        let nobody = QueueAttributes {
            state: QueueAttributes::READY_TO_RECEIVE,
            mask: QueueAttributes::STATE | QueueAttributes::ADDRESS,
            address: gpuvm_nic::AddressAttributes {
                dgid: [0xfd; 16],
                is_global: true,
                port: 1,
                ..Default::default()
            },
            ..Default::default()
        };
        let said = nic
            .modify(pair.number, &nobody)
            .expect_err("nothing is there")
            .to_string();
        assert!(said.contains("ibv_create_ah"), "{said}");
        nic.destroy_queue_pair(pair.number).expect("its end");
    });
}

/// Memory that stands for a GPU's: a file in the place of a dma-buf, whose posters know it by another address than the NIC.
#[derive(Default)]
struct Device {
    writes: AtomicU64,
    slabs: Mutex<Vec<(u64, u64)>>,
}

// SAFETY: new mappings, zeroed, which stay for ever.
unsafe impl SharedMemory for Device {
    fn allocate(&self, _: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
        Err("this memory is only for queues".into())
    }

    fn allocate_queues(&self, bytes: u64) -> Result<QueueSlab, Box<dyn Error + Send + Sync>> {
        // The slab begins after the file's first page.
        // SAFETY: the name ends with a zero; the descriptor is new, and nothing else closes it.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"gpuvm-queues".as_ptr(), libc::MFD_CLOEXEC)) };
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: the descriptor is open; a new mapping wherever there is room.
        let first = unsafe {
            assert_eq!(libc::ftruncate(fd, (bytes + PAGE) as libc::off_t), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let nowhere = std::ptr::null_mut::<c_void>();
            libc::mmap(
                nowhere,
                bytes as usize,
                access,
                libc::MAP_SHARED,
                fd,
                PAGE as libc::off_t,
            )
        };
        assert_ne!(first, libc::MAP_FAILED);
        let address = first.expose_provenance() as u64;
        self.slabs.lock().expect("no panic").push((address, bytes));
        Ok(QueueSlab {
            address,
            dma_buf: Some((file, PAGE)),
        })
    }

    unsafe fn write_queues(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let slabs = self.slabs.lock().expect("no panic");
        let end = address + bytes.len() as u64;
        let inside = |(start, length): &(u64, u64)| *start <= address && end <= start + length;
        assert!(slabs.iter().any(inside), "{address:#x}");
        self.writes.fetch_add(1, Ordering::Relaxed);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: inside a mapping that stays, and nothing uses it now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}

#[test]
fn rings_lie_in_memory_that_is_known_by_a_dma_buf() {
    over_fake("rings_lie_in_memory_that_is_known_by_a_dma_buf", &[], |fake| {
        let device = Arc::new(Device::default());
        let nic = Mlx5Nic::open(options(), device.clone())
            .map(Arc::new)
            .expect("a device");
        let memory = Memory::register(&nic).expect("memory");
        let mut poster = Poster::loopback(nic.clone(), config(32)).expect("a queue pair");
        for seed in 0..100 {
            memory.fetch(&mut poster, seed).expect("data");
        }
        let found = nic.queue_pair(poster.number()).expect("it lives");
        let slabs = device.slabs.lock().expect("no panic").clone();
        for address in [found.send.address, found.completion.address, found.doorbell_record] {
            assert!(slabs.iter().any(|(start, bytes)| address.wrapping_sub(*start) < *bytes));
        }
        // Ring and records, once: the processor has no other part in them.
        assert_eq!(device.writes.load(Ordering::Relaxed), 2);
        poster.reset().expect("reset");
        assert_eq!(device.writes.load(Ordering::Relaxed), 4);
        nic.connect(poster.number(), poster.number()).expect("ready");
        memory.fetch(&mut poster, 1_000).expect("data");
        assert!(fake.log().iter().any(|call| call == "mlx5dv_devx_umem_reg_ex"));
        drop(poster);
        memory.deregister(&nic).expect("their end");
    });
}

#[test]
fn without_memory_for_queues_the_reason_is_told() {
    struct Full;

    // SAFETY: it returns no memory.
    unsafe impl SharedMemory for Full {
        fn allocate(&self, _: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
            Err("the GPU is full".into())
        }
    }

    over_fake("without_memory_for_queues_the_reason_is_told", &[], |_| {
        let nic = Mlx5Nic::open(options(), Arc::new(Full)).expect("a device");
        // SAFETY: nothing accesses the rings.
        let made = unsafe { nic.create_queue_pair(QueueRings::Own { depth: 8 }) };
        let said = made.expect_err("no memory").to_string();
        assert!(said.contains("the GPU is full"), "{said}");
    });
}
