//! Which GPUs reach each other's memory, over what, and why others do not.

use gpuvm_gpu::cuda::PeerInfo;
use serde_json::json;

use crate::doctor::finding::{Found, limited, ok, unknown, unneeded};
use crate::doctor::platform::iommu_translates;
use crate::doctor::view::View;

/// Each pair of GPUs.
pub fn peers(view: &View) -> Found {
    let Ok(gpus) = &view.probed.gpus else {
        return unneeded(
            "no NVIDIA GPU that the driver opens; the simulated GPU has the neighbours that --borrow names, from 1 on",
        );
    };
    if gpus.len() < 2 {
        return unneeded(alone(view));
    }
    let peers = match &view.probed.peers {
        Ok(peers) => peers,
        Err(reason) => return unknown(format!("the driver does not tell: {reason}")),
    };
    let details = peers.iter().map(|peer| {
        json!({
            "from": peer.from, "to": peer.to, "access": peer.access, "link": link(peer),
            "native_atomics": peer.native_atomics, "performance_rank": peer.performance_rank,
        })
    });
    let details: Vec<_> = details.collect();
    let said = pairs(peers).join("; ");
    if peers.iter().all(|peer| peer.access) {
        return ok(said).details(details);
    }
    let reason = match (has_mig(view), iommu_translates(view)) {
        (true, _) => ", but MIG is on",
        (_, Some(true)) => ", but the IOMMU translates",
        _ => "",
    };
    limited(format!("{said}; CUDA gives no reason{reason}"))
        .fix("nvidia-smi topo -p2p r names the driver's reason for each pair; nvidia-smi topo -m shows the links")
        .details(details)
}

/// Why the only GPU has no peer, as far as that is seen.
fn alone(view: &View) -> String {
    let on_pcie = view.gpus.len();
    match view.probed.gpus.as_ref().map_or(0, Vec::len) {
        _ if has_mig(view) => "CUDA shows a process one MIG instance, which has no peers".to_owned(),
        0 => "the driver has no GPU".to_owned(),
        seen if seen < on_pcie => {
            format!("one GPU; {on_pcie} are on PCIe, and this process sees one: CUDA_VISIBLE_DEVICES, or the container")
        }
        _ => "one GPU".to_owned(),
    }
}

/// The driver names an instance after its profile, such as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
fn has_mig(view: &View) -> bool {
    let mut gpus = view.probed.gpus.iter().flatten();
    gpus.any(|gpu| gpu.name.split_whitespace().any(|word| word == "MIG"))
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
            (false, true) => format!("GPUs {from} and {to} are not peers"),
            (false, false) => format!("GPU {from} does not reach GPU {to}"),
        });
    }
    said
}
