//! The queues of a transport, whichever it is, as plain values.

use std::sync::Arc;

use gpuvm_nic::Nic;

use super::refuse;
use crate::{error::Result, queues::measure};

/// Queue pairs for each home and NIC where their number is neither asked for nor measured.
pub(crate) const PAIRS: u32 = 8;

/// What a transport's queues are to be like, whichever transport it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePlan {
    /// For each home and NIC, where they were asked for.
    pub pairs: Option<u32>,
    /// Where they were not: by the latency of the NICs.
    pub measured: bool,
    pub depth: u32,
    pub host_homes: u32,
    /// Even where the frames' memory does not call for it.
    pub flush_reads: bool,
    /// Of rings that are given to the NIC: one entry of the completion ring takes all.
    pub collapsed: bool,
}

impl QueuePlan {
    /// Queue pairs for each home and NIC.
    pub fn count(&self, nics: &[Arc<dyn Nic>], page_bytes: u64) -> Result<u32> {
        match self.pairs {
            Some(asked) => Ok(asked),
            None if self.measured => {
                let measured = nics.iter().map(|nic| Ok(measure(nic, page_bytes)?.queue_pairs));
                Ok(measured.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(PAIRS))
            }
            None => Ok(PAIRS),
        }
    }

    /// Memory of the queue pairs of `homes` homes over one NIC, where nothing is measured.
    pub fn bytes(&self, homes: u64) -> u64 {
        u64::from(self.pairs.unwrap_or(PAIRS)) * homes * u64::from(self.depth) * 256
    }

    /// Whether the NICs that make rings themselves have room for a queue pair's, with a block more for each request where READs
    /// are flushed.
    pub fn check_blocks(&self, nics: &[Arc<dyn Nic>], flush_reads: bool) -> Result<()> {
        let blocks = self.depth << u32::from(flush_reads);
        let mut able = nics.iter().map(|nic| nic.capabilities());
        let Some(able) = able.find(|able| able.makes_rings && blocks > able.sq_entries_max) else {
            return Ok(());
        };
        let why = if flush_reads {
            ", and a request takes two where READs are flushed"
        } else {
            ""
        };
        let reason = format!("{} takes at most {} blocks{why}", able.name, able.sq_entries_max);
        refuse("queue depth", self.depth.to_string(), reason)
    }
}
