mod garbage;
pub mod machines;
mod peers;

use serde_json::Value;

use super::finding::{Finding, FindingState};
use super::report::Report;
use machines::{Fixture, GPU_WAY, NIC_WAY, PROPRIETARY, RELEASE, config, limits};

impl Fixture {
    fn report(&self) -> Report {
        let report = self.look();
        check_shape(&report);
        report
    }
}

fn of<'a>(report: &'a Report, id: &str) -> &'a Finding {
    let mut findings = report.findings.iter().filter(|finding| finding.id == id);
    findings.next().unwrap_or_else(|| panic!("no finding {id}"))
}

fn states(report: &Report) -> Vec<(&str, FindingState)> {
    report
        .findings
        .iter()
        .map(|finding| (finding.id, finding.state))
        .collect()
}

/// What differs from the server that is well.
fn changed(fixture: &Fixture) -> Vec<(&'static str, FindingState)> {
    let well = Fixture::server().report();
    let report = fixture.report();
    let pairs = well.findings.iter().zip(&report.findings);
    pairs
        .filter(|(well, now)| well.state != now.state)
        .map(|(_, now)| (now.id, now.state))
        .collect()
}

/// What holds for every report.
fn check_shape(report: &Report) {
    let mut ids: Vec<_> = report.findings.iter().map(|finding| finding.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), report.findings.len(), "each id once");
    for finding in &report.findings {
        assert!(!finding.found.is_empty() && !finding.why.is_empty(), "{finding:?}");
        assert!(!finding.found.contains('\n'), "{finding:?}");
    }
    let json: Value = serde_json::from_str(&serde_json::to_string(report).expect("JSON")).expect("JSON");
    assert_eq!(json["version"], 1);
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(report.findings.len()));
    assert_eq!(json["modes"].as_array().map(Vec::len), Some(report.modes.len()));
    let text = report.text();
    assert!(
        text.ends_with(&format!("(exit status {})", report.exit_status)),
        "{text}"
    );
    for finding in &report.findings {
        assert!(text.contains(finding.title), "{text}");
    }
}

#[test]
fn all_is_well() {
    let report = Fixture::server().report();
    let rest: Vec<_> = states(&report)
        .into_iter()
        .filter(|(_, state)| *state != FindingState::Ok)
        .collect();
    assert_eq!(
        rest,
        [
            ("peers", FindingState::Unneeded),
            ("peermem", FindingState::Unneeded),
            ("rxe", FindingState::Limited),
            ("gpudirect_storage", FindingState::Unneeded)
        ],
        "one GPU, dma-buf serves, and SoftRoCE is not set up"
    );
    assert_eq!((report.exit_status, report.modes[0].gpu), (0, "nvidia"));
    assert!(report.modes[0].chosen && report.modes[0].works);
    let nics = of(&report, "nics");
    for word in [
        "mlx5_0",
        "28.43.1014",
        "active",
        "400 Gb/s",
        "MTU 9000",
        "GID 3 (10.9.0.1)",
    ] {
        assert!(nics.found.contains(word), "{word}: {}", nics.found);
    }
    assert_eq!(nics.details[0]["ports"][0]["gids"][3]["value"], "::ffff:10.9.0.1");
    assert_eq!(of(&report, "placement").details[0]["meet"], "in a PCIe switch");
    assert_eq!(of(&report, "driver").found, "570.86.15, open kernel modules");
    assert!(of(&report, "bar1").found.contains("256 GiB for 141 GiB"));
}

#[test]
fn peermem_is_missing() {
    let mut fixture = Fixture::server();
    fixture.gpu().dma_buf = Some(false);
    assert_eq!(
        changed(&fixture),
        [("dma_buf", FindingState::Missing), ("peermem", FindingState::Missing)]
    );
    let report = fixture.report();
    assert!(
        of(&report, "peermem")
            .mend
            .as_deref()
            .unwrap_or("")
            .contains("DOCA-OFED")
    );
    let costs = |report: &Report| {
        let mode = report
            .modes
            .iter()
            .find(|mode| mode.transport == "mlx5")
            .expect("listed");
        mode.costs.join("\n")
    };
    assert!(costs(&report).contains("pinned host memory"));
    // Built, and then loaded.
    fixture.tree.file(
        &format!("lib/modules/{RELEASE}/modules.dep"),
        "updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko\n",
    );
    assert_eq!(
        of(&fixture.report(), "peermem").mend.as_deref(),
        Some("modprobe nvidia-peermem")
    );
    fixture.tree.file("sys/module/nvidia_peermem/refcnt", "0\n");
    let report = fixture.report();
    assert_eq!(of(&report, "peermem").state, FindingState::Ok);
    assert!(costs(&report).contains("registered by nvidia-peermem"));
}

#[test]
fn a_proprietary_driver_has_no_dma_buf() {
    let mut fixture = Fixture::server();
    fixture.tree.file("proc/driver/nvidia/version", PROPRIETARY);
    fixture.gpu().dma_buf = Some(false);
    let report = fixture.report();
    assert_eq!(of(&report, "driver").state, FindingState::Limited);
    assert_eq!(of(&report, "driver").found, "535.104.05, proprietary kernel modules");
    assert!(of(&report, "dma_buf").found.contains("proprietary"));
    // In a container there may be no /proc/driver: the module's taint tells.
    fixture
        .tree
        .remove("proc/driver")
        .file("sys/module/nvidia/taint", "POE\n");
    assert_eq!(
        of(&fixture.report(), "driver").found,
        "570.86.15, proprietary kernel modules"
    );
    fixture.tree.file("sys/module/nvidia/taint", "OE\n");
    assert_eq!(of(&fixture.report(), "driver").state, FindingState::Ok);
    fixture.tree.remove("sys/module/nvidia/taint");
    assert_eq!(of(&fixture.report(), "driver").state, FindingState::Unknown);
}

#[test]
fn io_uring_is_a_right_that_processes_may_lack() {
    let mut fixture = Fixture::server();
    fixture.probed.io_uring = Ok(());
    assert_eq!(of(&fixture.report(), "io_uring").state, FindingState::Ok);
    fixture.probed.io_uring = Err("Operation not permitted (os error 1)".into());
    let report = fixture.report();
    let finding = of(&report, "io_uring");
    assert_eq!(finding.state, FindingState::Limited);
    assert!(finding.found.contains("not permitted") && finding.found.contains("threads"));
    fixture.probed.cufile = Some("/usr/lib/libcufile.so.0".into());
    assert_eq!(of(&fixture.report(), "gpudirect_storage").state, FindingState::Limited);
    fixture.probed.nvidia_fs = true;
    assert_eq!(of(&fixture.report(), "gpudirect_storage").state, FindingState::Ok);
}

#[test]
fn locked_memory_is_limited() {
    let fixture = Fixture::server();
    fixture.tree.file("proc/self/limits", limits("65536"));
    assert_eq!(changed(&fixture), [], "CAP_IPC_LOCK is above the limit");
    // All but CAP_IPC_LOCK.
    fixture.tree.file("proc/self/status", "CapEff:\t000001ffffffbfff\n");
    assert_eq!(
        changed(&fixture),
        [
            ("capabilities", FindingState::Limited),
            ("memlock", FindingState::Limited)
        ]
    );
    let report = fixture.report();
    assert!(of(&report, "memlock").found.starts_with("64 KiB, too little"));
    assert!(
        of(&report, "memlock")
            .mend
            .as_deref()
            .unwrap_or("")
            .contains("ulimit -l unlimited")
    );
    let rights = of(&report, "capabilities");
    assert_eq!(rights.found, "lacks IPC_LOCK");
    let mend = rights.mend.as_deref().unwrap_or("");
    assert!(mend.contains("setcap cap_ipc_lock+ep"), "{mend}");
    // A user's own.
    let laptop = Fixture::laptop().report();
    let mend = of(&laptop, "capabilities").mend.as_deref().unwrap_or("");
    assert!(
        mend.contains("cap_sys_admin,cap_ipc_lock,cap_sys_rawio,cap_net_admin+ep"),
        "{mend}"
    );
}

#[test]
fn the_iommu_translates() {
    let fixture = Fixture::server();
    fixture.tree.file("sys/class/iommu/dmar0/name", "");
    assert_eq!(changed(&fixture), [("iommu", FindingState::Unknown)]);
    fixture.tree.file("proc/cmdline", "quiet iommu=pt\n");
    assert_eq!(changed(&fixture), []);
    fixture.tree.file("proc/cmdline", "quiet intel_iommu=on\n");
    for way in [GPU_WAY, NIC_WAY] {
        fixture
            .tree
            .file(&format!("sys/devices/{way}/iommu_group/type"), "identity\n");
    }
    assert_eq!(changed(&fixture), []);
    fixture
        .tree
        .file(&format!("sys/devices/{NIC_WAY}/iommu_group/type"), "DMA-FQ\n");
    assert_eq!(changed(&fixture), [("iommu", FindingState::Limited)]);
    let report = fixture.report();
    assert!(of(&report, "iommu").mend.as_deref().unwrap_or("").contains("iommu=pt"));
    let mlx5 = report
        .modes
        .iter()
        .find(|mode| mode.transport == "mlx5")
        .expect("listed");
    assert!(
        mlx5.costs.iter().any(|cost| cost.contains("the IOMMU translates")),
        "{mlx5:?}"
    );
}

#[test]
fn bridges_redirect() {
    let fixture = Fixture::server();
    let way = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/config";
    fixture.tree.file(way, config(0x1d));
    let report = fixture.report();
    assert_eq!(changed(&fixture), [("acs", FindingState::Limited)]);
    assert_eq!(of(&report, "acs").found, "redirecting: 0000:16:00.0");
    // What is read without root.
    fixture.tree.file(way, &config(0x1d)[..64]);
    assert_eq!(changed(&fixture), [("acs", FindingState::Unknown)]);
    assert!(of(&fixture.report(), "acs").found.contains("4 bridges"));
}

#[test]
fn a_container_without_rights() {
    let mut fixture = Fixture::server();
    let tree = &fixture.tree;
    tree.file(".dockerenv", "")
        .file("proc/self/status", "CapEff:\t00000000a80425fb\n")
        .file("proc/driver/nvidia/params", "RegistryDwords: \"\"\n")
        .file("proc/self/limits", limits("65536"))
        .remove("dev/infiniband")
        .remove("dev/nvidia0");
    fixture.gpu().memory_bytes = 141 << 30;
    let expected = [
        ("peer_mapping", FindingState::Missing),
        ("capabilities", FindingState::Limited),
        ("device_nodes", FindingState::Missing),
        ("memlock", FindingState::Limited),
    ];
    assert_eq!(changed(&fixture), expected);
    let report = fixture.report();
    let rights = of(&report, "capabilities");
    assert!(
        rights
            .found
            .starts_with("in a container (docker), lacks SYS_ADMIN, IPC_LOCK"),
        "{}",
        rights.found
    );
    assert!(
        rights
            .mend
            .as_deref()
            .unwrap_or("")
            .starts_with("docker run --cap-add SYS_ADMIN")
    );
    assert!(of(&report, "device_nodes").found.contains("/dev/infiniband/uverbs0"));
    // Other signs of a container.
    fixture
        .tree
        .remove(".dockerenv")
        .file("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n");
    assert!(of(&fixture.report(), "capabilities").found.contains("kubepods"));
}

#[test]
fn nodes_of_the_gpus_that_are_there() {
    let fixture = Fixture::server();
    let lacking = || {
        let report = fixture.report();
        let nodes = of(&report, "device_nodes");
        (nodes.state, nodes.found.clone())
    };
    fixture.tree.remove("dev/nvidia-uvm");
    assert_eq!(lacking(), (FindingState::Missing, "no /dev/nvidia-uvm".to_owned()));
    fixture.tree.file("dev/nvidia-uvm", "");
    // As the driver counts.
    let information = "proc/driver/nvidia/gpus/0000:18:00.0/information";
    fixture
        .tree
        .file(information, "Model: \t NVIDIA H200\nDevice Minor: \t 3\n");
    assert_eq!(lacking(), (FindingState::Missing, "no /dev/nvidia3".to_owned()));
    fixture.tree.remove("dev/nvidia0").file("dev/nvidia3", "");
    assert_eq!(lacking().0, FindingState::Ok, "the others' are not this GPU's");
    // Something that nobody can open to write.
    fixture.tree.remove("dev/nvidia-uvm").file("dev/nvidia-uvm/x", "");
    let (state, found) = lacking();
    assert_eq!(state, FindingState::Limited);
    assert_eq!(found, "this user may not open /dev/nvidia-uvm");
    let report = fixture.report();
    let mend = of(&report, "device_nodes").mend.as_deref().unwrap_or("");
    assert!(
        mend.contains("NVreg_DeviceFileMode") && !mend.contains("uverbs"),
        "{mend}"
    );
}

#[test]
fn a_new_kernel_may_refuse_the_doorbell() {
    let fixture = Fixture::server();
    for (release, state) in [
        ("6.12.9-amd64", FindingState::Limited),
        ("6.9.3", FindingState::Ok),
        ("", FindingState::Unknown),
    ] {
        fixture.tree.file("proc/sys/kernel/osrelease", format!("{release}\n"));
        assert_eq!(of(&fixture.report(), "kernel").state, state, "{release}");
    }
    fixture.tree.file("proc/sys/kernel/osrelease", "6.12.9-amd64\n");
    let report = fixture.report();
    let mlx5 = report
        .modes
        .iter()
        .find(|mode| mode.transport == "mlx5")
        .expect("listed");
    assert!(mlx5.costs.iter().any(|cost| cost.contains("proxy")), "{mlx5:?}");
    // Too old for dma-buf.
    fixture.tree.file("proc/sys/kernel/osrelease", "5.10.0-30-amd64\n");
    assert!(of(&fixture.report(), "dma_buf").found.contains("older than 5.12"));
}

#[test]
fn a_nic_with_troubles() {
    let fixture = Fixture::server();
    let port = format!("sys/devices/{NIC_WAY}/infiniband/mlx5_0/ports/1");
    let mend = |fixture: &Fixture| of(&fixture.report(), "nics").mend.clone().unwrap_or_default();
    fixture.tree.file("sys/class/net/eth0/mtu", "1500\n");
    assert_eq!(changed(&fixture), [("nics", FindingState::Limited)]);
    assert!(mend(&fixture).starts_with("ip link set eth0 mtu 9000"));
    fixture.tree.remove(&format!("{port}/gids"));
    assert!(of(&fixture.report(), "nics").found.contains("no RoCE v2 GID"));
    fixture.tree.file(&format!("{port}/state"), "1: DOWN\n");
    assert!(mend(&fixture).starts_with("ip link set eth0 up"), "{}", mend(&fixture));
    fixture.tree.remove("sys/class/infiniband_verbs");
    assert_eq!(mend(&fixture), "modprobe ib_uverbs");
    let report = fixture.report();
    let mlx5 = report
        .modes
        .iter()
        .find(|mode| mode.transport == "mlx5")
        .expect("listed");
    assert!(!mlx5.works);
    // No RDMA device, though the card is there.
    fixture.tree.remove("sys/class/infiniband");
    assert_eq!(mend(&fixture).split(';').next(), Some("modprobe mlx5_ib"));
}

#[test]
fn a_pair_that_is_far_or_slow() {
    let fixture = Fixture::server();
    fixture
        .tree
        .pci_link(&format!("sys/devices/{NIC_WAY}"), ("16.0 GT/s", 8), ("32.0 GT/s", 16));
    assert_eq!(changed(&fixture), [("placement", FindingState::Limited)]);
    let found = of(&fixture.report(), "placement").found.clone();
    assert!(
        found.contains("mlx5_0 runs at 16 GT/s x8, less than it could"),
        "{found}"
    );

    let fixture = Fixture::server();
    fixture
        .tree
        .remove("sys/class/infiniband")
        .remove("sys/class/net/eth0")
        .remove(&format!("sys/devices/{NIC_WAY}"));
    let way = "pci0000:80/0000:80:01.0/0000:81:00.0";
    fixture
        .tree
        .pci("pci0000:80/0000:80:01.0", ["0x1000", "0xc030", "0x060400"], None, 1);
    fixture
        .tree
        .file("sys/devices/pci0000:80/0000:80:01.0/config", config(0));
    let nic = fixture
        .tree
        .pci(way, ["0x15b3", "0x1021", "0x020000"], Some("mlx5_core"), 1);
    fixture.tree.rdma(&nic, "mlx5_0", 0, "eth0");
    assert_eq!(changed(&fixture), [("placement", FindingState::Limited)]);
    assert!(of(&fixture.report(), "placement").found.contains("between NUMA nodes"));
}

#[test]
fn a_small_bar() {
    let fixture = Fixture::server();
    let resource = format!("sys/devices/{GPU_WAY}/resource");
    fixture
        .tree
        .file(&resource, "0x0 0xffffff 0x1\n0x10000000 0x1fffffff 0x1\n");
    assert_eq!(changed(&fixture), [("bar1", FindingState::Limited)]);
    fixture.tree.remove(&resource);
    assert_eq!(changed(&fixture), [("bar1", FindingState::Unknown)]);
}

#[test]
fn a_gpu_without_its_driver_or_compiler() {
    let mut fixture = Fixture::server();
    fixture.probed.nvrtc = Err("libnvrtc.so.13 cannot be loaded".into());
    let report = fixture.report();
    assert_eq!(of(&report, "nvrtc").state, FindingState::Missing);
    assert_eq!(report.exit_status, 3);
    assert!(
        report
            .text()
            .contains("Vm::builder() chooses, and it cannot work: --gpu cuda:0")
    );

    fixture.probed.gpus = Err("libcuda.so.1 cannot be loaded".into());
    fixture.probed.cuda = None;
    fixture.tree.remove("proc/driver").remove("sys/module/nvidia");
    let report = fixture.report();
    for id in ["gpu", "driver", "cuda"] {
        assert_eq!(of(&report, id).state, FindingState::Missing, "{id}");
        assert!(of(&report, id).mend.is_some(), "{id}");
    }
    assert_eq!((report.exit_status, report.modes[0].gpu), (3, "simulated"));
    // Too old.
    let mut fixture = Fixture::server();
    fixture.gpu().compute_capability = (6, 1);
    let report = fixture.report();
    assert_eq!(
        (of(&report, "gpu").state, report.exit_status),
        (FindingState::Limited, 3)
    );
}

#[test]
fn only_softroce() {
    let fixture = Fixture::laptop();
    assert_eq!(of(&fixture.report(), "rxe").state, FindingState::Limited);
    assert!(
        of(&fixture.report(), "rxe")
            .mend
            .as_deref()
            .unwrap_or("")
            .starts_with("modprobe rdma_rxe")
    );
    fixture.tree.file("sys/module/rdma_rxe/refcnt", "0\n");
    assert!(
        of(&fixture.report(), "rxe")
            .mend
            .as_deref()
            .unwrap_or("")
            .starts_with("rdma link add")
    );
    fixture.tree.rxe("rxe0", 0, "dummy0");
    let report = fixture.report();
    assert_eq!(of(&report, "rxe").state, FindingState::Ok);
    assert_eq!(of(&report, "nics").state, FindingState::Missing, "it is no NIC");
    assert_eq!(
        of(&report, "verbs_libraries").state,
        FindingState::Missing,
        "memory nodes need them"
    );
    assert_eq!(report.exit_status, 3);
    let mode = report
        .modes
        .iter()
        .find(|mode| mode.transport == "rxe")
        .expect("listed");
    assert!(mode.works && !mode.chosen);
    assert_eq!(mode.options, "--gpu sim --transport rxe --rdma-device rxe0");
    // Its interface is down.
    fixture
        .tree
        .file("sys/devices/virtual/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    assert!(
        of(&fixture.report(), "rxe")
            .mend
            .as_deref()
            .unwrap_or("")
            .starts_with("ip link set dummy0 up")
    );
    // A kernel that needs a module which is not there, and one that has no SoftRoCE.
    let fixture = Fixture::laptop();
    let list = format!("lib/modules/{RELEASE}/modules.dep");
    fixture
        .tree
        .file(&list, "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz:\n");
    assert!(of(&fixture.report(), "rxe").found.contains("crc32_generic"));
    fixture.tree.file(&list, "kernel/drivers/net/rdma_rxe_not.ko:\n");
    assert_eq!(of(&fixture.report(), "rxe").state, FindingState::Missing);
    fixture.tree.remove("lib/modules");
    assert_eq!(
        of(&fixture.report(), "rxe").state,
        FindingState::Unknown,
        "as in a container"
    );
}

#[test]
fn a_node_that_this_user_may_not_open() {
    let fixture = Fixture::server();
    // Tests run as root, too: a folder is opened for writing by nobody.
    fixture
        .tree
        .remove("dev/infiniband/uverbs0")
        .file("dev/infiniband/uverbs0/x", "");
    assert_eq!(changed(&fixture), [("device_nodes", FindingState::Limited)]);
    let report = fixture.report();
    assert!(
        of(&report, "device_nodes")
            .found
            .contains("may not open /dev/infiniband/uverbs0")
    );
    assert_eq!(of(&report, "nics").details[0]["ready"], false);
    let mlx5 = report
        .modes
        .iter()
        .find(|mode| mode.transport == "mlx5")
        .expect("listed");
    assert!(
        mlx5.missing.iter().any(|missing| missing.contains("may open")),
        "{mlx5:?}"
    );
}

#[test]
fn the_gpu_that_is_opened_has_the_near_nic() {
    let mut fixture = Fixture::server();
    let far = "pci0000:80/0000:80:01.0/0000:81:00.0";
    fixture
        .tree
        .pci(far, ["0x10de", "0x2335", "0x030200"], Some("nvidia"), 1);
    let nic = fixture.tree.pci(
        "pci0000:80/0000:80:02.0/0000:82:00.0",
        ["0x15b3", "0x1021", "0x020000"],
        Some("mlx5_core"),
        1,
    );
    fixture.tree.rdma(&nic, "mlx5_1", 1, "eth1");
    let device = |fixture: &Fixture| {
        let report = fixture.report();
        let mode = report
            .modes
            .iter()
            .find(|mode| mode.transport == "mlx5")
            .expect("listed");
        mode.options.rsplit(' ').next().expect("a word").to_owned()
    };
    assert_eq!(device(&fixture), "mlx5_0");
    // CUDA counts in its own order.
    fixture.gpu().pci = "0000:81:00.0".parse().ok();
    assert_eq!(device(&fixture), "mlx5_1");
}

#[test]
fn nothing_at_all() {
    let report = Fixture::nothing().report();
    assert_eq!(report.exit_status, 4);
    assert!(report.modes.iter().all(|mode| !mode.works));
    assert!(
        states(&report).iter().all(|(_, state)| *state != FindingState::Ok),
        "{:?}",
        states(&report)
    );
    let report = Fixture::laptop().report();
    assert_eq!((report.exit_status, report.modes[0].transport), (3, "soft"));
}
