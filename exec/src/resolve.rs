//! Which of the served functions a program means.

use std::ffi::{CStr, CString, c_int, c_void};

/// A function of the driver's that is served.
pub struct Served {
    /// Its name in the library.
    pub symbol: &'static CStr,
    /// The name by which `cuGetProcAddress` has it.
    pub base: &'static str,
    /// The first version of CUDA that has it, as in 12020.
    pub version: c_int,
    /// Its default stream is the thread's.
    pub per_thread: bool,
    /// What is called instead.
    pub ours: *const (),
}

// SAFETY: the addresses are functions'.
unsafe impl Sync for Served {}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// What is served for a name of the library.
pub fn by_name(served: &[Served], symbol: &CStr) -> Option<*const ()> {
    if !symbol.to_bytes().starts_with(b"cu") {
        return None;
    }
    served
        .iter()
        .find(|served| served.symbol == symbol)
        .map(|served| served.ours)
}

/// What is served in place of `found`, which the driver gave for a name, a version of CUDA and flags. `library` finds functions by their names in
/// the library.
pub fn by_version(
    served: &[Served],
    name: &CStr,
    (version, flags): (c_int, u64),
    found: *mut c_void,
    library: impl Fn(&CStr) -> *mut c_void,
) -> Option<*const ()> {
    let base = name.to_str().ok()?;
    let of_name = || {
        served
            .iter()
            .filter(|served| served.base == base || served.symbol == name)
    };
    of_name().next()?;
    // The driver mostly gives what the library has by that name.
    if let Some(same) = of_name().find(|served| library(served.symbol) == found) {
        return Some(same.ours);
    }
    let others = ["", "_v2", "_v3", "_v4"]
        .iter()
        .flat_map(|version| ["", "_ptsz", "_ptds"].map(|stream| format!("{base}{version}{stream}")));
    let is_other = |name: String| CString::new(name).is_ok_and(|name| library(&name) == found);
    if others.into_iter().any(is_other) {
        // Newer than what is served, with other arguments.
        return None;
    }
    let per_thread = flags & PER_THREAD != 0 && of_name().any(|served| served.per_thread);
    let fits = |served: &&Served| {
        served.per_thread == per_thread && served.version <= version && !library(served.symbol).is_null()
    };
    of_name()
        .filter(fits)
        .max_by_key(|served| served.version)
        .map(|served| served.ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: usize) -> *mut c_void {
        std::ptr::without_provenance_mut(number)
    }

    fn all() -> Vec<Served> {
        let one = |symbol, base, version, per_thread, ours| Served {
            symbol,
            base,
            version,
            per_thread,
            ours: number(ours).cast(),
        };
        vec![
            one(c"cuCopy_v2", "cuCopy", 3020, false, 1),
            one(c"cuCopy_v2_ptds", "cuCopy", 7000, true, 2),
            one(c"cuHint", "cuHint", 8000, false, 3),
            one(c"cuHint_v2", "cuHint", 12020, false, 4),
        ]
    }

    #[test]
    fn names_of_the_library_are_exact() {
        let all = all();
        assert_eq!(by_name(&all, c"cuCopy_v2"), Some(number(1) as *const ()));
        assert_eq!(by_name(&all, c"cuCopy"), None, "an older one, with other arguments");
        assert_eq!(by_name(&all, c"malloc"), None);
    }

    #[test]
    fn what_the_driver_gives_says_which_version_it_is() {
        let library = |name: &CStr| match name.to_bytes() {
            b"cuCopy_v2" => number(11),
            b"cuCopy_v2_ptds" => number(12),
            b"cuHint_v3" => number(13),
            _ => number(0),
        };
        let ask = |name, asked, found| by_version(&all(), name, asked, number(found), library);
        assert_eq!(ask(c"cuCopy", (13000, 0), 12), Some(number(2) as *const ()));
        assert_eq!(ask(c"cuCopy", (13000, 0), 11), Some(number(1) as *const ()));
        assert_eq!(ask(c"cuHint", (14000, 0), 13), None, "one that is not served");
        assert_eq!(ask(c"cuOther", (13000, 0), 11), None);
    }

    #[test]
    fn else_version_and_flags_do() {
        let ask = |name, asked| by_version(&all(), name, asked, number(99), |_| number(1));
        assert_eq!(ask(c"cuCopy", (13000, 0)), Some(number(1) as *const ()));
        assert_eq!(ask(c"cuCopy", (13000, PER_THREAD)), Some(number(2) as *const ()));
        assert_eq!(ask(c"cuHint", (12000, PER_THREAD)), Some(number(3) as *const ()));
        assert_eq!(ask(c"cuHint", (12020, 0)), Some(number(4) as *const ()));
        assert_eq!(ask(c"cuHint", (7000, 0)), None);
        let older = |name: &CStr| number(usize::from(name != c"cuHint_v2"));
        let found = by_version(&all(), c"cuHint", (13000, 0), number(99), older);
        assert_eq!(found, Some(number(3) as *const ()), "the driver has no newer one");
    }
}
