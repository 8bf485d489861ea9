//! What several transports' settings have in common.

use gpuvm_nic::NicError;

use crate::error::{Doing, Error, Result};

/// Setters that several transports have.
macro_rules! setters {
    ($($name:ident)*) => { $(crate::settings::common::setters!(@ $name);)* };
    (@ queues) => {
        /// The queue pairs. Default: [`Queues::new`](crate::Queues::new), as many as the transport takes or its measured
        /// latency asks for.
        pub fn queues(mut self, queues: crate::Queues) -> Self {
            self.queues = queues;
            self
        }
    };
    (@ retransmission) => {
        /// What is done about packets that are lost. Default: [`Retransmission::new`](crate::Retransmission::new).
        pub fn retransmission(mut self, again: crate::Retransmission) -> Self {
            self.retransmission = again;
            self
        }
    };
    (@ memory_nodes) => {
        /// Memory nodes as homes. Default: this host's memory.
        pub fn memory_nodes(mut self, nodes: crate::MemoryNodes) -> Self {
            self.nodes = Some(nodes);
            self
        }
    };
}

pub(super) use setters;

/// A device that was opened for `transport`, which is unavailable where the device is not there.
pub(super) fn opened<N>(device: Result<N, NicError>, transport: &str, doing: &str) -> Result<N> {
    match device {
        Err(NicError::NoDevice { reason }) => Err(Error::Unavailable {
            what: format!("transport {transport}"),
            reason,
        }),
        other => other.doing(|| doing.into()),
    }
}
