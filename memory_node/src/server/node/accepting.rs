//! Queue pairs of clients: from a connection request to ready, and again after an error.

use gpuvm_nic::QueueAttributes;

use crate::error::NodeError;
use crate::protocol::{Accept, Reason};
use crate::server::session::DataQueue;
use crate::server::worker::Failure;
use crate::verbs::{ConnectParameters, Context, Event, Id, JoinQueue, VerbsQueue, join};

/// What a state asks for: what the client wants, as far as the device can.
fn attributes_within(id: &Id, context: &Context, state: u32) -> Result<QueueAttributes, NodeError> {
    let mut attributes = id.attributes(state)?;
    attributes.max_dest_rd_atomic = attributes.max_dest_rd_atomic.min(context.reads_in_max);
    attributes.max_rd_atomic = attributes.max_rd_atomic.min(context.reads_out_max);
    Ok(attributes)
}

/// Takes a joined queue pair through reset to ready, with new packet numbers.
pub(super) fn begin_anew(queue: &DataQueue, packet: u32) -> Result<(), NodeError> {
    let reset = QueueAttributes::to_state(QueueAttributes::RESET);
    queue.queue.modify(&reset).map_err(|source| NodeError::QueueState {
        number: queue.queue.number(),
        state: "RESET",
        source,
    })?;
    join(&queue.queue, |state| {
        let attributes = attributes_within(&queue.id, &queue.context, state)?;
        Ok(QueueAttributes {
            rq_psn: packet,
            sq_psn: packet,
            ..attributes
        })
    })
}

/// Lets a queue pair join a connection request and accepts it.
pub(super) fn accept_queue(
    id: &Id,
    queue: &VerbsQueue,
    context: &Context,
    event: &Event,
    accept: &Accept,
    before_accept: impl FnOnce() -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    join(queue, |state| attributes_within(id, context, state))?;
    before_accept()?;
    id.accept(ConnectParameters {
        private_data: &accept.emit(),
        responder_resources: event.responder_resources.min(context.reads_in_max),
        initiator_depth: event.initiator_depth.min(context.reads_out_max),
        retry_count: 6,
        rnr_retry_count: 6,
        queue: queue.number(),
    })
}

/// What the client is told of an error of the node.
pub(super) fn out_of_resources(error: &NodeError) -> Failure {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    let mut code = libc::EIO;
    while let Some(error) = cause {
        if let Some(found) = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
        {
            code = found;
        }
        cause = error.source();
    }
    (Reason::OutOfResources, code.unsigned_abs().into())
}
