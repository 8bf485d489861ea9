//! What the environment asks for.

use std::path::PathBuf;
use std::sync::OnceLock;

pub struct Config {
    pub log: Option<PathBuf>,
    pub fail: Option<String>,
    pub port_down: bool,
    pub another_down: bool,
    pub infiniband: bool,
    pub ignore_allocators: bool,
    pub entry_bytes: u32,
    pub request_blocks: u32,
    pub engines: usize,
}

/// The environment when this was first called.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let is = |name, value: &str| std::env::var(name).is_ok_and(|found| found == value);
        let number = |name, otherwise| {
            let found = std::env::var(name).ok();
            found.and_then(|found| found.parse().ok()).unwrap_or(otherwise)
        };
        Config {
            log: std::env::var_os("FAKE_RDMA_LOG").map(PathBuf::from),
            fail: std::env::var("FAKE_RDMA_FAIL").ok(),
            port_down: is("FAKE_RDMA_PORT", "down"),
            another_down: is("FAKE_RDMA_PORT", "another_down"),
            infiniband: is("FAKE_RDMA_LINK", "infiniband"),
            ignore_allocators: is("FAKE_RDMA_ALLOCATORS", "ignored"),
            entry_bytes: number("FAKE_RDMA_ENTRY_BYTES", 64),
            request_blocks: number("FAKE_RDMA_REQUEST_BLOCKS", 1),
            engines: number("FAKE_RDMA_ENGINES", 1) as usize,
        }
    })
}
