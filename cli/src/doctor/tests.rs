mod garbage;
pub mod machines;
mod peers;

use serde_json::Value;

use super::finding::{FindingState, Found};
use super::modes::Mode;
use super::report::Report;
use machines::{Fixture, GPU, GPU_WAY, NIC, NIC_WAY, PROPRIETARY, limits};

impl Fixture {
    /// What the doctor reports, after a look at its shape.
    fn report(&self) -> Report {
        let report = Report::of(&self.view());
        check_shape(&report);
        report
    }

    /// What one check finds.
    fn find(&self, id: &str) -> Found {
        let mut findings = self.report().findings.into_iter();
        let finding = findings.find(|finding| finding.id == id);
        finding.unwrap_or_else(|| panic!("no finding {id}")).result
    }

    /// What fixes it.
    fn fix(&self, id: &str) -> String {
        self.find(id).fix.unwrap_or_default()
    }

    /// The mode of that transport that is listed first.
    fn mode(&self, transport: &str) -> Mode {
        let mut modes = self.report().modes.into_iter();
        modes.find(|mode| mode.transport == transport).expect("listed")
    }

    /// What differs from the server that is well.
    fn changed(&self) -> Vec<(&'static str, FindingState)> {
        let pairs = Fixture::server()
            .report()
            .findings
            .into_iter()
            .zip(self.report().findings);
        pairs
            .filter(|(well, now)| well.result.state != now.result.state)
            .map(|(_, now)| (now.id, now.result.state))
            .collect()
    }
}

fn states(report: &Report) -> Vec<(&str, FindingState)> {
    let findings = report.findings.iter();
    findings.map(|finding| (finding.id, finding.result.state)).collect()
}

/// What holds for every report.
fn check_shape(report: &Report) {
    let mut ids: Vec<_> = report.findings.iter().map(|finding| finding.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), report.findings.len(), "each id once");
    let json: Value = serde_json::from_str(&serde_json::to_string(report).expect("JSON")).expect("JSON");
    assert_eq!(json["version"], 1);
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(report.findings.len()));
    assert_eq!(json["modes"].as_array().map(Vec::len), Some(report.modes.len()));
    let text = report.text();
    assert!(
        text.ends_with(&format!("(exit status {})", report.exit_status)),
        "{text}"
    );
    for (nth, finding) in report.findings.iter().enumerate() {
        let found = &finding.result.found;
        assert!(!found.is_empty() && !found.contains('\n'), "{finding:?}");
        assert!(!finding.why.is_empty() && text.contains(finding.title), "{finding:?}");
        assert_eq!(json["findings"][nth]["found"], found.as_str());
    }
}

#[test]
fn all_is_well() {
    let server = Fixture::server();
    let report = server.report();
    let rest: Vec<_> = states(&report)
        .into_iter()
        .filter(|(_, state)| *state != FindingState::Ok)
        .collect();
    assert_eq!(
        rest,
        [
            ("peers", FindingState::Unneeded),
            ("peermem", FindingState::Unneeded),
            ("rxe", FindingState::Missing),
            ("gpudirect_storage", FindingState::Unneeded)
        ],
        "one GPU, dma-buf serves, and SoftRoCE is not set up"
    );
    assert_eq!((report.exit_status, report.modes[0].gpu), (0, "nvidia"));
    assert!(report.modes[0].chosen && report.modes[0].works);
    let nics = server.find("nics");
    for word in [
        "mlx5_0",
        "28.43.1014",
        "active",
        "400 Gb/s",
        "MTU 9000 (path 4096)",
        "GID 3",
    ] {
        assert!(nics.found.contains(word), "{word}: {}", nics.found);
    }
    assert_eq!(nics.details[0]["ports"][0]["gids"][3]["value"], "::ffff:10.9.0.1");
    assert_eq!(server.find("driver").found, "570.86.15, open kernel modules");
    assert_eq!(server.find("bar1").found, "256 GiB for 141 GiB of memory");
}

#[test]
fn peermem_is_missing() {
    let mut fixture = Fixture::server();
    fixture.gpu().dma_buf = false;
    assert_eq!(
        fixture.changed(),
        [("dma_buf", FindingState::Missing), ("peermem", FindingState::Missing)]
    );
    assert!(fixture.fix("peermem").contains("DOCA-OFED"));
    let costs = |fixture: &Fixture| fixture.mode("mlx5").costs.join("\n");
    assert!(costs(&fixture).contains("pinned host memory"));
    fixture.tree.file("sys/module/nvidia_peermem/refcnt", "0\n");
    assert_eq!(fixture.find("peermem").state, FindingState::Ok);
    assert!(costs(&fixture).contains("registered by nvidia-peermem"));
}

#[test]
fn a_proprietary_driver_has_no_dma_buf() {
    let mut fixture = Fixture::server();
    fixture.tree.file("proc/driver/nvidia/version", PROPRIETARY);
    fixture.gpu().dma_buf = false;
    let driver = fixture.find("driver");
    assert_eq!(driver.state, FindingState::Limited);
    assert_eq!(driver.found, "535.104.05, proprietary kernel modules");
    assert!(fixture.fix("dma_buf").contains("open kernel modules"));
    // In a container there may be no /proc/driver: the module's taint tells.
    fixture.tree.remove("proc/driver");
    for (taint, state, found) in [
        ("POE\n", FindingState::Limited, "570.86.15, proprietary kernel modules"),
        ("OE\n", FindingState::Ok, "570.86.15, open kernel modules"),
    ] {
        fixture.tree.file("sys/module/nvidia/taint", taint);
        let driver = fixture.find("driver");
        assert_eq!((driver.state, driver.found.as_str()), (state, found));
    }
    fixture.tree.remove("sys/module/nvidia/taint");
    assert_eq!(fixture.find("driver").state, FindingState::Unknown);
}

#[test]
fn io_uring_is_a_right_that_processes_may_lack() {
    let mut fixture = Fixture::server();
    assert_eq!(fixture.find("io_uring").state, FindingState::Ok);
    fixture.probed.io_uring = Err("Operation not permitted (os error 1)".into());
    let finding = fixture.find("io_uring");
    assert_eq!(finding.state, FindingState::Limited);
    assert!(finding.found.contains("not permitted") && finding.found.contains("threads"));
    fixture.probed.cufile = Some("/usr/lib/libcufile.so.0".into());
    assert_eq!(fixture.find("gpudirect_storage").state, FindingState::Limited);
    fixture.probed.nvidia_fs = true;
    assert_eq!(fixture.find("gpudirect_storage").state, FindingState::Ok);
}

#[test]
fn locked_memory_is_limited() {
    let fixture = Fixture::server();
    fixture.tree.file("proc/self/limits", limits("65536"));
    assert_eq!(fixture.changed(), [("memlock", FindingState::Limited)]);
    assert!(fixture.find("memlock").found.starts_with("64 KiB, too little"));
    assert!(fixture.fix("memlock").contains("ulimit -l unlimited"));
    fixture.tree.file("proc/self/limits", "");
    assert_eq!(fixture.find("memlock").state, FindingState::Unknown);
    fixture.tree.file("proc/self/status", "CapEff:\t0000000000004000\n");
    assert!(fixture.find("memlock").found.contains("CAP_IPC_LOCK"));
}

#[test]
fn the_iommu_translates() {
    let fixture = Fixture::server();
    fixture.tree.file("sys/class/iommu/dmar0/name", "");
    assert_eq!(fixture.changed(), [("iommu", FindingState::Unknown)]);
    let kind = |way: &str, kind: &str| {
        fixture.tree.file(&format!("sys/devices/{way}/iommu_group/type"), kind);
    };
    kind(GPU_WAY, "identity\n");
    assert_eq!(fixture.changed(), [("iommu", FindingState::Unknown)]);
    kind(NIC_WAY, "identity\n");
    assert_eq!(fixture.changed(), []);
    kind(NIC_WAY, "DMA-FQ\n");
    assert_eq!(fixture.changed(), [("iommu", FindingState::Limited)]);
    assert!(fixture.fix("iommu").contains("iommu=pt"));
}

#[test]
fn nodes_of_the_gpus_that_are_there() {
    let fixture = Fixture::server();
    let lacking = || {
        let nodes = fixture.find("device_nodes");
        (nodes.state, nodes.found)
    };
    fixture.tree.remove("dev/nvidia-uvm");
    assert_eq!(lacking(), (FindingState::Missing, "no /dev/nvidia-uvm".to_owned()));
    assert!(
        fixture
            .fix("device_nodes")
            .contains("docker run --gpus all --device /dev/infiniband")
    );
    fixture.tree.file("dev/nvidia-uvm", "");
    // As the driver counts.
    let information = "proc/driver/nvidia/gpus/0000:18:00.0/information";
    fixture
        .tree
        .file(information, "Model: \t NVIDIA H200\nDevice Minor: \t 3\n");
    assert_eq!(lacking(), (FindingState::Missing, "no /dev/nvidia3".to_owned()));
    fixture.tree.remove("dev/nvidia0").file("dev/nvidia3", "");
    assert_eq!(lacking().0, FindingState::Ok, "the others' are not this GPU's");
    // Tests run as root, too: a folder cannot be opened for writing.
    fixture.tree.remove("dev/nvidia-uvm").file("dev/nvidia-uvm/x", "");
    let closed = "this user may not open /dev/nvidia-uvm".to_owned();
    assert_eq!(lacking(), (FindingState::Limited, closed));
    let fix = fixture.fix("device_nodes");
    assert!(fix.contains("NVreg_DeviceFileMode") && !fix.contains("uverbs"), "{fix}");
    fixture
        .tree
        .remove("dev/infiniband/uverbs0")
        .file("dev/infiniband/uverbs0/x", "");
    assert!(lacking().1.ends_with("open /dev/nvidia-uvm, /dev/infiniband/uverbs0"));
    let fix = fixture.fix("device_nodes");
    assert!(fix.contains("NVreg_DeviceFileMode") && fix.contains("uverbs"), "{fix}");
    assert_eq!(fixture.find("nics").details[0]["ready"], false);
    let missing = fixture.mode("mlx5").missing;
    assert!(
        missing.iter().any(|missing| missing.contains("may open")),
        "{missing:?}"
    );
}

#[test]
fn a_nic_with_troubles() {
    let fixture = Fixture::server();
    let port = format!("sys/devices/{NIC_WAY}/infiniband/mlx5_0/ports/1");
    fixture.tree.file("sys/class/net/eth0/mtu", "1500\n");
    assert_eq!(fixture.changed(), [("nics", FindingState::Limited)]);
    assert!(fixture.fix("nics").starts_with("ip link set eth0 mtu 9000"));
    fixture.tree.remove(&format!("{port}/gids"));
    assert!(fixture.find("nics").found.contains("no RoCE v2 GID"));
    fixture.tree.file(&format!("{port}/state"), "1: DOWN\n");
    assert!(fixture.fix("nics").starts_with("ip link set eth0 up"));
    fixture.tree.remove("sys/class/infiniband_verbs");
    assert_eq!(fixture.fix("nics"), "modprobe ib_uverbs");
    assert!(!fixture.mode("mlx5").works);
    // No RDMA device, though the card is there.
    fixture.tree.remove("sys/class/infiniband");
    assert!(fixture.fix("nics").starts_with("modprobe mlx5_ib;"));
}

#[test]
fn a_small_bar() {
    let fixture = Fixture::server();
    let resource = format!("sys/devices/{GPU_WAY}/resource");
    fixture
        .tree
        .file(&resource, "0x0 0xffffff 0x1\n0x10000000 0x1fffffff 0x1\n");
    assert_eq!(fixture.changed(), [("bar1", FindingState::Limited)]);
    fixture.tree.remove(&resource);
    assert_eq!(fixture.changed(), [("bar1", FindingState::Unknown)]);
}

#[test]
fn a_gpu_without_its_driver_or_compiler() {
    let mut fixture = Fixture::server();
    // A driver of CUDA 12.4 loads nothing that NVRTC 13 has compiled.
    (fixture.probed.cuda, fixture.probed.nvrtc) = (Some((12, 4)), Ok((13, 0)));
    assert_eq!(fixture.find("nvrtc").state, FindingState::Limited);
    assert!(fixture.fix("nvrtc").ends_with("an NVRTC of CUDA 12"));
    fixture.probed.nvrtc = Err("libnvrtc.so.13 cannot be loaded".into());
    assert_eq!(fixture.find("nvrtc").state, FindingState::Missing);
    let report = fixture.report();
    assert_eq!(report.exit_status, 3);
    let words = "Vm::builder() chooses, and it cannot work: --gpu cuda:0";
    assert!(report.text().contains(words), "{}", report.text());

    fixture.probed.gpus = Err("libcuda.so.1 cannot be loaded".into());
    fixture.probed.cuda = None;
    fixture.tree.remove("proc/driver").remove("sys/module/nvidia");
    for id in ["gpu", "driver", "cuda"] {
        let finding = fixture.find(id);
        assert!(finding.state == FindingState::Missing && finding.fix.is_some(), "{id}");
    }
    let report = fixture.report();
    assert_eq!((report.exit_status, report.modes[0].gpu), (3, "simulated"));
    // Too old, and none that this process may see.
    let mut fixture = Fixture::server();
    fixture.gpu().compute_capability = (6, 1);
    assert_eq!(fixture.find("gpu").state, FindingState::Limited);
    assert_eq!(fixture.report().exit_status, 3);
    fixture.probed.gpus = Ok(Vec::new());
    assert!(fixture.fix("gpu").contains("CUDA_VISIBLE_DEVICES"));
}

#[test]
fn only_softroce() {
    let fixture = Fixture::laptop();
    assert_eq!(fixture.find("rxe").state, FindingState::Missing);
    assert!(fixture.fix("rxe").starts_with("modprobe rdma_rxe && rdma link add"));
    fixture.tree.file("sys/module/rdma_rxe/refcnt", "0\n");
    assert!(fixture.fix("rxe").starts_with("rdma link add"));
    fixture.tree.rxe("rxe0", 0, "dummy0");
    let states = ["rxe", "nics", "verbs_libraries"].map(|id| fixture.find(id).state);
    // It is no NIC, and memory nodes need the libraries.
    assert_eq!(states, [FindingState::Ok, FindingState::Missing, FindingState::Missing]);
    assert_eq!(fixture.report().exit_status, 3);
    let mode = fixture.mode("rxe");
    assert!(mode.works && !mode.chosen);
    assert_eq!(mode.options, "--gpu sim --transport rxe --rdma-device rxe0");
    let port = "sys/devices/virtual/infiniband/rxe0/ports/1/state";
    fixture.tree.file(port, "1: DOWN\n");
    assert!(fixture.fix("rxe").starts_with("ip link set dummy0 up"));
    assert!(!fixture.mode("rxe").works);
}

#[test]
fn the_gpu_that_is_opened_has_the_near_nic() {
    let mut fixture = Fixture::server();
    let far = "pci0000:80/0000:80:01.0/0000:81:00.0";
    fixture.tree.pci(far, GPU, Some("nvidia"), 1);
    let nic = fixture
        .tree
        .pci("pci0000:80/0000:80:02.0/0000:82:00.0", NIC, Some("mlx5_core"), 1);
    fixture.tree.rdma(&nic, "mlx5_1", 1, "eth1");
    assert!(fixture.mode("mlx5").options.ends_with(" mlx5_0"));
    // CUDA counts in its own order.
    fixture.gpu().pci = "0000:81:00.0".parse().ok();
    assert!(fixture.mode("mlx5").options.ends_with(" mlx5_1"));
}

#[test]
fn nothing_at_all() {
    let report = Fixture::nothing().report();
    assert_eq!(report.exit_status, 4);
    assert!(report.modes.iter().all(|mode| !mode.works));
    let states = states(&report);
    assert!(states.iter().all(|(_, state)| *state != FindingState::Ok), "{states:?}");
    let report = Fixture::laptop().report();
    assert_eq!((report.exit_status, report.modes[0].transport), (3, "soft"));
}
