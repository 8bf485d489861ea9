//! Why a node refuses, as it is on the wire.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why a node refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
            /// A code that this version does not know.
            Unknown(u8),
        }

        impl Reason {
            /// Its code on the wire.
            pub fn code(self) -> u8 {
                match self {
                    $(Reason::$name => $code,)*
                    Reason::Unknown(code) => code,
                }
            }

            /// The reason of a code.
            pub fn from_code(code: u8) -> Reason {
                match code {
                    $($code => Reason::$name,)*
                    code => Reason::Unknown(code),
                }
            }
        }
    };
}

reasons! {
    /// A secret must be proved; the challenge comes with it.
    SecretNeeded = 1,
    /// The proof is wrong, or its challenge was used or is too old.
    WrongSecret = 2,
    /// The address is not on the allow-list.
    NotAllowed = 3,
    /// No room for another client; the detail is how many there may be.
    ClientsMax = 4,
    /// Another version of the protocol; the detail is the node's.
    WrongVersion = 5,
    /// No session has this token.
    UnknownSession = 6,
    /// No room for another queue pair; the detail is how many a client may have.
    QueuesMax = 7,
    /// The request cannot be read.
    Malformed = 8,
    /// The node is stopping.
    Stopping = 9,
    /// The node could not make what the connection needs; the detail is an errno.
    OutOfResources = 10,
    /// More than the client may have; the detail is what is left of it in bytes.
    ClientCapacity = 11,
    /// No free piece is long enough; the detail is the longest in bytes.
    PoolFull = 12,
    /// Too many grants; the detail is how many a client may have.
    GrantsMax = 13,
    /// A grant of no bytes.
    EmptyGrant = 14,
    /// The grant is not this client's, or was given back.
    NoSuchGrant = 15,
    /// Only an unsealed read-only grant can be sealed.
    NotReadOnly = 16,
    /// RLIMIT_MEMLOCK of the node; the detail is the limit in bytes.
    MemoryLocked = 17,
    /// The node's device did not register the memory; the detail is an errno.
    RegisterFailed = 18,
    /// Only a sealed grant can be shared.
    NotSealed = 19,
    /// Nothing is shared by this key, or not any more.
    NotShared = 20,
}

impl fmt::Display for Reason {
    /// As a label of a metric.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self:?}")
    }
}
