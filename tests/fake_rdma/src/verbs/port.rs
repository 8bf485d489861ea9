//! What the port is like.

use crate::config::config;

/// READs in flight that the device takes.
pub(crate) const READS_MAX: u8 = 16;
/// `enum ibv_mtu` of the port: 4096.
pub(crate) const MTU: u32 = 5;
/// The port's LID, on InfiniBand.
pub(crate) const LID: u16 = 7;
/// Longest send queue.
pub(crate) const DEPTH_MAX: u32 = 1 << 15;
/// Longest completion queue.
pub(crate) const ENTRIES_MAX: u32 = (1 << 22) - 1;

/// The port's GIDs: address and `enum ibv_gid_type` of `struct ibv_gid_entry`.
pub(crate) fn gids() -> Vec<([u8; 16], u32)> {
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
    if config().infiniband {
        return vec![(link_local, 0)];
    }
    vec![(link_local, 1), (link_local, 2), (mapped, 1), (mapped, 2)]
}
