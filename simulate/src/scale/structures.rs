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
    let rate = site.links().min(HOST_LINK_BYTES_PER_SECOND);
    rate * site.latency_us * 1e-6 * Queues::LOADED / site.page_bytes.max(1) as f64
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

fn completions_of_a_queue(site: &Site) -> f64 {
    let clients = site.clients.min(limits::CLIENTS_PER_COMPLETION_QUEUE.into());
    clients as f64 * f64::from(limits::COMPLETIONS_PER_CLIENT)
}

/// Calling all nodes that are lost, some at once.
fn calls_seconds(site: &Site) -> f64 {
    let lost = (site.nodes as f64 * site.lost_percent as f64 / 100.0).ceil();
    (lost / gpuvm::NODES_CALLED_AT_ONCE as f64).ceil() * MemoryNodes::TIMEOUT_BY_DEFAULT.as_secs_f64()
}

fn usual_node() -> ServeOptions {
    ServeOptions::new(Backing::Plain(1 << 30))
}

/// Makes the table: a name, what its size counts and grows with, where its limit comes from; its size and its limit at a site.
macro_rules! structures {
    ($($name:literal, $unit:ident by $axis:ident, $limited_by:literal: $size:expr, $limit:expr;)*) => {
        /// All of them. Those of a GPU, of a client's process and host, and of a node.
        pub(super) const ALL: &[Structure] = &[$(Structure {
            name: $name,
            unit: Unit::$unit,
            axis: Axis::$axis,
            limited_by: $limited_by,
            size: $size,
            limit: $limit,
        }),*];
    };
}

structures! {
    "queue pairs of a client", Count by Nodes, "layouts: QUEUES_MAX":
        queue_pairs, |_| layout::QUEUES_MAX.into();
    "requests in flight that fill a GPU's link", Count by Nics, "queue pairs by READs in flight of each":
        wanted_in_flight, |site| queue_pairs(site) * f64::from(NIC.reads_per_queue_pair);
    "rings and records of queue pairs, GPU memory", Bytes by Nodes, "a sixteenth of the GPU's memory":
        queue_bytes, gpu_tables;
    "page tables, GPU memory", Bytes by Data, "a sixteenth of the GPU's memory":
        |site| pages_of(site.data_bytes, site) * size_of::<u64>() as f64, gpu_tables;
    "stripe tables, GPU memory", Bytes by Nodes, "a sixteenth of the GPU's memory":
        stripe_bytes, gpu_tables;
    "regions of a client", Count by Regions, "layouts: REGIONS_MAX":
        |site| site.regions as f64, |_| layout::REGIONS_MAX.into();
    "pages of a region", Count by Data, "layouts: REGION_PAGES_MAX":
        |site| pages_of(site.data_bytes / site.regions.max(1), site), |_| layout::REGION_PAGES_MAX as f64;
    "threads of a client's process", Count by Nodes, "kernel.pid_max, Linux's default":
        |site| site.nodes as f64 * limits::CLIENT_THREADS_PER_NODE as f64, |_| THREADS_MAX;
    "files of a client's process", Count by Nodes, "ulimit -Hn, systemd's default":
        |site| site.nodes as f64 * limits::CLIENT_FILES_PER_NODE as f64, |_| FILES_MAX;
    "pinned memory for nodes, a client's host", Bytes by Nodes, "a sixteenth of the host's memory":
        |site| clients_on_host(site) * site.nodes as f64 * limits::CLIENT_BYTES_PER_NODE as f64, host_tables;
    "clients of a node", Count by Clients, "memory_node: CLIENTS_MAX":
        |site| site.clients as f64, |_| limits::CLIENTS_MAX.into();
    "completions of clients in one queue of a node", Count by Clients, "memory_node: COMPLETION_ENTRIES_MAX":
        completions_of_a_queue, |_| limits::COMPLETION_ENTRIES_MAX.into();
    "queue pairs of a node", Count by Clients, "2^18 for each of its NICs":
        |site| site.clients as f64 * (site.pairs() + 1.0), |site| site.nics.max(1) as f64 * DEVICE_QUEUE_PAIRS_MAX;
    "pinned memory for messages, a node", Bytes by Clients, "a sixteenth of the host's memory":
        |site| site.clients as f64 * limits::NODE_BYTES_PER_CLIENT as f64, host_tables;
    "grants of a client at a node", Count by Regions, "memory_node: grants_per_client_max, its default":
        grants, |_| usual_node().grants_per_client_max.into();
    "memory regions of a node", Count by Clients, "2^24 keys for each of its NICs":
        |site| site.clients as f64 * (grants(site) + 1.0), |site| site.nics.max(1) as f64 * DEVICE_REGIONS_MAX;
    "memory of a node", Bytes by Data, "the host's memory":
        Site::bytes_at_node, |site| site.host_memory_bytes as f64;
    "calling the nodes that are lost", Seconds by Nodes, "the longest pause between two tries":
        calls_seconds, |_| CALLS_SECONDS_MAX;
    "catching up with a node that has returned", Seconds by Data, "10 minutes without a second copy":
        |site| site.bytes_at_node() / site.links(), |_| CATCH_UP_SECONDS_MAX;
}

/// All structures at a site, that which is nearest to its limit, or farthest beyond it, first.
pub fn rows(site: &Site) -> Vec<Row> {
    let mut rows: Vec<Row> = ALL.iter().map(|structure| structure.row(site)).collect();
    rows.sort_by(|a, b| b.share.total_cmp(&a.share));
    rows
}
