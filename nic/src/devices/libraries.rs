//! Which shared libraries the loader finds.

use std::ffi::CString;
use std::path::PathBuf;

use super::machine::Machine;

/// The file that the loader takes for the library `name`, such as `libmlx5.so.1`; `None` where it cannot be loaded.
///
/// The library is loaded and stays so: those of verbs providers cannot be unloaded, since libibverbs keeps what they
/// register.
pub fn loadable(name: &str) -> Option<PathBuf> {
    let c_name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero and lives through the call. Loading runs the library's initialisers; libraries of the
    // system are trusted with that, as when a program is linked to them.
    let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    // The mapping has the name behind all links, which carries the version.
    let maps = Machine::default().text("proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let found = files.map(PathBuf::from).find(|file| {
        file.file_name()
            .is_some_and(|file| is_named(&file.to_string_lossy(), name))
    });
    Some(found.unwrap_or_else(|| PathBuf::from(name)))
}

/// `libmlx5.so.1.25.56.0` is a `libmlx5.so.1`, `libmlx5.so.12` is none.
fn is_named(file: &str, name: &str) -> bool {
    file.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_there_and_nonsense_is_not() {
        let found = loadable("libc.so.6").expect("every program has it");
        assert!(found.is_absolute(), "{}", found.display());
        assert_eq!(loadable("libno-such-library.so.1"), None);
        assert_eq!(loadable("lib\0.so"), None);
        assert!(is_named("libmlx5.so.1.25.56.0", "libmlx5.so.1"));
        assert!(!is_named("libmlx5.so.12", "libmlx5.so.1"));
    }
}
