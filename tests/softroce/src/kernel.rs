//! The kernel that machines boot: unpacked from distribution packages into a cache folder, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::initramfs::Archive;
use crate::tools;

/// The package whose dependency is the kernel of the day, with all drivers.
const PACKAGE: &str = "linux-image-amd64";

/// Modules by what they are for; what they depend on is found. Those that a kernel does not have are left out:
/// it has them built in, or does not need them (crc32_generic from 7.x on).
const MODULES: [&str; 15] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "dummy",
    "sch_netem",
    // Without it rxe of kernels up to 6.12 makes no device and says ENOENT.
    "crc32_generic",
    "ib_uverbs",
    "rdma_cm",
    "rdma_ucm",
    "rdma_rxe",
    "udp_tunnel",
    "ip6_udp_tunnel",
];

/// Those that machines with disks load besides.
const DISK_MODULES: [&str; 6] = ["nvme", "crc32c_generic", "ext4", "dm_mod", "dm_flakey", "dm_log_writes"];

/// A kernel and its first file system, ready to boot.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// The kernel's image.
    pub(crate) image: PathBuf,
    /// busybox, modules and the first program.
    pub(crate) initramfs: PathBuf,
    /// The folder of the modules for disks.
    pub(crate) disk_modules: PathBuf,
}

/// The cache folder: `GPUVM_SOFTROCE_CACHE`, or `softroce` in cargo's target folder.
pub(crate) fn cache_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("GPUVM_SOFTROCE_CACHE").filter(|folder| !folder.is_empty()) {
        return PathBuf::from(folder);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    let target = target.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    target.join("softroce")
}

impl Kernel {
    /// The kernel from the cache, which is filled when it is empty (one download of about 70 MB).
    ///
    /// # Errors
    /// [`Error::NoKernel`] where the package is not available, [`Error::MissingProgram`] for a tool that unpacks it.
    pub(crate) fn get() -> Result<Self, Error> {
        let wanted = std::env::var("GPUVM_SOFTROCE_KERNEL")
            .ok()
            .filter(|name| !name.is_empty());
        let wanted = wanted.unwrap_or_else(|| PACKAGE.to_owned());
        let cache = cache_folder();
        fs::create_dir_all(&cache).map_err(Error::file("create the folder", &cache))?;
        let cache = fs::canonicalize(&cache).map_err(Error::file("find the folder", &cache))?;
        // The name of a package file has its version.
        let key = Path::new(&wanted)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let folder = cache.join(format!("kernel-{key}"));
        let kernel = Self {
            image: folder.join("kernel"),
            initramfs: folder.join("initramfs"),
            disk_modules: folder.join("disk_modules"),
        };
        let complete = kernel.image.is_file() && kernel.disk_modules.join("order").is_file();
        if !complete {
            unpack(&wanted, &cache, &folder)?;
        }
        write_initramfs(&folder)?;
        Ok(kernel)
    }
}

/// Fills `folder` with the kernel and its modules. Another process may do the same at the same time: the first wins.
fn unpack(wanted: &str, cache: &Path, folder: &Path) -> Result<(), Error> {
    let no_kernel = |why: String| Error::NoKernel {
        package: wanted.to_owned(),
        why,
    };
    let (dpkg, depmod, modprobe) = (
        tools::find("dpkg-deb", "dpkg")?,
        tools::find("depmod", "kmod")?,
        tools::find("modprobe", "kmod")?,
    );
    remove_leftovers(cache);
    let prefix = format!("{UNPACKING}{}-", std::process::id());
    let part = tempfile::Builder::new().prefix(&prefix).tempdir_in(cache);
    let part = part.map_err(Error::file("create a folder in", cache))?;
    let file = if Path::new(wanted).is_file() {
        fs::canonicalize(wanted).map_err(Error::file("find the file", wanted))?
    } else {
        download(wanted, part.path())?
    };
    let root = part.path().join("root");
    tools::output(
        &dpkg,
        &["-x", &file.to_string_lossy(), &root.to_string_lossy()],
        part.path(),
    )?;

    let image = first(&root.join("boot"), |name| name.starts_with("vmlinuz-"))
        .ok_or_else(|| no_kernel("it holds no boot/vmlinuz-*; name a package that holds a kernel".to_owned()))?;
    let version = image
        .file_name()
        .map(|name| name.to_string_lossy().replacen("vmlinuz-", "", 1))
        .unwrap_or_default();
    // Debian's newer packages keep modules below usr/lib; the tools look in lib.
    if !root.join("lib").exists() && root.join("usr/lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib")).map_err(Error::file("link", root.join("lib")))?;
    }
    let root_text = root.to_string_lossy().into_owned();
    tools::output(&depmod, &["-b", &root_text, &version], part.path())?;

    let ready = part.path().join("ready");
    let depends = ["-C", "/dev/null", "-d", &root_text, "-S", &version, "--show-depends"];
    let steps_of = |module: &str| tools::text(&modprobe, &[&depends[..], &[module]].concat(), part.path()).ok();
    let order = copy_modules(&MODULES, steps_of, &ready.join("modules"))?;
    copy_modules(&DISK_MODULES, steps_of, &ready.join("disk_modules"))?;
    if !order.iter().any(|name| name == "rdma_rxe.ko") {
        return Err(no_kernel(format!(
            "its kernel {version} has no module rdma_rxe (\"cloud\" flavours leave it out)"
        )));
    }
    let packed = fs::read(&image).map_err(Error::file("read", &image))?;
    // Emulated processors would take seconds to unpack it, at each start.
    let plain = unpacked(&packed, part.path()).unwrap_or(packed);
    let image = ready.join("kernel");
    fs::write(&image, plain).map_err(Error::file("write", &image))?;
    // One that an earlier version unpacked, without the modules for disks.
    if folder.join("kernel").is_file() && !folder.join("disk_modules/order").is_file() {
        fs::remove_dir_all(folder).map_err(Error::file("replace", folder))?;
    }
    match fs::rename(&ready, folder) {
        Err(error) if !folder.join("kernel").is_file() => Err(Error::file("create the folder", folder)(error)),
        _ => Ok(()),
    }
}

/// Copies modules, and those that they need, as `steps_of` lists them, to a new folder. Their names, in the order in which they are loaded,
/// which its file `order` has, too. A module that the kernel has not is left out.
fn copy_modules(
    wanted: &[&str],
    steps_of: impl Fn(&str) -> Option<String>,
    folder: &Path,
) -> Result<Vec<String>, Error> {
    fs::create_dir_all(folder).map_err(Error::file("create the folder", folder))?;
    let mut order: Vec<String> = Vec::new();
    for steps in wanted.iter().filter_map(|module| steps_of(module)) {
        for path in steps.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let name = copy_module(Path::new(path.trim()), folder)?;
            if !order.contains(&name) {
                order.push(name);
            }
        }
    }
    let order_file = folder.join("order");
    fs::write(&order_file, order.join("\n") + "\n").map_err(Error::file("write", &order_file))?;
    Ok(order)
}

/// The ELF file inside a bzImage; `None` where it is not found or its compression has no tool here. Offsets are those of
/// the kernel's Documentation/arch/x86/boot.rst.
fn unpacked(image: &[u8], folder: &Path) -> Option<Vec<u8>> {
    let payload = payload(image)?;
    let (tool, package) = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", "xz-utils"),
        [0x1f, 0x8b, ..] => ("gzip", "gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", "zstd"),
        _ => return None,
    };
    let file = folder.join("payload");
    // The last four bytes are the unpacked size, which the tools would take for damage.
    fs::write(&file, &payload[..payload.len() - 4]).ok()?;
    let plain = tools::output(
        &tools::find(tool, package).ok()?,
        &["-dc", &file.to_string_lossy()],
        folder,
    )
    .ok()?;
    plain.starts_with(b"\x7fELF").then_some(plain)
}

/// The compressed part of a bzImage.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let from = (setup_sectors + 1) * 512 + word(0x248)?;
    let payload = image.get(from..from.checked_add(word(0x24c)?)?)?;
    (payload.len() > 4).then_some(payload)
}

/// Begins the names of folders in which a process unpacks; its id follows.
const UNPACKING: &str = "unpacking-";

/// Removes what processes left that were ended while they unpacked: some 400 MB each.
fn remove_leftovers(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(UNPACKING).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Fetches the package, or what it depends on where it is only a name for the newest one. Returns its file.
fn download(wanted: &str, folder: &Path) -> Result<PathBuf, Error> {
    let advice = "apt must know it (apt-get update), on Debian; elsewhere set GPUVM_SOFTROCE_KERNEL to the file of a \
        Debian package linux-image-*-amd64";
    let no_kernel = |error: Error| Error::NoKernel {
        package: wanted.to_owned(),
        why: format!("{advice}. {error}"),
    };
    let (apt_get, apt_cache) = (tools::find("apt-get", "apt")?, tools::find("apt-cache", "apt")?);
    let depends = tools::text(&apt_cache, &["depends", wanted], folder).map_err(no_kernel)?;
    let real = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"));
    tools::output(&apt_get, &["download", real.unwrap_or(wanted)], folder).map_err(no_kernel)?;
    first(folder, |name| name.ends_with(".deb")).ok_or_else(|| Error::NoKernel {
        package: wanted.to_owned(),
        why: "apt-get download left no file".to_owned(),
    })
}

/// Copies a module, unpacked, and returns its plain name.
fn copy_module(source: &Path, folder: &Path) -> Result<String, Error> {
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let target = folder.join(&name);
    fs::copy(source, &target).map_err(Error::file("copy", source))?;
    let Some(plain) = name.strip_suffix(".xz") else {
        return Ok(name);
    };
    let xz = tools::find("xz", "xz-utils")?;
    tools::output(&xz, &["-d", "-f", &target.to_string_lossy()], folder)?;
    Ok(plain.to_owned())
}

/// Packs busybox, modules and the first program. Made anew each time: it takes milliseconds and is never stale.
fn write_initramfs(folder: &Path) -> Result<(), Error> {
    let busybox = tools::find("busybox", "busybox-static")?;
    let modules = folder.join("modules");
    let read = |path: &Path| fs::read(path).map_err(Error::file("read", path));
    let mut archive = Archive::new();
    for name in ["bin", "dev", "proc", "sys", "modules"] {
        archive.folder(name);
    }
    archive.file("bin/busybox", 0o755, &read(&busybox)?);
    archive.file("init", 0o755, include_bytes!("init.sh"));
    add_modules(&mut archive, &modules, "modules")?;
    // Put in place whole: another process may be booting from it.
    let target = folder.join("initramfs");
    let part = tempfile::NamedTempFile::new_in(folder).map_err(Error::file("create a file in", folder))?;
    fs::write(part.path(), archive.finish()).map_err(Error::file("write", part.path()))?;
    part.persist(&target)
        .map_err(|error| Error::file("write", &target)(error.error))?;
    Ok(())
}

/// Adds the modules of a folder to an archive's folder, which is there.
pub(crate) fn add_modules(archive: &mut Archive, folder: &Path, place: &str) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::file("read the folder", folder))? {
        let path = entry.map_err(Error::file("read the folder", folder))?.path();
        let content = fs::read(&path).map_err(Error::file("read", &path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.file(&format!("{place}/{name}"), 0o644, &content);
    }
    Ok(())
}

/// The first file of a folder, by name, whose name fits.
fn first(folder: &Path, fits: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    names
        .into_iter()
        .find(|name| fits(&name.to_string_lossy()))
        .map(|name| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with one sector of set-up code and a payload of eight bytes after four others.
    fn image() -> Vec<u8> {
        let mut image = vec![0; 1024 + 12];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&4_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&8_u32.to_le_bytes());
        image[1028..].copy_from_slice(b"payload!");
        image
    }

    #[test]
    fn leftovers_of_ended_processes_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        let own = cache.path().join(format!("{UNPACKING}{}-x", std::process::id()));
        // Process ids end below 2^22.
        let ended = cache.path().join(format!("{UNPACKING}4194305-x"));
        let kernel = cache.path().join("kernel-x");
        for folder in [&own, &ended, &kernel] {
            fs::create_dir(folder).unwrap();
        }
        remove_leftovers(cache.path());
        assert!(own.exists() && kernel.exists() && !ended.exists());
    }

    #[test]
    fn the_payload_of_an_image_is_found() {
        assert_eq!(payload(&image()), Some(&b"payload!"[..]));
    }

    #[test]
    fn a_damaged_image_has_no_payload() {
        let whole = image();
        for length in 0..whole.len() {
            assert_eq!(payload(&whole[..length]), None, "of {length} bytes");
        }
        let mut wild = whole.clone();
        wild[0x24c..0x250].fill(0xff);
        assert_eq!(payload(&wild), None);
        let mut other = whole;
        other[0x202] = b'X';
        assert_eq!(payload(&other), None);
    }
}
