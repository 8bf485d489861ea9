//! Reasons of a reject by a connection manager itself (InfiniBand specification, volume 1, "REJ reason").

/// Nothing listens there.
pub const NOBODY_LISTENS: i32 = 8;
/// The peer has an older connection of the same queue pair.
pub const STALE_CONNECTION: i32 = 10;
/// The peer's program refused.
pub const BY_THE_NODE: i32 = 28;

/// What a reason means, and what usually causes it.
pub fn describe(reason: i32) -> String {
    let (meaning, cause) = of_the_path(reason).unwrap_or_else(|| of_the_peer(reason));
    format!("{meaning} (reject reason {reason}); {cause}")
}

/// Meaning and cause of a reason that lies in the packets' path.
fn of_the_path(reason: i32) -> Option<(&'static str, &'static str)> {
    Some(match reason {
        12 | 18 => (
            "the GID is not its own",
            "RoCE versions or addresses of the two ends do not match: both must have a RoCE v2 GID of that network \
             (`ibv_devinfo -v`)",
        ),
        13 | 19 => (
            "the LID is not its own",
            "the subnet manager has given out new ones: try again, and see that only one master runs (`sminfo`)",
        ),
        14 | 20 => (
            "the service level is not allowed",
            "see the subnet manager's partitions and levels",
        ),
        15 | 21 => (
            "the traffic class is not allowed",
            "leave the traffic class out, or allow it there",
        ),
        16 | 22 => (
            "the hop limit is too small",
            "too many routers lie between the two: see the route (`traceroute`)",
        ),
        17 | 23 => (
            "the packet rate is not possible",
            "the ports' speeds do not match: see `ibstat` on both machines",
        ),
        26 => (
            "the path's MTU is larger than it takes",
            "the MTUs of the two network interfaces differ: `ip link set NAME mtu` on both",
        ),
        32 | 33 => ("the flow label is not allowed", "see the routers between the two"),
        _ => return None,
    })
}

/// Meaning and cause of every other reason.
fn of_the_peer(reason: i32) -> (&'static str, &'static str) {
    match reason {
        1 | 2 => (
            "it has no queue pair left",
            "end other programs that use its device, or ask for fewer queue pairs",
        ),
        3 => (
            "it has no resources left",
            "its device or memory is used up: see the node's log and `dmesg` there",
        ),
        4 => (
            "it gave up waiting",
            "packets are lost or the node is overloaded: `ping`, and error counters of both ports (`rdma statistic`)",
        ),
        5 | 9 => (
            "it does not support what was asked for",
            "the two devices or their drivers differ too much: see versions on both machines",
        ),
        6 | 7 | 30 => (
            "it does not know the connection, or takes it for another one",
            "one of the machines was started anew meanwhile: try again",
        ),
        NOBODY_LISTENS => (
            "nothing listens at that port",
            "start `gpuvm serve` there, and see its port",
        ),
        STALE_CONNECTION => (
            "it has an older connection of this queue pair still",
            "it forgets it in a moment: try again",
        ),
        24 | 25 => (
            "it asks for another port or machine",
            "redirection is not followed: write the address it means",
        ),
        27 => (
            "it takes fewer READs in flight",
            "its device has less room for READs of others: see max_qp_rd_atom in `ibv_devinfo -v` there",
        ),
        BY_THE_NODE => ("its program refused", "see the node's log"),
        29 => (
            "the count of retries for a receiver that is not ready is not allowed",
            "see versions on both machines",
        ),
        31 | 35 => (
            "its connection manager is of another version",
            "update the kernel of the older machine",
        ),
        _ => ("this program does not know the reason", "see `dmesg` on both machines"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_cause() {
        for (reason, words) in [
            (8, "gpuvm serve"),
            (12, "RoCE v2 GID"),
            (26, "mtu"),
            (27, "max_qp_rd_atom"),
            (99, "does not know the reason"),
        ] {
            let text = describe(reason);
            assert!(
                text.contains(words) && text.contains(&format!("reject reason {reason})")),
                "{text}"
            );
        }
    }
}
