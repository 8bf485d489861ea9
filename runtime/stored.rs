//! Setters that store what they are given.

/// Setters of builders, each with what it stores where.
macro_rules! stored {
    ($($(#[$about:meta])+ $name:ident($value:ident: $of:ty) => $($field:ident).+ = $stored:expr;)+) => {
        $($(#[$about])+
        pub fn $name(mut self, $value: $of) -> Self {
            self.$($field).+ = $stored;
            self
        })+
    };
}

pub(crate) use stored;
