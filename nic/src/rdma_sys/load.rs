//! The libraries, loaded when something of them is needed first.

use std::sync::OnceLock;

use libloading::Library;

/// A library that this machine may not have. Once loaded it stays.
pub(super) struct Loaded {
    name: &'static str,
    library: OnceLock<Library>,
}

/// libibverbs.
pub(super) static VERBS: Loaded = Loaded::new("libibverbs.so.1");
/// librdmacm.
pub(super) static CONNECTION_MANAGER: Loaded = Loaded::new("librdmacm.so.1");

/// A library that cannot be loaded.
#[derive(Debug, Clone)]
pub struct MissingLibrary {
    /// Its name.
    pub name: &'static str,
    /// What the loader says.
    pub why: String,
}

/// Loads libibverbs, unless it is loaded already.
///
/// # Errors
/// It cannot be loaded.
pub fn load_verbs() -> Result<(), MissingLibrary> {
    VERBS.get().map(drop)
}

/// Loads librdmacm, unless it is loaded already.
///
/// # Errors
/// It cannot be loaded.
pub fn load_connection_manager() -> Result<(), MissingLibrary> {
    CONNECTION_MANAGER.get().map(drop)
}

impl Loaded {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            library: OnceLock::new(),
        }
    }

    /// The library. One that is missing is looked for again each time.
    fn get(&self) -> Result<&Library, MissingLibrary> {
        if let Some(library) = self.library.get() {
            return Ok(library);
        }
        // SAFETY: the constructors of both libraries only set up their own data.
        let library = unsafe { Library::new(self.name) }.map_err(|error| MissingLibrary {
            name: self.name,
            why: crate::with_causes(&error),
        })?;
        // Where another thread was first, this handle is one too many and is closed.
        Ok(self.library.get_or_init(|| library))
    }

    /// A function of the library, looked up once. Without it errno is `EOPNOTSUPP`.
    ///
    /// # Safety
    /// `F` is the type of the function `name`.
    pub unsafe fn function<F: Copy>(&self, found: &OnceLock<F>, name: &str) -> Option<F> {
        if let Some(function) = found.get() {
            return Some(*function);
        }
        let library = self.get().ok();
        // SAFETY: the caller's promise. The library is never unloaded, so the function outlives its symbol.
        match library.and_then(|library| unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)) {
            Some(function) => Some(*found.get_or_init(|| function)),
            None => {
                set_errno(libc::EOPNOTSUPP);
                None
            }
        }
    }
}

/// Sets this thread's errno.
pub(super) fn set_errno(errno: libc::c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Functions of a library, each with what it returns where it is missing.
macro_rules! functions {
    ($library:expr; $($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? = $missing:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As its man page asks: pointers lead to what lives, and is in a state that the call takes.
        pub unsafe fn $name($($arg: $type),*) $(-> $out)? {
            type Function = unsafe extern "C" fn($($type),*) $(-> $out)?;
            static FOUND: std::sync::OnceLock<Function> = std::sync::OnceLock::new();
            // SAFETY: the type is the header's.
            match unsafe { $library.function::<Function>(&FOUND, stringify!($name)) } {
                // SAFETY: the caller's promise.
                Some(function) => unsafe { function($($arg),*) },
                None => $missing,
            }
        }
    )*};
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_and_its_functions_fail() {
        static NONE: Loaded = Loaded::new("libno-such-rdma.so.1");
        functions! { NONE; fn no_function(number: i32) -> i32 = -number; }
        let missing = NONE.get().expect_err("no machine has it");
        assert_eq!(missing.name, "libno-such-rdma.so.1");
        assert!(missing.why.contains("libno-such-rdma.so.1"), "{}", missing.why);
        set_errno(0);
        // SAFETY: there is no such function.
        assert_eq!(unsafe { no_function(7) }, -7);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_library_that_lacks_a_function_has_its_others() {
        static C: Loaded = Loaded::new("libc.so.6");
        functions! { C;
            fn no_function() -> i32 = -1;
            fn abs(number: i32) -> i32 = -1;
        }
        // SAFETY: there is no such function.
        assert_eq!(unsafe { no_function() }, -1);
        // Looked up, and then kept.
        for number in [-5, -6] {
            // SAFETY: it takes any number but the least.
            assert_eq!(unsafe { abs(number) }, -number);
        }
    }
}
