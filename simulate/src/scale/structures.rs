//! The structures, each with its size and its limit.

use gpuvm_layouts::{QueueDesc, QueueState, RequestRecord, StripeDesc};

use super::*;

/// Bytes of a queue pair's rings for a request, as the runtime counts them: a work request, its completion, and what aligns them.
const RING_BYTES_PER_REQUEST: f64 = 256.0;

fn queue_pairs(site: &Site) -> f64 {
    site.pairs() * site.homes() as f64
}

/// Memory of a GPU for its tables.
fn gpu_tables(site: &Site) -> f64 {
    site.gpu_memory_bytes as f64 * TABLES_SHARE
}

/// Memory of a host for what it keeps for others.
fn host_tables(site: &Site) -> f64 {
    site.host_memory_bytes as f64 * TABLES_SHARE
}

fn queue_bytes(site: &Site) -> f64 {
    let request = RING_BYTES_PER_REQUEST + size_of::<RequestRecord>() as f64;
    let pair =
        f64::from(Queues::DEPTH_BY_DEFAULT) * request + (size_of::<QueueDesc>() + size_of::<QueueState>()) as f64;
    queue_pairs(site) * pair
}

/// Pages in flight that keep a client's link busy, by Little's law. A GPU gets no more than its own link carries, whatever NICs there are.
fn wanted_in_flight(site: &Site) -> f64 {
    let rate = (site.nics as f64 * NIC_BYTES_PER_SECOND).min(HOST_LINK_BYTES_PER_SECOND);
    rate * site.latency_us * 1e-6 * LOADED / site.page_bytes.max(1) as f64
}

fn stripe_bytes(site: &Site) -> f64 {
    let regions = site.regions.max(1);
    let pages = (site.data_bytes / regions).div_ceil(site.page_bytes.max(1));
    let stripes = site.nodes.min(pages) as f64;
    stripes * (regions * site.replicas.max(1).min(u64::MAX / regions)) as f64 * size_of::<StripeDesc>() as f64
}

fn pages_of(bytes: u64, site: &Site) -> f64 {
    bytes.div_ceil(site.page_bytes.max(1)) as f64
}

/// Grants of one client at a node: one for each region and replica.
fn grants(site: &Site) -> f64 {
    site.regions as f64 * site.replicas as f64
}

fn clients_on_host(site: &Site) -> f64 {
    site.gpus_per_host.min(site.clients) as f64
}

fn lost(site: &Site) -> f64 {
    (site.nodes as f64 * site.lost_percent as f64 / 100.0).ceil()
}

fn usual_node() -> ServeOptions {
    ServeOptions::new(Backing::Plain(1 << 30))
}

/// All of them. Those of a GPU, of a client's process and host, and of a node.
pub(super) const ALL: &[Structure] = &[
    Structure {
        name: "queue pairs of a client",
        unit: Unit::Count,
        axis: Axis::Nodes,
        limited_by: "layouts: QUEUES_MAX",
        size: queue_pairs,
        limit: |_| layout::QUEUES_MAX.into(),
    },
    Structure {
        name: "requests in flight that fill a GPU's link",
        unit: Unit::Count,
        axis: Axis::Nics,
        limited_by: "queue pairs by READs in flight of each",
        size: wanted_in_flight,
        limit: |site| queue_pairs(site) * READS_PER_QUEUE_PAIR,
    },
    Structure {
        name: "rings and records of queue pairs, GPU memory",
        unit: Unit::Bytes,
        axis: Axis::Nodes,
        limited_by: "a sixteenth of the GPU's memory",
        size: queue_bytes,
        limit: gpu_tables,
    },
    Structure {
        name: "page tables, GPU memory",
        unit: Unit::Bytes,
        axis: Axis::Data,
        limited_by: "a sixteenth of the GPU's memory",
        size: |site| pages_of(site.data_bytes, site) * size_of::<u64>() as f64,
        limit: gpu_tables,
    },
    Structure {
        name: "stripe tables, GPU memory",
        unit: Unit::Bytes,
        axis: Axis::Nodes,
        limited_by: "a sixteenth of the GPU's memory",
        size: stripe_bytes,
        limit: gpu_tables,
    },
    Structure {
        name: "regions of a client",
        unit: Unit::Count,
        axis: Axis::Regions,
        limited_by: "layouts: REGIONS_MAX",
        size: |site| site.regions as f64,
        limit: |_| layout::REGIONS_MAX.into(),
    },
    Structure {
        name: "pages of a region",
        unit: Unit::Count,
        axis: Axis::Data,
        limited_by: "layouts: REGION_PAGES_MAX",
        size: |site| pages_of(site.data_bytes / site.regions.max(1), site),
        limit: |_| layout::REGION_PAGES_MAX as f64,
    },
    Structure {
        name: "threads of a client's process",
        unit: Unit::Count,
        axis: Axis::Nodes,
        limited_by: "kernel.pid_max, Linux's default",
        size: |site| site.nodes as f64 * limits::CLIENT_THREADS_PER_NODE as f64,
        limit: |_| THREADS_MAX,
    },
    Structure {
        name: "files of a client's process",
        unit: Unit::Count,
        axis: Axis::Nodes,
        limited_by: "ulimit -Hn, systemd's default",
        size: |site| site.nodes as f64 * limits::CLIENT_FILES_PER_NODE as f64,
        limit: |_| FILES_MAX,
    },
    Structure {
        name: "pinned memory for nodes, a client's host",
        unit: Unit::Bytes,
        axis: Axis::Nodes,
        limited_by: "a sixteenth of the host's memory",
        size: |site| clients_on_host(site) * site.nodes as f64 * limits::CLIENT_BYTES_PER_NODE as f64,
        limit: host_tables,
    },
    Structure {
        name: "clients of a node",
        unit: Unit::Count,
        axis: Axis::Clients,
        limited_by: "memory_node: CLIENTS_MAX",
        size: |site| site.clients as f64,
        limit: |_| limits::CLIENTS_MAX.into(),
    },
    Structure {
        name: "completions of clients in one queue of a node",
        unit: Unit::Count,
        axis: Axis::Clients,
        limited_by: "memory_node: COMPLETION_ENTRIES_MAX",
        size: |site| {
            let clients = site.clients.min(limits::CLIENTS_PER_COMPLETION_QUEUE.into());
            clients as f64 * f64::from(limits::COMPLETIONS_PER_CLIENT)
        },
        limit: |_| limits::COMPLETION_ENTRIES_MAX.into(),
    },
    Structure {
        name: "queue pairs of a node",
        unit: Unit::Count,
        axis: Axis::Clients,
        limited_by: "2^18 for each of its NICs",
        size: |site| site.clients as f64 * (site.pairs() + 1.0),
        limit: |site| site.nics.max(1) as f64 * DEVICE_QUEUE_PAIRS_MAX,
    },
    Structure {
        name: "pinned memory for messages, a node",
        unit: Unit::Bytes,
        axis: Axis::Clients,
        limited_by: "a sixteenth of the host's memory",
        size: |site| site.clients as f64 * limits::NODE_BYTES_PER_CLIENT as f64,
        limit: host_tables,
    },
    Structure {
        name: "grants of a client at a node",
        unit: Unit::Count,
        axis: Axis::Regions,
        limited_by: "memory_node: grants_per_client_max, its default",
        size: grants,
        limit: |_| usual_node().grants_per_client_max.into(),
    },
    Structure {
        name: "memory regions of a node",
        unit: Unit::Count,
        axis: Axis::Clients,
        limited_by: "2^24 keys for each of its NICs",
        size: |site| site.clients as f64 * (grants(site) + 1.0),
        limit: |site| site.nics.max(1) as f64 * DEVICE_REGIONS_MAX,
    },
    Structure {
        name: "memory of a node",
        unit: Unit::Bytes,
        axis: Axis::Data,
        limited_by: "the host's memory",
        size: Site::bytes_at_node,
        limit: |site| site.host_memory_bytes as f64,
    },
    Structure {
        name: "calling the nodes that are lost",
        unit: Unit::Seconds,
        axis: Axis::Nodes,
        limited_by: "the longest pause between two tries",
        size: |site| {
            (lost(site) / gpuvm::NODES_CALLED_AT_ONCE as f64).ceil() * MemoryNodes::TIMEOUT_BY_DEFAULT.as_secs_f64()
        },
        limit: |_| CALLS_SECONDS_MAX,
    },
    Structure {
        name: "catching up with a node that has returned",
        unit: Unit::Seconds,
        axis: Axis::Data,
        limited_by: "10 minutes without a second copy",
        size: |site| site.bytes_at_node() / (site.nics.max(1) as f64 * NIC_BYTES_PER_SECOND),
        limit: |_| CATCH_UP_SECONDS_MAX,
    },
];

/// All structures at a site, that which is nearest to its limit, or farthest beyond it, first.
pub fn rows(site: &Site) -> Vec<Row> {
    let mut rows: Vec<Row> = ALL.iter().map(|structure| structure.row(site)).collect();
    rows.sort_by(|a, b| b.share.total_cmp(&a.share));
    rows
}
