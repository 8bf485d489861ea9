//! What a machine is like.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;

/// What a machine is like.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its host name, also in errors.
    pub name: String,
    /// Its processors.
    pub cpus: u32,
    /// Its memory.
    pub memory_mib: u32,
    /// How long it may take to start.
    pub boot_limit: Duration,
    /// Its NVMe disks, in MiB: /dev/nvme0n1 and so on, all zeros at first.
    pub disks_mib: Vec<u32>,
    /// The program with the command `agent`; else `softroce` beside the running program or one folder above.
    pub agent: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "a".into(),
            cpus: 2,
            memory_mib: 3072,
            boot_limit: Duration::from_secs(120),
            disks_mib: Vec::new(),
            agent: None,
        }
    }
}

impl Options {
    pub(crate) fn agent(&self) -> Result<PathBuf, Error> {
        if let Some(agent) = &self.agent {
            return std::fs::canonicalize(agent).map_err(Error::file("find the agent", agent));
        }
        let program = std::env::current_exe().map_err(Error::file("find", "the running program"))?;
        // Test programs are in `deps`, below the folder of the programs.
        let beside = program
            .ancestors()
            .skip(1)
            .take(2)
            .map(|folder| folder.join("softroce"));
        beside
            .into_iter()
            .find(|file| file.is_file())
            .ok_or_else(|| Error::File {
                what: "find the agent `softroce` (cargo build -p gpuvm-softroce) beside",
                path: program,
                source: std::io::ErrorKind::NotFound.into(),
            })
    }
}
