//! Which GPUs reach each other's memory, over what, and why others do not.

use gpuvm_gpu::cuda::PeerInfo;
use serde_json::json;

use crate::doctor::finding::{Check, Finding, FindingState};
use crate::doctor::gpu::addresses;
use crate::doctor::platform::{iommu_translates, redirecting_above_gpus};
use crate::doctor::view::View;

/// The finding.
pub fn check(view: &View) -> Finding {
    let check = Check {
        id: "peers",
        title: "peer GPUs",
        why: "a GPU borrows memory of a peer (--borrow), has regions there (home_on_gpu), and stores to its copies of broadcast arrays; without a peer, pages come from the host alone",
    };
    let Ok(gpus) = &view.probed.gpus else {
        return check.unneeded(
            "no NVIDIA GPU that the driver opens; the simulated GPU has the neighbours that --borrow names, from 1 on",
        );
    };
    if gpus.len() < 2 {
        return check.unneeded(&alone(view));
    }
    let peers = match &view.probed.peers {
        Ok(peers) => peers,
        Err(reason) => return check.is(FindingState::Unknown, format!("the driver does not tell: {reason}")),
    };
    let details = peers.iter().map(|peer| {
        json!({
            "from": peer.from, "to": peer.to, "access": peer.access, "link": link(peer),
            "native_atomics": peer.native_atomics, "performance_rank": peer.performance_rank,
        })
    });
    let details = json!(details.collect::<Vec<_>>());
    let mut said = pairs(peers);
    let finding = match peers.iter().all(|peer| peer.access) {
        true => check.is(FindingState::Ok, said.join("; ")),
        false => {
            let seen = hindrances(view);
            said.push(match seen.is_empty() {
                true => "CUDA gives no reason".to_owned(),
                false => format!("CUDA gives no reason, but {}", seen.join(", and ")),
            });
            check.is(FindingState::Limited, said.join("; ")).mend(
                "nvidia-smi topo -p2p r names the driver's reason for each pair; nvidia-smi topo -m shows the links",
            )
        }
    };
    finding.details(details)
}

/// Why the only GPU has no peer, as far as that is seen.
fn alone(view: &View) -> String {
    let gpus = view.probed.gpus.as_deref().unwrap_or_default();
    let on_pcie = view.gpus.len();
    if gpus.iter().any(|gpu| is_mig(&gpu.name)) {
        return "CUDA shows a process one MIG instance, which has no peers".to_owned();
    }
    match gpus.len() {
        0 => "the driver has no GPU".to_owned(),
        seen if seen < on_pcie => {
            format!("one GPU; {on_pcie} are on PCIe, and this process sees one: CUDA_VISIBLE_DEVICES, or the container")
        }
        _ => "one GPU".to_owned(),
    }
}

/// The driver names an instance after its profile, such as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
fn is_mig(name: &str) -> bool {
    name.split_whitespace().any(|word| word == "MIG")
}

/// What the link is, as far as CUDA lets one tell: GPUs have atomic operations on peers over NVLink, and not over PCIe.
fn link(peer: &PeerInfo) -> Option<&'static str> {
    peer.native_atomics
        .map(|atomics| if atomics { "NVLink" } else { "PCIe" })
}

/// One phrase for two GPUs whose ways to each other are alike, else one for each direction.
fn pairs(peers: &[PeerInfo]) -> Vec<String> {
    let back_of = |peer: &PeerInfo| peers.iter().find(|back| (back.from, back.to) == (peer.to, peer.from));
    let alike = |one: &PeerInfo, other: &PeerInfo| (one.access, link(one)) == (other.access, link(other));
    let mut said = Vec::new();
    for peer in peers {
        let &PeerInfo { from, to, access, .. } = peer;
        let mutual = back_of(peer).is_some_and(|back| alike(peer, back));
        if mutual && from > to {
            continue;
        }
        let over = link(peer).unwrap_or("a link that the driver does not tell");
        said.push(match (access, mutual) {
            (true, true) => format!("GPUs {from} and {to} are peers over {over}"),
            (true, false) => format!("GPU {from} reaches GPU {to} over {over}"),
            (false, true) => format!("GPUs {from} and {to} are no peers"),
            (false, false) => format!("GPU {from} does not reach GPU {to}"),
        });
    }
    said
}

/// What is seen on this machine that keeps GPUs from being peers.
fn hindrances(view: &View) -> Vec<String> {
    let mut seen = Vec::new();
    let gpus = view.probed.gpus.as_deref().unwrap_or_default();
    if gpus.iter().any(|gpu| is_mig(&gpu.name)) {
        seen.push("MIG is on".to_owned());
    }
    if iommu_translates(view) == Some(true) {
        seen.push("the IOMMU translates".to_owned());
    }
    let bridges = redirecting_above_gpus(view);
    if !bridges.is_empty() {
        seen.push(format!("bridges redirect (ACS): {}", addresses(&bridges)));
    }
    seen
}
