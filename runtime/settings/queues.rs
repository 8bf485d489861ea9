//! The queue pairs between a GPU and its NICs.

use gpuvm_layouts as layout;
use gpuvm_nic::NicLimits;

use crate::{
    error::Result,
    plan::{PAIRS, QueuePlan, fitting, refuse},
    queues::{LOADED, pairs_for},
    stored::stored,
};

/// The queue pairs of a transport that has queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Queues {
    pairs: Option<u32>,
    depth: u32,
    host_homes: u32,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            pairs: None,
            depth: Self::DEPTH_BY_DEFAULT,
            host_homes: 1,
        }
    }
}

impl Queues {
    /// Requests that a queue pair holds where nothing says.
    pub const DEPTH_BY_DEFAULT: u32 = 256;

    /// Queue pairs for each of `homes` homes where nothing says and nothing is measured: see [`pairs`](Self::pairs).
    pub fn pairs_by_default(homes: u64) -> u32 {
        fitting(PAIRS, homes)
    }

    /// A loaded NIC is taken to answer that many times later than an idle one, where queue pairs are counted by its latency.
    pub const LOADED: f64 = LOADED;

    /// Queue pairs for each of `homes` homes over NICs of these limits where nobody says, and pages of this size in bytes: those that fill the link of one,
    /// as the transport `mlx5` makes them where the latency that it measures is this.
    pub fn pairs_by_limits(nic: &NicLimits, page_bytes: u64, homes: u64) -> u32 {
        fitting(pairs_for(nic, page_bytes), homes)
    }

    /// As many as the transport takes, 256 deep.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// Number of queue pairs for each home and NIC, 1 to 4096, and at most 4096 in all. Default: 8, with a file cache
        /// ([`VmBuilder::file_cache`](crate::VmBuilder::file_cache)) 64; over `mlx5` as many as keep the link busy, by the
        /// latency that is measured at the start and the READs that the device keeps in flight for each. With this many memory
        /// nodes that all of these would be more than 4096, the default is as many as fit.
        pairs(count: u32) => pairs = Some(count);

        /// Requests that a queue pair holds, a power of two up to 32768. Default: 256.
        depth(requests: u32) => depth = requests;

        /// Homes in this host's memory, 1 or 2, each with queue pairs of its own, for the copies of regions with two replicas
        /// where there are no memory nodes. Tests take one away ([`Vm::host_homes`](crate::Vm::host_homes)). Default: 1.
        host_homes(count: u32) => host_homes = count;
    }

    /// Checks the numbers, with `nics` NICs and `nodes` memory nodes.
    pub(super) fn check(&self, nics: usize, nodes: usize) -> Result<()> {
        if !(1..=layout::REPLICAS_MAX).contains(&self.host_homes) {
            return refuse("host homes", self.host_homes.to_string(), "it must be 1 or 2");
        }
        // One group of them for each of this host's homes and each NIC, and one a node.
        let groups = nics.max(1) as u64 * u64::from(self.host_homes) + nodes as u64;
        let pairs = self.pairs.unwrap_or(fitting(PAIRS, groups));
        if u64::from(pairs) * groups > u64::from(layout::QUEUES_MAX) {
            let value = format!("{pairs} for each of {groups} homes");
            return refuse("queue pairs", value, "the total must be at most 4096");
        }
        if pairs == 0 {
            return refuse("queue pairs", pairs.to_string(), "it must be between 1 and 4096");
        }
        if !self.depth.is_power_of_two() || self.depth > layout::RING_ENTRIES_MAX {
            let reason = "it must be a power of two up to 32768";
            return refuse("queue depth", self.depth.to_string(), reason);
        }
        Ok(())
    }

    /// Whether the device, which takes at most `entries_max`, has rings as deep.
    pub(super) fn check_depth(&self, device: &str, entries_max: u32) -> Result<()> {
        if self.depth <= entries_max {
            return Ok(());
        }
        let reason = format!("{device} takes at most {entries_max}");
        refuse("queue depth", self.depth.to_string(), reason)
    }

    pub(crate) fn plan(self) -> QueuePlan {
        QueuePlan {
            pairs: self.pairs,
            measured: false,
            usual: PAIRS,
            depth: self.depth,
            host_homes: self.host_homes,
            flush_reads: false,
            collapsed: false,
        }
    }
}
