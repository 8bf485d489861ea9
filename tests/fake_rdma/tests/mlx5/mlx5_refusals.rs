//! What the mlx5 back end refuses, and that it says why, over a fake of its libraries.

use std::error::Error;
use std::sync::Arc;

use crate::common::bed::{Memory, PAGE, config, open, over_fake};
use crate::common::{StandIn, in_child};
use gpuvm_nic::mlx5::{Mlx5Options, QueueMaking, SharedMemory, devices};
use gpuvm_nic::poster::Poster;
use gpuvm_nic::{Access, MemoryKey, Mlx5Nic, Nic, NicError, QueueMemory, QueueRings};

/// What opening says.
fn refusal(options: Mlx5Options) -> String {
    let error = open(options).err().expect("it is refused");
    error.to_string()
}

#[test]
fn a_device_that_is_up_is_taken_before_the_first() {
    let name = "a_device_that_is_up_is_taken_before_the_first";
    over_fake(name, &[("FAKE_RDMA_PORT", "another_down")], |_| {
        for queues in [QueueMaking::Verbs, QueueMaking::Devx] {
            let options = Mlx5Options {
                queues,
                ..Mlx5Options::default()
            };
            let nic = open(options.clone()).expect("one is up");
            assert_eq!(nic.device(), "mlx5_0");
            let said = refusal(Mlx5Options {
                device: Some("mlx5_9".into()),
                ..options.clone()
            });
            assert!(
                said.contains("mlx5_9") && said.contains("port 1, which is down"),
                "{said}"
            );
            // None is: the first one's error is told.
            let said = refusal(Mlx5Options { port: 2, ..options });
            assert!(said.contains("port is 0x2"), "{said}");
        }
    });
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
            // SAFETY: nothing accesses the rings.
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

#[test]
fn the_environment_plants_failures_and_names_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("calls");
    let variables = [
        ("FAKE_RDMA_FAIL", "ibv_alloc_pd:12@2, ibv_open_device:13"),
        ("FAKE_RDMA_LOG", log.to_str().expect("text")),
    ];
    let name = "the_environment_plants_failures_and_names_the_log";
    over_fake(name, &variables, |fake| {
        assert!(refusal(Mlx5Options::default()).contains("ibv_open_device"));
        drop(open(Mlx5Options::default()).expect("the second one goes well"));
        assert!(refusal(Mlx5Options::default()).contains("ibv_alloc_pd"));
        drop(open(Mlx5Options::default()).expect("the third one goes well"));
        let path = std::env::var("FAKE_RDMA_LOG").expect("it is set");
        let written = std::fs::read_to_string(path).expect("the log");
        assert_eq!(written.lines().collect::<Vec<_>>(), fake.log());
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
