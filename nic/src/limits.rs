//! What a NIC carries at most, as plain numbers: for the software NIC, which keeps to them, and for arithmetic.

use std::fmt;

use crate::NicError;
use crate::wire::mlx5::QUEUE_BLOCKS_MAX;

/// The limits of a NIC. A READ is bound by the tightest of four: the link, the device's message rate, the READs that its queue pair has in flight,
/// and the room of its send queue.
///
/// ```
/// use gpuvm_nic::{Limit, NicLimits};
///
/// let nic = NicLimits::connectx7();
/// // One queue pair cannot fill the link with pages of 4 KiB; 64 of them can.
/// let first = |pairs| nic.binding(4096, pairs, 256).0;
/// assert_eq!((first(1), first(64)), (Limit::ReadsInFlight, Limit::Link));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicLimits {
    /// READs and atomics that one queue pair has in flight; more of them wait inside the NIC.
    pub reads_per_queue_pair: u32,
    /// Bytes a second that the link carries in each direction, headers included; none: no limit.
    pub link_bytes_per_second: Option<u64>,
    /// Requests a second that the device starts, over all its queue pairs; none: no limit. Kept to a picosecond a request.
    pub messages_per_second: Option<u64>,
    /// Bytes of data in a packet at most, at least 1.
    pub path_mtu: u32,
    /// Bytes on the link for each packet beside its data.
    pub packet_overhead: u32,
    /// Nanoseconds from the start of a request to its completion on an idle link, the time of its bytes there not counted.
    pub latency_ns: u64,
    /// Nanoseconds after which a request that nobody answers fails, its repeats included: see [`unanswered_ns`](Self::unanswered_ns).
    pub unanswered_ns: u64,
    /// Most blocks of a send queue.
    pub send_queue_entries: u32,
}

/// One of [`NicLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// Bytes of the link, headers included.
    Link,
    /// Requests that the device starts.
    Messages,
    /// READs in flight of each queue pair.
    ReadsInFlight,
    /// Requests that have room in the send queues.
    SendQueues,
}

impl Limit {
    /// All of them.
    pub const ALL: [Limit; 4] = [Limit::Link, Limit::Messages, Limit::ReadsInFlight, Limit::SendQueues];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Messages => "messages",
            Self::ReadsInFlight => "reads in flight",
            Self::SendQueues => "send queues",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Those that have a name.
const NAMED: [(&str, NicLimits); 1] = [("connectx-7", NicLimits::connectx7())];

impl NicLimits {
    /// None but the send queue that mlx5's 16-bit indexes allow.
    pub const fn unlimited() -> Self {
        NicLimits {
            reads_per_queue_pair: u32::MAX,
            link_bytes_per_second: None,
            messages_per_second: None,
            path_mtu: u32::MAX,
            packet_overhead: 0,
            latency_ns: 0,
            unanswered_ns: 0,
            send_queue_entries: QUEUE_BLOCKS_MAX,
        }
    }

    /// A ConnectX-7 with one port of 400 Gb/s, over RoCE v2. Nothing of it was measured.
    ///
    /// | what | value | where it is from |
    /// |---|---|---|
    /// | READs in flight of a queue pair | 16 | what ConnectX devices report as `max_qp_rd_atom` (perftest's "Outstand reads", openucx/ucx#8852) |
    /// | link | 50 GB/s | the ConnectX-7 user manual: a port of 400GbE or NDR |
    /// | messages | 215 million a second | the ConnectX-6 user manual. Assumed of a ConnectX-7, whose manual names no figure |
    /// | path MTU | 4096 B | the largest of InfiniBand and RoCE |
    /// | headers of a packet | 86 B | RoCE v2: Ethernet 14 and 4, IPv4 20, UDP 8, BTH 12, AETH 4, ICRC 4, preamble and gap 20. Packets in the middle of an answer have no AETH |
    /// | latency | 5 us | assumed, between two hosts |
    /// | a request without an answer | 0.47 s | 6 repeats, 67 ms each: what queue pairs are set to unless they are told otherwise. A device may wait up to four times as long |
    /// | send queue | 32,768 blocks | `wqe_cnt` of mlx5, whose indexes have 16 bits |
    pub const fn connectx7() -> Self {
        NicLimits {
            reads_per_queue_pair: 16,
            link_bytes_per_second: Some(400_000_000_000 / 8),
            messages_per_second: Some(215_000_000),
            path_mtu: 4096,
            packet_overhead: 14 + 4 + 20 + 8 + 12 + 4 + 4 + 20,
            latency_ns: 5_000,
            unanswered_ns: Self::unanswered_ns(14, 6),
            send_queue_entries: QUEUE_BLOCKS_MAX,
        }
    }

    /// Nanoseconds after which a request without an answer fails: it is sent again `retries` times, each time after 4.096 us doubled `ack_timeout`
    /// times, at most 31.
    pub const fn unanswered_ns(ack_timeout: u8, retries: u8) -> u64 {
        let doubled = if ack_timeout > 31 { 31 } else { ack_timeout };
        (4096 << doubled) * (retries as u64 + 1)
    }

    /// The limits of this name: `connectx-7`.
    pub fn named(name: &str) -> Option<Self> {
        let found = NAMED.iter().find(|(known, _)| *known == name);
        found.map(|(_, limits)| *limits)
    }

    /// The names that [`named`](Self::named) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// Bits a second that the link carries in each direction, if that is limited.
    pub fn link_bits_per_second(&self) -> Option<u64> {
        self.link_bytes_per_second.map(|bytes| bytes.saturating_mul(8))
    }

    /// Packets of `bytes` bytes of data: one at least.
    pub fn packets(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.path_mtu.max(1).into()).max(1)
    }

    /// Bytes that `bytes` bytes of data take on the link, with the headers of their packets.
    pub fn link_bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.packets(bytes).saturating_mul(self.packet_overhead.into()))
    }

    /// READs of `bytes` bytes a second that one limit lets through, over `queue_pairs` queue pairs that hold `depth` requests each; infinite where
    /// it is none.
    pub fn reads_per_second(&self, limit: Limit, bytes: u64, queue_pairs: u64, depth: u32) -> f64 {
        let in_flight = |each: u32| match self.latency_ns {
            0 => f64::INFINITY,
            latency_ns => queue_pairs as f64 * f64::from(each) * 1e9 / latency_ns as f64,
        };
        let rate = |rate: Option<u64>| rate.map_or(f64::INFINITY, |rate| rate as f64);
        match limit {
            Limit::Link => rate(self.link_bytes_per_second) / self.link_bytes(bytes).max(1) as f64,
            Limit::Messages => rate(self.messages_per_second),
            Limit::ReadsInFlight => in_flight(self.reads_per_queue_pair),
            Limit::SendQueues => in_flight(depth.min(self.send_queue_entries)),
        }
    }

    /// The limit that binds first, as [`reads_per_second`](Self::reads_per_second) has it, and what it lets through.
    pub fn binding(&self, bytes: u64, queue_pairs: u64, depth: u32) -> (Limit, f64) {
        let rate = |limit| (limit, self.reads_per_second(limit, bytes, queue_pairs, depth));
        let rates = Limit::ALL.map(rate).into_iter();
        // Of two that are alike the first.
        let least = rates.reduce(|least, next| if next.1 < least.1 { next } else { least });
        least.unwrap_or((Limit::Link, f64::INFINITY))
    }

    /// Whether they can be kept.
    ///
    /// # Errors
    /// [`NicError::BadArgument`] for one that is zero and lets nothing through.
    pub fn check(&self) -> Result<(), NicError> {
        let zeros = [
            ("max_rd_atomic", self.reads_per_queue_pair == 0, "at least 1"),
            (
                "bandwidth",
                self.link_bytes_per_second == Some(0),
                "at least 1 byte a second",
            ),
            (
                "message rate",
                self.messages_per_second == Some(0),
                "at least 1 message a second",
            ),
            ("path MTU", self.path_mtu == 0, "at least 1 byte"),
            ("send queue entries", self.send_queue_entries == 0, "at least 1"),
        ];
        match zeros.into_iter().find(|(_, is_zero, _)| *is_zero) {
            Some((what, _, expected)) => Err(NicError::BadArgument {
                what,
                value: 0,
                expected,
            }),
            None => Ok(()),
        }
    }

    /// Whether requests take time that these say.
    pub(crate) fn take_time(&self) -> bool {
        self.latency_ns != 0
            || self.unanswered_ns != 0
            || self.link_bytes_per_second.is_some()
            || self.messages_per_second.is_some()
    }
}

impl fmt::Display for NicLimits {
    /// Their name, where they have one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMED.iter().find(|(_, limits)| limits == self);
        f.write_str(named.map_or("limits of its own", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for name in NicLimits::names() {
            assert_eq!(NicLimits::named(name).expect("a name").to_string(), name);
        }
        assert_eq!(NicLimits::named("connectx-8"), None);
        assert_eq!(NicLimits::unlimited().to_string(), "limits of its own");
    }

    #[test]
    fn headers_take_their_share_of_the_link() {
        let nic = NicLimits::connectx7();
        let packets: Vec<u64> = [0, 1, 4096, 4097, 65_536].map(|bytes| nic.packets(bytes)).into();
        assert_eq!(packets, [1, 1, 1, 2, 16]);
        assert_eq!(nic.link_bytes(65_536), 65_536 + 16 * 86);
        assert_eq!(nic.unanswered_ns, 7 * 67_108_864);
        let open = NicLimits::unlimited();
        assert_eq!(
            (open.link_bytes(1 << 31), open.link_bytes(u64::MAX)),
            (1 << 31, u64::MAX)
        );
        assert!(!open.take_time() && nic.take_time());
    }

    #[test]
    fn the_tightest_limit_binds() {
        let nic = NicLimits::connectx7();
        for (bytes, pairs, depth, first) in [
            (4096, 1, 256, Limit::ReadsInFlight),
            (4096, 1, 4, Limit::SendQueues),
            (4096, 64, 256, Limit::Link),
            (64, 256, 256, Limit::Messages),
        ] {
            let (found, rate) = nic.binding(bytes, pairs, depth);
            assert_eq!(found, first, "{bytes} bytes, {pairs} queue pairs");
            assert!(
                Limit::ALL
                    .iter()
                    .all(|limit| nic.reads_per_second(*limit, bytes, pairs, depth) >= rate)
            );
        }
        assert_eq!(
            nic.reads_per_second(Limit::ReadsInFlight, 4096, 1, 256),
            16.0 * 1e9 / 5e3
        );
        assert_eq!(NicLimits::unlimited().binding(4096, 1, 256).1, f64::INFINITY);
    }
}
