//! The queues of a transport, whichever it is, as plain values.

use std::sync::Arc;

use gpuvm_layouts as layout;
use gpuvm_nic::Nic;

use super::refuse;
use crate::{error::Result, queues::measure};

/// Queue pairs for each home and NIC where their number is neither asked for nor measured.
pub(crate) const PAIRS: u32 = 8;
/// With a file cache, whose blocks come in any order while a queue pair's requests complete in theirs: fewer wait behind a slow one.
pub(crate) const PAIRS_WITH_FILE_CACHE: u32 = 64;

/// Queue pairs for each of this many groups, where `wanted` were not asked for but chosen: fewer where all of them would be too many.
pub(crate) fn fitting(wanted: u32, groups: u64) -> u32 {
    let room = u64::from(layout::QUEUES_MAX) / groups.max(1);
    // More groups than queue pairs are refused before.
    wanted.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1)
}

/// What a transport's queues are to be like, whichever transport it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePlan {
    /// For each home and NIC, where they were asked for.
    pub pairs: Option<u32>,
    /// Where they were not: by the latency of the NICs.
    pub measured: bool,
    /// Where they were neither asked for nor measured.
    pub usual: u32,
    pub depth: u32,
    pub host_homes: u32,
    /// Even where the frames' memory does not call for it.
    pub flush_reads: bool,
    /// Of rings that are given to the NIC: one entry of the completion ring takes all.
    pub collapsed: bool,
}

impl QueuePlan {
    /// Queue pairs for each of `groups` homes and NICs.
    pub fn count(&self, nics: &[Arc<dyn Nic>], page_bytes: u64, groups: u64) -> Result<u32> {
        if let Some(asked) = self.pairs {
            return Ok(asked);
        }
        let measured = nics.iter().filter(|_| self.measured);
        let measured = measured.map(|nic| Ok(measure(nic, page_bytes)?.queue_pairs));
        let most = measured.collect::<Result<Vec<_>>>()?.into_iter().max();
        Ok(fitting(most.unwrap_or(self.usual), groups))
    }

    /// Memory of the queue pairs of `homes` homes over one NIC, where nothing is measured.
    pub fn bytes(&self, homes: u64) -> u64 {
        u64::from(self.pairs.unwrap_or(fitting(self.usual, homes))) * homes * u64::from(self.depth) * 256
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_stands_behind_what_is_asked() {
        let mut plan = crate::Queues::new().plan();
        assert_eq!(plan.count(&[], 4096, 1).unwrap(), PAIRS);
        plan.usual = PAIRS_WITH_FILE_CACHE;
        assert_eq!(plan.count(&[], 4096, 2).unwrap(), PAIRS_WITH_FILE_CACHE);
        assert_eq!(plan.bytes(1), u64::from(PAIRS_WITH_FILE_CACHE * plan.depth) * 256);
        plan.pairs = Some(3);
        assert_eq!(plan.count(&[], 4096, 1).unwrap(), 3);
    }

    #[test]
    fn queue_pairs_that_were_not_asked_for_fit() {
        let all = u64::from(layout::QUEUES_MAX);
        for groups in [1, 8, 500, 512, 513, 1008, all / 2 + 1, all] {
            let pairs = fitting(PAIRS, groups);
            assert!(
                (1..=PAIRS).contains(&pairs) && u64::from(pairs) * groups <= all,
                "{groups}: {pairs}"
            );
            assert!(
                pairs == PAIRS || u64::from(pairs + 1) * groups > all,
                "{groups}: {pairs}"
            );
        }
        assert_eq!(fitting(256, 16), 256);
        assert_eq!(fitting(256, 64), 64);
    }
}
