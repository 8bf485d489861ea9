//! How large things get with many hosts, and which of them is too large first: arithmetic over the code's own sizes and limits.
//!
//! Each [`Structure`] has a size at a [`Site`], a limit, and the quantity that it grows with. A structure of the library takes its size from the
//! library, so a change there changes the answer. What is measured or assumed is a constant here that says so.

use std::fmt;

use gpuvm::{MemoryNodes, Queues};
use gpuvm_layouts as layout;
use gpuvm_memory_node::{Backing, ServeOptions, limits};
use gpuvm_nic::NicLimits;
use serde::Serialize;

mod ceilings;
mod structures;

pub use ceilings::{Bound, Ceiling, NICS, PAGES, ceilings};
pub use structures::rows;

/// Bytes a second that a GPU reads over PCIe 5: measured on an H200 (docs/PERFORMANCE.md, bare page reads).
pub const HOST_LINK_BYTES_PER_SECOND: f64 = 51.4e9;
/// The NIC of all hosts. Read or assumed, as it says: nothing has run on one.
pub const NIC: NicLimits = NicLimits::connectx7();
/// Queue pairs of a ConnectX as Linux's driver sets it up: 2^18 (`log_max_qp`). Read, not measured.
pub const DEVICE_QUEUE_PAIRS_MAX: f64 = (1u64 << 18) as f64;
/// Memory regions of a ConnectX: 2^24 keys. Read, not measured.
pub const DEVICE_REGIONS_MAX: f64 = (1u64 << 24) as f64;
/// Threads of a process where nobody raised it: Linux's default of `kernel.pid_max`.
pub const THREADS_MAX: f64 = 32_768.0;
/// Descriptors that systemd lets a process have, if it raises its own limit (`ulimit -Hn`), as the command `gpuvm` does.
pub const FILES_MAX: f64 = 524_288.0;
/// Share of a memory that tables may take. A choice.
pub const TABLES_SHARE: f64 = 1.0 / 16.0;
/// Longest that calling all lost nodes may take, in seconds: the longest pause between two tries. A choice.
pub const CALLS_SECONDS_MAX: f64 = 60.0;
/// Longest that a node's memory may be without a second copy once it is back, in seconds. A choice.
pub const CATCH_UP_SECONDS_MAX: f64 = 600.0;

/// Hosts with GPUs, and memory nodes, which all of them use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Site {
    /// Memory nodes. Every client has pages at each of them.
    pub nodes: u64,
    /// GPUs, each a client of all nodes.
    pub clients: u64,
    /// NICs of a host, of clients and of nodes.
    pub nics: u64,
    /// Clients on a host.
    pub gpus_per_host: u64,
    /// Bytes of one client's regions.
    pub data_bytes: u64,
    /// Regions of one client.
    pub regions: u64,
    /// Copies of each page, 1 or 2.
    pub replicas: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a GPU's memory.
    pub gpu_memory_bytes: u64,
    /// Bytes of a host's memory, of a client's and of a node's.
    pub host_memory_bytes: u64,
    /// Nodes that are lost at once, of a hundred.
    pub lost_percent: u64,
    /// Microseconds from a READ's doorbell to its completion on an idle network. Assumed: nothing has run on a ConnectX.
    pub latency_us: f64,
}

impl Default for Site {
    /// 1,000 nodes, 10,000 clients, 8 NICs and 8 GPUs a host.
    fn default() -> Self {
        Self {
            nodes: 1000,
            clients: 10_000,
            nics: 8,
            gpus_per_host: 8,
            data_bytes: 256 << 30,
            regions: 64,
            replicas: 1,
            page_bytes: 64 << 10,
            gpu_memory_bytes: 131 << 30,
            host_memory_bytes: 4 << 40,
            lost_percent: 1,
            latency_us: NIC.latency_ns as f64 / 1e3,
        }
    }
}

impl Site {
    /// Homes that a client has queue pairs for: its own host's over each NIC, and each node.
    pub(crate) fn homes(&self) -> u64 {
        self.nics.max(1).saturating_add(self.nodes)
    }

    /// Queue pairs of a client for each home, as the library chooses them where nobody says.
    pub(crate) fn pairs(&self) -> f64 {
        f64::from(Queues::pairs_by_default(self.homes()))
    }

    /// A NIC of its hosts.
    pub(crate) fn nic(&self) -> NicLimits {
        NicLimits {
            latency_ns: (self.latency_us * 1e3) as u64,
            ..NIC
        }
    }

    /// Bytes a second of all NICs of a host.
    pub(crate) fn links(&self) -> f64 {
        let link = NIC.link_bytes_per_second.map_or(f64::INFINITY, |bytes| bytes as f64);
        self.nics.max(1) as f64 * link
    }

    /// Bytes of all clients at one node.
    pub(crate) fn bytes_at_node(&self) -> f64 {
        let all = self.clients as f64 * self.data_bytes as f64 * self.replicas as f64;
        all / self.nodes.max(1) as f64
    }
}

/// A quantity that a structure grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// [`Site::nodes`].
    Nodes,
    /// [`Site::clients`].
    Clients,
    /// [`Site::nics`].
    Nics,
    /// [`Site::data_bytes`].
    Data,
    /// [`Site::regions`].
    Regions,
}

impl Axis {
    fn of(self, site: &mut Site) -> &mut u64 {
        match self {
            Self::Nodes => &mut site.nodes,
            Self::Clients => &mut site.clients,
            Self::Nics => &mut site.nics,
            Self::Data => &mut site.data_bytes,
            Self::Regions => &mut site.regions,
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Clients => "clients",
            Self::Nics => "NICs a host",
            Self::Data => "bytes a client",
            Self::Regions => "regions a client",
        })
    }
}

/// What a size counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// Something that grows.
#[derive(Clone, Copy)]
pub struct Structure {
    /// What it is, and of what.
    pub name: &'static str,
    /// What its size counts.
    pub unit: Unit,
    /// What it grows with.
    pub axis: Axis,
    /// Where its limit comes from.
    pub limited_by: &'static str,
    size: fn(&Site) -> f64,
    limit: fn(&Site) -> f64,
}

/// A structure at a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// [`Structure::name`].
    pub structure: &'static str,
    /// What size and limit count.
    pub unit: Unit,
    /// Its size at the site.
    pub size: f64,
    /// The largest that it may be there.
    pub limit: f64,
    /// Where the limit comes from.
    pub limited_by: &'static str,
    /// Size by limit: more than 1 is too large.
    pub share: f64,
    /// What it grows with.
    pub grows_with: Axis,
    /// The first value of that at which it is too large, all else being as at the site; none up to 2^52.
    pub breaks_at: Option<u64>,
}

/// Largest value of an axis that is tried: whole numbers up to it are exact as `f64`.
const AXIS_MAX: u64 = 1 << 52;

impl Structure {
    fn is_too_large(&self, site: &Site) -> bool {
        (self.size)(site) > (self.limit)(site)
    }

    /// By bisection: a size does not shrink along its axis.
    fn breaks_at(&self, site: &Site) -> Option<u64> {
        let at = |value| {
            let mut there = *site;
            *self.axis.of(&mut there) = value;
            self.is_too_large(&there)
        };
        let (mut fits, mut breaks) = (0, AXIS_MAX);
        if !at(breaks) {
            return None;
        }
        while breaks - fits > 1 {
            let middle = fits + (breaks - fits) / 2;
            *(if at(middle) { &mut breaks } else { &mut fits }) = middle;
        }
        Some(breaks)
    }

    fn row(&self, site: &Site) -> Row {
        let (size, limit) = ((self.size)(site), (self.limit)(site));
        Row {
            structure: self.name,
            unit: self.unit,
            size,
            limit,
            limited_by: self.limited_by,
            share: size / limit,
            grows_with: self.axis,
            breaks_at: self.breaks_at(site),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>(rows: &'a [Row], name: &str) -> &'a Row {
        let found = rows.iter().find(|row| row.structure.contains(name));
        found.unwrap_or_else(|| panic!("no structure `{name}`"))
    }

    #[test]
    fn a_structure_breaks_where_it_is_said_to() {
        let site = Site::default();
        for structure in structures::ALL {
            let Some(at) = structure.breaks_at(&site) else { continue };
            let mut there = site;
            *structure.axis.of(&mut there) = at;
            assert!(structure.is_too_large(&there), "{} at {at}", structure.name);
            *structure.axis.of(&mut there) = at - 1;
            assert!(!structure.is_too_large(&there), "{} at {at} less one", structure.name);
        }
    }

    #[test]
    fn sizes_are_those_of_the_code() {
        let site = Site::default();
        let rows = rows(&site);
        assert!(rows.is_sorted_by(|a, b| a.share >= b.share));
        let pages = site.data_bytes.div_ceil(site.page_bytes) as f64;
        assert_eq!(row(&rows, "page tables").size, pages * size_of::<u64>() as f64);
        let clients = row(&rows, "clients of a node");
        assert_eq!(
            (clients.limit, clients.breaks_at),
            (limits::CLIENTS_MAX.into(), Some(u64::from(limits::CLIENTS_MAX) + 1))
        );
        let queues = row(&rows, "queue pairs of a client");
        assert_eq!(queues.limit, f64::from(layout::QUEUES_MAX));
        assert!(queues.share <= 1.0, "the library's own choice fits: {queues:?}");
        let last = u64::from(layout::QUEUES_MAX) - site.nics + 1;
        assert_eq!(queues.breaks_at, Some(last));
    }

    #[test]
    fn what_was_mended_holds_at_the_asked_scale() {
        let rows = rows(&Site::default());
        for name in [
            "clients of a node",
            "completions of clients",
            "queue pairs of a client",
            "files",
            "calling",
        ] {
            let found = row(&rows, name);
            assert!(found.share <= 1.0, "{found:?}");
        }
    }

    #[test]
    fn any_site_has_an_answer() {
        let odd = Site {
            nodes: 0,
            clients: 0,
            nics: 0,
            gpus_per_host: 0,
            data_bytes: 0,
            regions: 0,
            page_bytes: 4096,
            ..Site::default()
        };
        for site in [
            odd,
            Site {
                nodes: u64::MAX,
                clients: u64::MAX,
                data_bytes: u64::MAX,
                regions: u64::MAX,
                nics: u64::MAX,
                ..odd
            },
        ] {
            for row in rows(&site) {
                assert!(row.size >= 0.0 && !row.share.is_nan(), "{row:?}");
            }
            for bound in ceilings(&site).into_iter().flat_map(|ceiling| ceiling.limits) {
                assert!(bound.pages_per_second >= 0.0, "{bound:?}");
            }
        }
    }
}
