//! The bytes that node and client exchange, all little-endian: the private data of connection requests and answers, and
//! the messages of the control connection. Both sides use this file; nothing else knows the layouts.
//!
//! ```text
//! connection request (56 bytes)           accept (64 bytes)               reject (32 bytes)
//!   0 u32 magic  4 u16 version              0 u32 magic  4 u16 version      0 u32 magic  4 u16 version
//!   6 u8 kind: 1 control, 2 data            6 u8 kind  7 u8 flags           6 u8 reason
//!   7 u8 flags: 1 a proof follows           8 [16] session token            8 u64 detail
//!   8 [16] challenge, or session token     24 [24] the node's proof        16 [16] challenge
//!  24 [8] the client's nonce               48 u64 capacity in bytes
//!  32 [24] proof                           56 u32 keep-alive interval in ms
//!
//! message (96 bytes): 0 u32 magic  4 u16 version  6 u16 kind  8 u64 request number  16.. body
//! ```

mod reasons;

pub use reasons::Reason;

/// Version of everything in this file.
pub const VERSION: u16 = 1;
/// First bytes of everything.
pub const MAGIC: u32 = u32::from_le_bytes(*b"gvmN");
/// Private data of a connection request: all that the connection manager's TCP port space leaves.
pub const REQUEST_BYTES: usize = 56;
/// Private data of an accept.
pub const ACCEPT_BYTES: usize = 64;
/// Private data of a reject.
pub const REJECT_BYTES: usize = 32;
/// A message of the control connection.
pub const MESSAGE_BYTES: usize = 96;
/// A challenge or a session token.
pub const NONCE_BYTES: usize = 16;
/// A truncated HMAC-SHA256.
pub const PROOF_BYTES: usize = 24;
/// Longest name of a client in UTF-8 bytes; longer ones are cut.
pub const NAME_BYTES: usize = 64;

/// A challenge or a session token.
pub type Nonce = [u8; NONCE_BYTES];

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Too few bytes.
    #[error("{found} bytes, {wanted} are needed")]
    Short {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        wanted: usize,
    },
    /// Not from a memory node or its client.
    #[error("the magic number is {0:#x}")]
    Magic(u32),
    /// Another version.
    #[error("version {0}")]
    Version(u16),
    /// A value that a field cannot have.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// What a client may do with a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantAccess {
    /// Read it, once it was filled and sealed.
    ReadOnly,
    /// Read, write, atomics.
    ReadWrite,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// The caller has checked the length.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

/// Checks length, magic number and version.
fn check(bytes: &[u8], wanted: usize) -> Result<(), ProtocolError> {
    let found = bytes.len();
    // Magic and version are looked at as soon as they are there: another version may have another length.
    if found >= 6 {
        match (u32_at(bytes, 0), u16_at(bytes, 4)) {
            (MAGIC, VERSION) => {}
            (MAGIC, version) => return Err(ProtocolError::Version(version)),
            (magic, _) => return Err(ProtocolError::Magic(magic)),
        }
    }
    if found < wanted {
        return Err(ProtocolError::Short { found, wanted });
    }
    Ok(())
}

fn begin<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// A client's proof that it knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The node's challenge that it answers.
    pub challenge: Nonce,
    /// The keyed digest.
    pub digest: [u8; PROOF_BYTES],
}

/// The private data of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRequest {
    /// A new session.
    Control {
        /// Chosen by the client for this handshake.
        client_nonce: [u8; 8],
        /// In the second request, where the node asked for it.
        proof: Option<Proof>,
    },
    /// A queue pair for a session.
    Data {
        /// Which session.
        token: Nonce,
    },
}

impl ConnectRequest {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn parse(bytes: &[u8]) -> Result<ConnectRequest, ProtocolError> {
        check(bytes, REQUEST_BYTES)?;
        match (bytes[6], bytes[7]) {
            (1, flags @ 0..=1) => Ok(ConnectRequest::Control {
                client_nonce: array_at(bytes, 24),
                proof: (flags == 1).then(|| Proof {
                    challenge: array_at(bytes, 8),
                    digest: array_at(bytes, 32),
                }),
            }),
            (2, 0) => Ok(ConnectRequest::Data {
                token: array_at(bytes, 8),
            }),
            (1 | 2, flags) => Err(ProtocolError::Field {
                field: "flags",
                value: flags.into(),
            }),
            (kind, _) => Err(ProtocolError::Field {
                field: "kind",
                value: kind.into(),
            }),
        }
    }

    /// Writes it.
    pub fn emit(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = begin();
        match self {
            ConnectRequest::Control { client_nonce, proof } => {
                bytes[6] = 1;
                bytes[24..32].copy_from_slice(client_nonce);
                if let Some(proof) = proof {
                    bytes[7] = 1;
                    bytes[8..24].copy_from_slice(&proof.challenge);
                    bytes[32..56].copy_from_slice(&proof.digest);
                }
            }
            ConnectRequest::Data { token } => {
                bytes[6] = 2;
                bytes[8..24].copy_from_slice(token);
            }
        }
        bytes
    }
}

/// The private data of an accept. Zero where a data connection is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// What data connections name to join the session.
    pub token: Nonce,
    /// The node's proof, where it has a secret.
    pub proof: Option<[u8; PROOF_BYTES]>,
    /// Bytes that the client may have.
    pub capacity: u64,
    /// How often the node looks whether the client is there.
    pub keep_alive_ms: u32,
}

impl Accept {
    /// Reads it; bytes beyond are padding of the connection manager.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn parse(bytes: &[u8]) -> Result<Accept, ProtocolError> {
        check(bytes, ACCEPT_BYTES)?;
        Ok(Accept {
            token: array_at(bytes, 8),
            proof: (bytes[7] & 1 == 1).then(|| array_at(bytes, 24)),
            capacity: u64_at(bytes, 48),
            keep_alive_ms: u32_at(bytes, 56),
        })
    }

    /// Writes it.
    pub fn emit(&self) -> [u8; ACCEPT_BYTES] {
        let mut bytes = begin();
        bytes[8..24].copy_from_slice(&self.token);
        if let Some(proof) = &self.proof {
            bytes[7] = 1;
            bytes[24..48].copy_from_slice(proof);
        }
        bytes[48..56].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.keep_alive_ms.to_le_bytes());
        bytes
    }
}

/// The private data of a reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: Reason,
    /// A number that belongs to it.
    pub detail: u64,
    /// To be answered, with [`Reason::SecretNeeded`].
    pub challenge: Nonce,
}

impl Reject {
    /// Reads it; bytes beyond are padding of the connection manager. A node of another version is understood as far as
    /// to know its version.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn parse(bytes: &[u8]) -> Result<Reject, ProtocolError> {
        check(bytes, REJECT_BYTES)?;
        Ok(Reject {
            reason: Reason::from_code(bytes[6]),
            detail: u64_at(bytes, 8),
            challenge: array_at(bytes, 16),
        })
    }

    /// Writes it.
    pub fn emit(&self) -> [u8; REJECT_BYTES] {
        let mut bytes = begin();
        bytes[6] = self.reason.code();
        bytes[8..16].copy_from_slice(&self.detail.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.challenge);
        bytes
    }
}

/// A client's name, at most [`NAME_BYTES`] of UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// A name, cut where it is too long; control characters, which could forge lines of a log, become `?`.
    pub fn new(text: &str) -> Name {
        let mut name = String::new();
        for character in text.chars() {
            let character = if character.is_control() { '?' } else { character };
            if name.len() + character.len_utf8() > NAME_BYTES {
                break;
            }
            name.push(character);
        }
        Name(name)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Client: who I am.
    Hello(Name),
    /// Client: memory, please.
    Grant {
        /// How much.
        bytes: u64,
        /// For what.
        access: GrantAccess,
    },
    /// Client: I do not need the grant any more.
    Release {
        /// Its number.
        grant: u64,
    },
    /// Client: nothing shall write the grant from now on.
    Seal {
        /// Its number.
        grant: u64,
    },
    /// Client: every client with the key that you give me may read the grant.
    Share {
        /// Its number.
        grant: u64,
    },
    /// Client: let me read what is shared by this key.
    Attach {
        /// The key.
        key: Nonce,
    },
    /// Client: my queue pair leaves.
    Leave {
        /// The number of the client's queue pair.
        queue: u32,
    },
    /// Client: my queue pair was in error and begins anew; so shall its other end.
    Rejoin {
        /// The number of the client's queue pair.
        queue: u32,
        /// The first packet number, 24 bits, in both directions.
        packet: u32,
    },
    /// Client: how much is left?
    Ping,
    /// Either: I leave, on purpose.
    Goodbye,
    /// Node: done, to all but `Grant`, `Seal`, `Share` and `Attach`.
    Done {
        /// What the client may still get, in bytes.
        free: u64,
    },
    /// Node: the grant, to `Grant`, `Seal` and `Attach`.
    Granted {
        /// Its number.
        grant: u64,
        /// Its first byte for RDMA requests.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// Its key for RDMA requests.
        rkey: u32,
        /// What the client may still get, in bytes.
        free: u64,
    },
    /// Node: the key of what is shared, to `Share`.
    Shared {
        /// It cannot be guessed.
        key: Nonce,
    },
    /// Node: no.
    Refused {
        /// Why.
        reason: Reason,
        /// A number that belongs to it.
        detail: u64,
    },
}

impl Body {
    /// Its number on the wire.
    fn kind(&self) -> u16 {
        match self {
            Body::Hello(_) => 1,
            Body::Grant { .. } => 2,
            Body::Release { .. } => 3,
            Body::Seal { .. } => 4,
            Body::Leave { .. } => 5,
            Body::Ping => 6,
            Body::Goodbye => 7,
            Body::Rejoin { .. } => 8,
            Body::Share { .. } => 9,
            Body::Attach { .. } => 10,
            Body::Done { .. } => 16,
            Body::Granted { .. } => 17,
            Body::Refused { .. } => 18,
            Body::Shared { .. } => 19,
        }
    }
}

/// A message of the control connection. An answer has its request's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Counts requests of a session.
    pub request: u64,
    /// What it says.
    pub body: Body,
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn parse(bytes: &[u8]) -> Result<Message, ProtocolError> {
        check(bytes, MESSAGE_BYTES)?;
        let field = |field, value: u64| ProtocolError::Field { field, value };
        let body = match u16_at(bytes, 6) {
            1 => {
                let length = usize::from(bytes[16]);
                let name = bytes[17..].get(..length).filter(|_| length <= NAME_BYTES);
                let name = name.ok_or(field("length of the name", length as u64))?;
                let name = std::str::from_utf8(name).map_err(|_| field("name", u64::from(name[0])))?;
                Body::Hello(Name::new(name))
            }
            2 => Body::Grant {
                bytes: u64_at(bytes, 16),
                access: match bytes[24] {
                    1 => GrantAccess::ReadOnly,
                    2 => GrantAccess::ReadWrite,
                    other => return Err(field("access", other.into())),
                },
            },
            3 => Body::Release {
                grant: u64_at(bytes, 16),
            },
            4 => Body::Seal {
                grant: u64_at(bytes, 16),
            },
            9 => Body::Share {
                grant: u64_at(bytes, 16),
            },
            10 => Body::Attach {
                key: array_at(bytes, 16),
            },
            5 => Body::Leave {
                queue: u32_at(bytes, 16),
            },
            8 => Body::Rejoin {
                queue: u32_at(bytes, 16),
                packet: u32_at(bytes, 20) & 0xff_ffff,
            },
            6 => Body::Ping,
            7 => Body::Goodbye,
            16 => Body::Done {
                free: u64_at(bytes, 16),
            },
            17 => Body::Granted {
                grant: u64_at(bytes, 16),
                address: u64_at(bytes, 24),
                bytes: u64_at(bytes, 32),
                rkey: u32_at(bytes, 40),
                free: u64_at(bytes, 48),
            },
            19 => Body::Shared {
                key: array_at(bytes, 16),
            },
            18 => Body::Refused {
                reason: Reason::from_code(bytes[16]),
                detail: u64_at(bytes, 24),
            },
            kind => return Err(field("kind of message", kind.into())),
        };
        Ok(Message {
            request: u64_at(bytes, 8),
            body,
        })
    }

    /// Writes a message.
    pub fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = begin();
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        match &self.body {
            Body::Hello(name) => {
                // At most NAME_BYTES, which is below 256.
                put(16, &[name.as_str().len() as u8]);
                put(17, name.as_str().as_bytes());
            }
            Body::Grant { bytes, access } => {
                let access = match access {
                    GrantAccess::ReadOnly => 1,
                    GrantAccess::ReadWrite => 2,
                };
                put(16, &bytes.to_le_bytes());
                put(24, &[access]);
            }
            Body::Release { grant } | Body::Seal { grant } | Body::Share { grant } => put(16, &grant.to_le_bytes()),
            Body::Attach { key } | Body::Shared { key } => put(16, key),
            Body::Leave { queue } => put(16, &queue.to_le_bytes()),
            Body::Rejoin { queue, packet } => {
                put(16, &queue.to_le_bytes());
                put(20, &(packet & 0xff_ffff).to_le_bytes());
            }
            Body::Ping | Body::Goodbye => {}
            Body::Done { free } => put(16, &free.to_le_bytes()),
            Body::Granted {
                grant,
                address,
                bytes,
                rkey,
                free,
            } => {
                put(16, &grant.to_le_bytes());
                put(24, &address.to_le_bytes());
                put(32, &bytes.to_le_bytes());
                put(40, &rkey.to_le_bytes());
                put(48, &free.to_le_bytes());
            }
            Body::Refused { reason, detail } => {
                put(16, &[reason.code()]);
                put(24, &detail.to_le_bytes());
            }
        }
        put(6, &self.body.kind().to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests;
