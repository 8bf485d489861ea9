//! Work-queue and completion formats, safe code only.
//!
//! Each format has a *view* (bytes behind checked accessors, which judges nothing) and a *representation* (only
//! what has a meaning; `parse` never panics, `emit` fills a given buffer). Bytes come from rings that a GPU writes,
//! so they are untrusted: lengths are checked first and unknown codes are kept.
#![forbid(unsafe_code)]

pub mod mlx5;
pub mod rxe;

/// Bytes that do not have the shape of the format they were read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} at byte {offset} is {value:#x}, expected {expected}")]
pub struct WireError {
    /// The field, as `structure.field`.
    pub field: &'static str,
    /// What was found there (for a buffer: its length in bytes).
    pub value: u64,
    /// Byte offset of the field from the start of the structure that was parsed.
    pub offset: usize,
    /// What the format asks for.
    pub expected: &'static str,
}

/// The `N` bytes at `offset`; zeros where the buffer is shorter, so that no accessor can panic.
pub(crate) fn bytes_at<const N: usize>(buffer: &[u8], offset: usize) -> [u8; N] {
    buffer
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

/// Writes `bytes` at `offset`; does nothing where the buffer is shorter.
pub(crate) fn put_bytes(buffer: &mut [u8], offset: usize, bytes: &[u8]) {
    if let Some(target) = offset
        .checked_add(bytes.len())
        .and_then(|end| buffer.get_mut(offset..end))
    {
        target.copy_from_slice(bytes);
    }
}

/// Defines an enum over one byte in which unknown codes survive.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
            /// A code that this crate does not know.
            Unknown(u8),
        }

        impl $name {
            /// Every known code.
            pub const KNOWN: &'static [$name] = &[$($name::$item),*];
        }

        impl From<u8> for $name {
            fn from(code: u8) -> Self {
                match code {
                    $($code => $name::$item,)*
                    other => $name::Unknown(other),
                }
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                match value {
                    $($name::$item => $code,)*
                    $name::Unknown(other) => other,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $($name::$item => f.write_str($text),)*
                    $name::Unknown(code) => write!(f, "code {code:#04x}"),
                }
            }
        }
    };
}
pub(crate) use codes;

/// Defines a view of one structure: a checked constructor, and a getter and a setter for each field, big-endian or,
/// with `le` first, little-endian.
macro_rules! view {
    (le $($rest:tt)*) => { $crate::wire::view! { @from_le_bytes to_le_bytes $($rest)* } };
    (@$from:ident $to:ident $(#[$doc:meta])* $name:ident, $bytes:expr;
     $($(#[$field_doc:meta])* $get:ident, $set:ident: $ty:ty => $offset:expr;)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name<T> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> $name<T> {
            /// Views `buffer`, whose first bytes are the structure.
            ///
            /// # Errors
            /// A buffer shorter than the structure.
            pub fn new_checked(buffer: T) -> Result<Self, $crate::wire::WireError> {
                let found = buffer.as_ref().len();
                if found < $bytes {
                    return Err($crate::wire::WireError {
                        field: concat!(stringify!($name), ".length"),
                        value: found as u64,
                        offset: 0,
                        expected: concat!("at least ", stringify!($bytes), " bytes"),
                    });
                }
                Ok(Self { buffer })
            }

            $($(#[$field_doc])*
            pub fn $get(&self) -> $ty {
                <$ty>::$from($crate::wire::bytes_at(self.buffer.as_ref(), $offset))
            })*
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $name<T> {
            $(#[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
            pub fn $set(&mut self, value: $ty) {
                $crate::wire::put_bytes(self.buffer.as_mut(), $offset, &value.$to());
            })*
        }
    };
    ($($rest:tt)*) => { $crate::wire::view! { @from_be_bytes to_be_bytes $($rest)* } };
}
pub(crate) use view;
