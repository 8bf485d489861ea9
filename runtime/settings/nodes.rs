//! Memory nodes, and what RDMA devices do about packets that are lost.

use std::{sync::Arc, time::Duration};

use gpuvm_memory_node::{ClientOptions, NodeClient};
use gpuvm_nic::rxe::RxeOptions;

use crate::{
    error::{Doing, Result},
    settings::refuse,
    stored::stored,
};

/// What an RDMA device does about packets that are not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Retransmission {
    pub(super) retries: u8,
    pub(super) ack_timeout: u8,
}

impl Default for Retransmission {
    fn default() -> Self {
        let options = RxeOptions::default();
        Self {
            retries: options.retry_count,
            ack_timeout: options.ack_timeout,
        }
    }
}

impl Retransmission {
    /// 6 retries after 67 ms each.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// How often a request that was not answered is sent again, 0 to 6; 7 is for ever, and only the wait limit ends it.
        /// Default: 6.
        retries(count: u8) => retries = count;

        /// How long an answer may take before the request is sent again: 4.096 us doubled this many times, 1 to 31. Default: 14
        /// (67 ms).
        ack_timeout(code: u8) => ack_timeout = code;
    }
}

/// Memory nodes: the pages of regions live there, striped over all of them, and not in this host's memory.
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryNodes {
    addresses: Vec<String>,
    secret: Option<String>,
    timeout: Duration,
}

impl MemoryNodes {
    /// The longest of a step where nothing says.
    pub const TIMEOUT_BY_DEFAULT: Duration = Duration::from_secs(10);

    /// By their addresses, each `host:port`.
    pub fn at(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            secret: None,
            timeout: Self::TIMEOUT_BY_DEFAULT,
        }
    }

    stored! {
        /// The secret that they ask for. It is proved, not sent.
        secret(secret: impl Into<String>) => secret = Some(secret.into());

        /// Longest that one step with a node may take, such as joining it. Default: 10 s.
        timeout(limit: Duration) => timeout = limit;
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.addresses.is_empty() {
            true => refuse(
                "memory nodes",
                "an empty list".into(),
                "at least one memory node is required",
            ),
            false => Ok(()),
        }
    }

    /// Joins them.
    pub(super) fn join(&self, again: Retransmission, traffic_class: u8) -> Result<Vec<Arc<NodeClient>>> {
        let options = ClientOptions {
            secret: self.secret.clone(),
            timeout: self.timeout,
            retry_count: again.retries,
            ack_timeout: again.ack_timeout,
            traffic_class,
            ..ClientOptions::default()
        };
        let join = |address: &String| {
            let joined = NodeClient::connect(address, &options);
            joined.doing(|| format!("joining {address}"))
        };
        self.addresses.iter().map(join).collect()
    }
}
