//! Memory that a process may have still: what the machine has, and what the limits of control groups leave, as those of containers and of
//! batch systems.

use std::fmt;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// From here on a limit is none: version 1 of control groups writes the largest number of whole pages.
const UNLIMITED: u64 = 1 << 60;

/// Where control groups are, by version, and what the files of a group are called.
const HIERARCHIES: [Hierarchy; 3] = [
    Hierarchy {
        root: "sys/fs/cgroup",
        controller: "",
        limits: &["memory.max", "memory.high"],
        used: "memory.current",
        files: ["inactive_file", "active_file"],
    },
    Hierarchy {
        root: "sys/fs/cgroup/unified",
        controller: "",
        limits: &["memory.max", "memory.high"],
        used: "memory.current",
        files: ["inactive_file", "active_file"],
    },
    Hierarchy {
        root: "sys/fs/cgroup/memory",
        controller: "memory",
        limits: &["memory.limit_in_bytes"],
        used: "memory.usage_in_bytes",
        files: ["total_inactive_file", "total_active_file"],
    },
];

struct Hierarchy {
    root: &'static str,
    /// As `/proc/self/cgroup` names it.
    controller: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// Pages of files in `memory.stat`, which go when memory is short.
    files: [&'static str; 2],
}

/// A limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The file that sets it.
    pub file: PathBuf,
    /// The bytes that it allows to all processes of the group.
    pub bytes: u64,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the limit of {} bytes in {}", self.bytes, self.file.display())
    }
}

/// Bytes that are left, and the limit that leaves no more if the machine has more. None where nothing is known.
pub fn available_memory() -> Option<(u64, Option<MemoryLimit>)> {
    available_under(Path::new("/"))
}

fn available_under(root: &Path) -> Option<(u64, Option<MemoryLimit>)> {
    let meminfo = read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let machine = meminfo.lines().find_map(|line| {
        let rest = line.strip_prefix("MemAvailable:")?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = HIERARCHIES.iter().flat_map(|hierarchy| hierarchy.left(root, &groups));
    let least = limits.min_by_key(|(left, _)| *left);
    match (machine.map(|kib| kib * 1024), least) {
        (Some(machine), Some((left, _))) if machine <= left => Some((machine, None)),
        (_, Some((left, limit))) => Some((left, Some(limit))),
        (machine, None) => machine.map(|machine| (machine, None)),
    }
}

fn number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

impl Hierarchy {
    /// What each limit leaves, of the process's group and of those that it is in. In a container the group's path may be that of the host,
    /// and the folder that is there is the container's own: the root is looked at in any case.
    fn left(&self, root: &Path, groups: &str) -> Vec<(u64, MemoryLimit)> {
        let own = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers
                .split(',')
                .any(|name| name == self.controller)
                .then_some(path)
        });
        let top = root.join(self.root);
        let own = top.join(own.unwrap_or_default().trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&top));
        folders.flat_map(|folder| self.left_in(folder)).collect()
    }

    fn left_in(&self, folder: &Path) -> Vec<(u64, MemoryLimit)> {
        let Some(used) = number(&folder.join(self.used)) else {
            return Vec::new();
        };
        let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let of_files = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            self.files.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
        });
        let held = used.saturating_sub(of_files.sum());
        let limits = self.limits.iter().filter_map(|name| {
            let file = folder.join(name);
            let bytes = number(&file).filter(|bytes| *bytes < UNLIMITED)?;
            Some((bytes.saturating_sub(held), MemoryLimit { file, bytes }))
        });
        limits.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_limit_of_any_group_above_counts_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(available_under(root), None);
        put(
            root,
            &[("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   8000 kB\n")],
        );
        assert_eq!(available_under(root), Some((8_192_000, None)));
        put(
            root,
            &[
                ("proc/self/cgroup", "0::/job/step\n"),
                ("sys/fs/cgroup/job/memory.max", "5000000\n"),
                ("sys/fs/cgroup/job/memory.high", "max\n"),
                ("sys/fs/cgroup/job/memory.current", "3000000\n"),
                (
                    "sys/fs/cgroup/job/memory.stat",
                    "anon 1\ninactive_file 500000\nactive_file 500000\n",
                ),
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
                ("sys/fs/cgroup/job/step/memory.high", "max\n"),
                ("sys/fs/cgroup/job/step/memory.current", "100\n"),
            ],
        );
        let (left, limit) = available_under(root).unwrap();
        let limit = limit.unwrap();
        assert_eq!((left, limit.bytes), (3_000_000, 5_000_000));
        assert!(limit.file.ends_with("job/memory.max"), "{limit}");
        // The soft limit of a group counts as well.
        put(root, &[("sys/fs/cgroup/job/step/memory.high", "1000100\n")]);
        assert_eq!(available_under(root).map(|(left, _)| left), Some(1_000_000));
        // Version 1, in a container whose path is that of the host.
        put(
            root,
            &[
                ("proc/self/cgroup", "4:cpu,memory:/docker/0123\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "700000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n"),
                ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100000\n"),
            ],
        );
        let (left, limit) = available_under(root).unwrap();
        assert_eq!((left, limit.map(|limit| limit.bytes)), (200_000, Some(700_000)));
        put(
            root,
            &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")],
        );
        assert_eq!(available_under(root), Some((8_192_000, None)));
    }
}
