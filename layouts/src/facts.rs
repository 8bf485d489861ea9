//! Size and offsets of the shared structures as data: asserted here, and printed into the C header.

/// A field's place in a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldFact {
    /// The field's name.
    pub name: &'static str,
    /// Its offset in bytes.
    pub offset: usize,
}

/// A structure's size and fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutFact {
    /// The structure's name, the same in Rust and C.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Its fields in order.
    pub fields: &'static [FieldFact],
}

/// States a structure's size and the offset of each of its fields, asserts them at compile time and
/// lists them in the constant `FACTS` of the calling module.
macro_rules! shared_layout {
    ($($name:ident: $size:literal { $($field:ident: $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };)*
        pub(crate) const FACTS: &[crate::LayoutFact] = &[$(crate::LayoutFact {
            name: stringify!($name),
            size: $size,
            fields: &[$(crate::FieldFact { name: stringify!($field), offset: $offset }),*],
        }),*];
    };
}
pub(crate) use shared_layout;
