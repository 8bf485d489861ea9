//! How a client joins a node.

use std::fmt;
use std::time::Duration;

use crate::error::NodeError;

/// How a client joins.
#[derive(Clone)]
pub struct ClientOptions {
    /// What the node asks for, if it does. A node that does not know it is refused.
    pub secret: Option<String>,
    /// Shown in the node's log; at most 64 bytes.
    pub name: String,
    /// For each step. The connection manager repeats a request that was lost after 4.3 seconds: on a network that loses
    /// packets give it five seconds at least.
    pub timeout: Duration,
    /// How often a packet of a queue pair that joins is sent again, 0 to 7; 7 is for ever on rdma_rxe. The control
    /// connection always takes 7: it is ended by clocks of its own.
    pub retry_count: u8,
    /// After 4.096 us << this, 1 to 31. The control connection takes the usual 14 at least.
    pub ack_timeout: u8,
    /// Traffic class of the packets of all connections, from both ends (RoCE: DSCP and ECN). 0: the system's default.
    pub traffic_class: u8,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            secret: None,
            name: std::env::args().next().unwrap_or_default(),
            timeout: Duration::from_secs(5),
            retry_count: 6,
            ack_timeout: 14,
            traffic_class: 0,
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClientOptions")
            .field("secret", &self.secret.as_ref().map(|_| "..."))
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .field("retry_count", &self.retry_count)
            .field("ack_timeout", &self.ack_timeout)
            .field("traffic_class", &self.traffic_class)
            .finish()
    }
}

impl ClientOptions {
    /// Refuses values that mean nothing.
    pub(super) fn check(&self) -> Result<(), NodeError> {
        let wrong = |option, why: &str| {
            Err(NodeError::Option {
                option,
                why: why.to_owned(),
            })
        };
        if self.retry_count > 7 {
            return wrong("retry_count", "from 0 to 7");
        }
        if !(1..=31).contains(&self.ack_timeout) {
            return wrong("ack_timeout", "from 1 to 31");
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(600) {
            return wrong("timeout", "above zero, and ten minutes at most");
        }
        if self.secret.as_ref().is_some_and(String::is_empty) {
            return wrong("secret", "it is empty");
        }
        Ok(())
    }
}
