//! Which GPUs are peers.

use gpuvm_gpu::cuda::PeerInfo;

use super::machines::{Fixture, GPU, GPU_WAY, NIC_WAY};
use crate::doctor::finding::{FindingState, Found};
use crate::doctor::view::GpuFacts;

fn way(from: u32, to: u32, native_atomics: Option<bool>) -> PeerInfo {
    PeerInfo {
        from,
        to,
        access: native_atomics.is_some(),
        native_atomics,
        performance_rank: native_atomics.map(|_| 0),
    }
}

/// The server with as many GPUs, and these ways between them.
fn server(gpus: u32, ways: Vec<PeerInfo>) -> Fixture {
    let mut fixture = Fixture::server();
    let first = fixture.gpu().clone();
    let all = (0..gpus).map(|ordinal| GpuFacts {
        ordinal,
        ..first.clone()
    });
    fixture.probed.gpus = Ok(all.collect());
    fixture.probed.peers = Ok(ways);
    fixture
}

fn found(fixture: &Fixture) -> Found {
    fixture.find("peers")
}

#[test]
fn each_pair_is_told_with_its_link() {
    let (nvlink, pcie) = (Some(true), Some(false));
    let mut ways = vec![way(0, 1, nvlink), way(0, 2, pcie), way(1, 0, nvlink)];
    ways.extend([way(1, 2, pcie), way(2, 0, pcie), way(2, 1, pcie)]);
    let finding = found(&server(3, ways));
    assert_eq!(finding.state, FindingState::Ok);
    let text = "GPUs 0 and 1 are peers over NVLink; GPUs 0 and 2 are peers over PCIe; GPUs 1 and 2 are peers over PCIe";
    assert_eq!(finding.found, text);
    assert_eq!(finding.details.as_array().map(Vec::len), Some(6));
    assert_eq!(finding.details[1]["link"], "PCIe");
}

#[test]
fn only_what_is_seen_is_a_reason() {
    let apart = server(2, vec![way(0, 1, None), way(1, 0, None)]);
    let finding = found(&apart);
    assert_eq!(finding.state, FindingState::Limited);
    assert_eq!(finding.found, "GPUs 0 and 1 are not peers; CUDA gives no reason");
    assert!(finding.fix.is_some() && finding.details[0]["link"].is_null());

    apart
        .tree
        .file("sys/class/iommu/dmar0/name", "")
        .file(&format!("sys/devices/{GPU_WAY}/iommu_group/type"), "DMA-FQ\n")
        .file(&format!("sys/devices/{NIC_WAY}/iommu_group/type"), "DMA-FQ\n");
    assert!(
        found(&apart)
            .found
            .ends_with("CUDA gives no reason, but the IOMMU translates")
    );

    // One direction alone.
    let finding = found(&server(2, vec![way(0, 1, Some(true)), way(1, 0, None)]));
    assert!(
        finding
            .found
            .starts_with("GPU 0 reaches GPU 1 over NVLink; GPU 1 does not reach GPU 0; ")
    );
}

#[test]
fn one_gpu_has_no_peers() {
    let none = found(&Fixture::laptop());
    assert_eq!(none.state, FindingState::Unneeded);
    assert!(
        none.found.contains("the simulated GPU has the neighbours"),
        "{}",
        none.found
    );

    let mut fixture = server(1, Vec::new());
    assert_eq!(found(&fixture).found, "one GPU");
    let second = GPU_WAY.replace("0000:18:00.0", "0000:18:01.0");
    fixture.tree.pci(&second, GPU, Some("nvidia"), 0);
    assert!(
        found(&fixture)
            .found
            .contains("2 are on PCIe, and this process sees one")
    );
    fixture.gpu().name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb".into();
    assert!(found(&fixture).found.contains("MIG instance"));

    let mut silent = server(2, Vec::new());
    silent.probed.peers = Err("it is lost".into());
    let finding = found(&silent);
    assert_eq!(
        (finding.state, finding.found.as_str()),
        (FindingState::Unknown, "the driver does not tell: it is lost")
    );
}
