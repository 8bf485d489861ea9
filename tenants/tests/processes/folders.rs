//! A registry folder that is full, read-only, stale, or taken away.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuvm_tenants::{DriverView, Folder, JoinError, Tenant};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::child::Process;
use crate::pool::Pool;
use crate::{HANG, MIB, Registry, ends, eventually, terms};

fn join(registry: &Registry) -> Result<Tenant, JoinError> {
    let pool = Arc::new(Pool::new(MIB, 0));
    Tenant::join(&registry.folder, &registry.gpu, terms(0, None, 0), pool)
}

/// An error with its causes.
fn told(error: &JoinError) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", cause.unwrap_or_default())
}

/// A file system of its own, which goes with this.
struct Mounted(PathBuf);

impl Mounted {
    /// Nothing where this process may not mount one.
    fn on(path: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let options = std::ffi::CString::new(format!("mode=700,{options}")).unwrap();
        match mount("none", path, "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Some(Self(path.to_owned())),
            Err(error) => {
                eprintln!("skipped: this process may not mount a file system ({error}); root may");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_folder_is_named_and_left_clean() {
    // Files that fit: the folder itself, the GPU's, then a lock and a socket.
    for (files, missing) in [(1, "registry/sim"), (2, ".lock"), (3, ".sock")] {
        let registry = Registry::new();
        let Some(_mounted) = Mounted::on(registry.folder.path(), &format!("nr_inodes={files}")) else {
            return;
        };
        let error = told(&join(&registry).unwrap_err());
        assert!(
            error.starts_with("cannot join the tenants of the GPU sim: cannot create"),
            "{error}"
        );
        assert!(
            error.contains(&format!("{missing}; its file system is full")),
            "{error}"
        );
        if files > 1 {
            assert_eq!(registry.files(), [""; 0]);
        }
        assert_eq!(registry.pids(), [0; 0]);
    }
    let registry = Registry::new();
    let _mounted = Mounted::on(registry.folder.path(), "nr_inodes=4").unwrap();
    let _tenant = join(&registry).unwrap();
    assert_eq!(registry.pids(), [std::process::id()]);
}

/// Reading a folder that cannot be written is no error; what the dead left there is not listed.
#[test]
fn a_read_only_folder_can_be_listed_and_not_joined() {
    let registry = Registry::new();
    let Some(_mounted) = Mounted::on(registry.folder.path(), "nr_inodes=100") else {
        return;
    };
    let folder = registry.folder.path();
    std::fs::create_dir(folder.join("sim")).unwrap();
    std::fs::write(folder.join("sim/7-0000000000000007.lock"), "").unwrap();
    mount_remount(folder, MountFlags::RDONLY, c"").unwrap();
    let error = told(&join(&registry).unwrap_err());
    assert!(error.contains(".lock; its file system is read-only"), "{error}");
    // The dead one is not listed, although its file cannot be removed.
    let listed = || {
        gpuvm_tenants::tenants(&registry.folder, &registry.gpu.key)
            .unwrap()
            .len()
    };
    assert_eq!((listed(), registry.files().len()), (0, 1));
    mount_remount(folder, MountFlags::empty(), c"").unwrap();
    assert_eq!(listed(), 0);
    assert_eq!(registry.files(), [""; 0]);
}

#[test]
fn a_folder_without_the_right_to_write_is_named() {
    let registry = Registry::new();
    drop(join(&registry).unwrap());
    let gpu = registry.folder.path().join("sim");
    std::fs::set_permissions(&gpu, std::fs::Permissions::from_mode(0o500)).unwrap();
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write everywhere");
        return;
    }
    let error = told(&join(&registry).unwrap_err());
    assert!(error.contains(".lock; this process may not write there"), "{error}");
    assert_eq!(registry.pids(), [0; 0]);
}

#[test]
fn what_the_dead_left_is_in_nobodys_way() {
    let registry = Registry::new();
    let gpu = registry.folder.path().join("sim");
    drop(join(&registry).unwrap());
    std::fs::write(gpu.join("7-0000000000000007.lock"), "").unwrap();
    drop(UnixListener::bind(gpu.join("7-0000000000000007.sock")).unwrap());
    drop(UnixListener::bind(gpu.join("8-0000000000000008.sock")).unwrap());
    // Names that could stop somebody who opens them without care.
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        gpu.join("9-0000000000000009.lock"),
        rustix::fs::Mode::RUSR,
    )
    .unwrap();
    std::os::unix::fs::symlink("/dev/tty", gpu.join("10-000000000000000a.lock")).unwrap();
    std::fs::create_dir(gpu.join("11-000000000000000b.lock")).unwrap();
    let tenant = join(&registry).unwrap();
    let found = ends("asking in a stale folder", move || {
        let refused = tenant.ask(MIB, HANG, DriverView::default).unwrap_err().to_string();
        (tenant, refused)
    });
    assert!(found.1.contains("0 B are available"), "{}", found.1);
    assert_eq!(registry.pids(), [std::process::id()]);
    assert!(
        !registry
            .files()
            .iter()
            .any(|file| file.starts_with("7-") || file.starts_with("8-"))
    );
}

#[test]
fn a_tenant_whose_entry_was_removed_enters_again() {
    let registry = Registry::new();
    let tenant = join(&registry).unwrap();
    let low = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    let mut both = [std::process::id(), low.pid()];
    both.sort_unstable();
    assert_eq!(sorted(registry.pids()), both);
    std::fs::remove_dir_all(registry.folder.path()).unwrap();
    eventually("both are listed again", || sorted(registry.pids()) == both);
    assert_eq!(
        tenant.ask(MIB, HANG, DriverView::default).unwrap().given,
        [(low.pid(), MIB)]
    );
    drop(tenant);
    low.leave();
    assert_eq!(registry.files(), [""; 0]);
}

fn sorted(mut pids: Vec<u32>) -> Vec<u32> {
    pids.sort_unstable();
    pids
}

#[test]
fn a_folder_with_a_long_name_has_room_for_sockets() {
    let registry = Registry::new();
    // The address of a socket has 108 bytes.
    let long = registry.above.path().join("x".repeat(200));
    let folder = Folder::at(&long);
    let tenant = Tenant::join(&folder, &registry.gpu, terms(0, None, 0), Arc::new(Pool::default())).unwrap();
    let peers = gpuvm_tenants::tenants(&folder, &registry.gpu.key).unwrap();
    assert!(peers.len() == 1 && peers[0].answer.is_ok(), "{peers:?}");
    drop(tenant);
}

#[test]
fn a_link_in_the_place_of_the_folder_is_not_followed() {
    let registry = Registry::new();
    let target = registry.above.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&target, registry.folder.path()).unwrap();
    let error = told(&join(&registry).unwrap_err());
    assert!(
        error.contains("is a symbolic link, which gpuvm does not follow there"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
}
