//! Running a test in a child process that finds the fake in the place of the libraries.

pub mod bed;
#[path = "../../../../common/child.rs"]
mod child;

use std::ffi::{CString, OsStr, c_char, c_int};
use std::panic::Location;
use std::path::{Path, PathBuf};

use child::{built_library, run_again};
use libloading::Library;

/// Set in a child: the test that it is to run.
const CHILD: &str = "GPUVM_FAKE_RDMA_CHILD";

/// What stands under a library's name.
#[derive(Clone, Copy)]
pub enum StandIn {
    /// The fake.
    Fake,
    /// A library that has none of the functions.
    Other,
    /// A file that is no library.
    Garbage,
}

/// Runs `body` in a process of its own that finds these for libibverbs.so.1 and libmlx5.so.1, with variables added to its
/// environment. To be the only thing that the test `name` does.
#[track_caller]
pub fn in_child(name: &str, libraries: [StandIn; 2], variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|found| found == name) {
        return body();
    }
    // The caller's module is named as its file.
    let module = Path::new(Location::caller().file())
        .file_stem()
        .expect("a file")
        .display();
    let full_name = format!("{module}::{name}");
    let folder = tempfile::tempdir().expect("a folder");
    for (library, stand_in) in ["libibverbs.so.1", "libmlx5.so.1"].into_iter().zip(libraries) {
        let place = folder.path().join(library);
        match stand_in {
            StandIn::Fake => std::os::unix::fs::symlink(built_library("libfake_rdma.so"), place).expect("a link"),
            StandIn::Other => std::os::unix::fs::symlink(other_library(), place).expect("a link"),
            StandIn::Garbage => std::fs::write(place, "this is no library\n".repeat(100)).expect("a file"),
        }
    }
    let mut paths = folder.path().as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
        paths.push(":");
        paths.push(others);
    }
    let mut all = vec![("LD_LIBRARY_PATH", paths.as_os_str()), (CHILD, OsStr::new(name))];
    all.extend(variables.iter().map(|(name, value)| (*name, OsStr::new(value))));
    run_again(&full_name, &all);
}

/// The C library, under the path by which this process has it.
fn other_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let found = paths.map(Path::new).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libc.so") || name.starts_with("libc-")
    });
    found.expect("a C library").to_owned()
}

/// The fake's controls, in a child.
pub struct Fake(Library);

impl Fake {
    pub fn new() -> Self {
        // SAFETY: the library is loaded already, by the bindings.
        Fake(unsafe { Library::new("libibverbs.so.1") }.expect("the fake"))
    }

    fn text(&self, function: &str) -> Vec<String> {
        // SAFETY: the type is that of the fake's functions.
        let ask = unsafe {
            self.0
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(function)
        };
        let ask = ask.expect("a function of the fake");
        // SAFETY: no room is given.
        let length = unsafe { ask(std::ptr::null_mut(), 0) };
        let mut text = vec![0u8; length];
        // SAFETY: the room is there.
        unsafe { ask(text.as_mut_ptr().cast(), length) };
        let text = String::from_utf8(text).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    /// Calls so far.
    pub fn log(&self) -> Vec<String> {
        self.text("fake_rdma_log")
    }

    pub fn breaches(&self) -> Vec<String> {
        self.text("fake_rdma_breaches")
    }

    /// What was made and not destroyed.
    pub fn live(&self) -> Vec<String> {
        self.text("fake_rdma_live")
    }

    /// Fails the n-th call of a name.
    pub fn fail(&self, name: &str, nth: u32, errno: c_int) {
        let name = CString::new(name).expect("no zero in it");
        // SAFETY: the type is that of the fake's function, and the name ends with a zero.
        unsafe {
            let fail = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u32, c_int)>("fake_rdma_fail");
            fail.expect("a function of the fake")(name.as_ptr(), nth, errno);
        }
    }

    /// Forgets calls, breaches and what was to fail.
    pub fn clear(&self) {
        // SAFETY: the type is that of the fake's function.
        unsafe {
            let clear = self.0.get::<unsafe extern "C" fn()>("fake_rdma_clear");
            clear.expect("a function of the fake")();
        }
    }

    /// Fails unless everything was torn down, in order.
    pub fn assert_clean(&self) {
        assert_eq!(self.live(), [""; 0], "left behind");
        assert_eq!(self.breaches(), [""; 0]);
    }
}
