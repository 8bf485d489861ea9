//! What a node counts, and what it tells about clients that come and go.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use crate::protocol::Reason;

/// What a node has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Bytes of the pool.
    pub memory_bytes: u64,
    /// Bytes of it that nothing has.
    pub free_bytes: u64,
    /// Bytes that clients have.
    pub granted_bytes: u64,
    /// Bytes that the device did not give back; nothing gets them any more.
    pub lost_bytes: u64,
    /// Clients now.
    pub clients: u64,
    /// Grants now.
    pub grants: u64,
    /// Queue pairs of clients now, without those of the control connections.
    pub queue_pairs: u64,
    /// Clients so far.
    pub clients_total: u64,
    /// Grants so far.
    pub grants_total: u64,
    /// Grants whose client ended without giving them back.
    pub grants_revoked_total: u64,
    /// Clients that disconnected.
    pub goodbyes_total: u64,
    /// Clients that ended otherwise: killed, unreachable, malformed messages.
    pub losses_total: u64,
    /// Refused connections and grants, by reason.
    pub refusals_total: BTreeMap<String, u64>,
}

impl Metrics {
    /// As lines of Prometheus' text format.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        let gauges = [
            ("memory_bytes", "Bytes of the pool.", self.memory_bytes),
            ("free_bytes", "Bytes that are free.", self.free_bytes),
            ("granted_bytes", "Bytes that clients have.", self.granted_bytes),
            (
                "lost_bytes",
                "Bytes that the device did not give back.",
                self.lost_bytes,
            ),
            ("clients", "Clients now.", self.clients),
            ("grants", "Grants now.", self.grants),
            ("queue_pairs", "Queue pairs of clients now.", self.queue_pairs),
        ];
        let counters = [
            ("clients_total", "Clients so far.", self.clients_total),
            ("grants_total", "Grants so far.", self.grants_total),
            (
                "grants_revoked_total",
                "Grants whose client ended without giving them back.",
                self.grants_revoked_total,
            ),
            ("goodbyes_total", "Clients that disconnected.", self.goodbyes_total),
            ("losses_total", "Clients that ended otherwise.", self.losses_total),
        ];
        let lines = gauges
            .map(|line| ("gauge", line))
            .into_iter()
            .chain(counters.map(|line| ("counter", line)));
        for (kind, (name, help, value)) in lines {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "# HELP gpuvm_node_{name} {help}\n# TYPE gpuvm_node_{name} {kind}\ngpuvm_node_{name} {value}\n"
            );
        }
        text.push_str("# HELP gpuvm_node_refusals_total Refused connections and grants.\n");
        text.push_str("# TYPE gpuvm_node_refusals_total counter\n");
        for (reason, count) in &self.refusals_total {
            let _ = writeln!(text, "gpuvm_node_refusals_total{{reason=\"{reason}\"}} {count}");
        }
        text
    }
}

/// What happened at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// A client joined.
    Joined {
        /// Its name.
        name: String,
        /// Where it is.
        address: SocketAddr,
    },
    /// A client left.
    Left {
        /// Its name.
        name: String,
        /// Where it is.
        address: SocketAddr,
        /// Why.
        why: String,
        /// Grants that were taken back.
        grants: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A connection was refused.
    Refused {
        /// Who asked.
        address: SocketAddr,
        /// Why.
        reason: Reason,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_type() {
        let metrics = Metrics {
            free_bytes: 5,
            refusals_total: BTreeMap::from([("WrongSecret".to_owned(), 2)]),
            ..Metrics::default()
        };
        let text = metrics.to_prometheus();
        assert!(
            text.contains("# TYPE gpuvm_node_free_bytes gauge\ngpuvm_node_free_bytes 5\n"),
            "{text}"
        );
        assert!(
            text.ends_with("gpuvm_node_refusals_total{reason=\"WrongSecret\"} 2\n"),
            "{text}"
        );
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
            assert!(value.parse::<u64>().is_ok(), "{line}");
        }
    }
}
