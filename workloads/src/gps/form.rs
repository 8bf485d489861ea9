//! The ways in which GPUs get to what the others have made.

use std::fmt;
use std::str::FromStr;

/// How GPUs get to what the others have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// There is one GPU, with all of the work.
    One,
    /// Broadcast arrays; one tracked pass over all iterations of a cycle says who subscribes to what.
    Broadcast,
    /// Each page lies with one GPU, and others read it over the link.
    Peer,
    /// Plain memory on each GPU, and copies of what others need when a step has ended on all of them.
    Copies,
    /// CUDA's managed memory, with advice.
    Managed,
}

impl Form {
    /// All of them; [`Form::One`] is first, since the others are compared with it.
    pub const ALL: [Self; 5] = [Self::One, Self::Broadcast, Self::Peer, Self::Copies, Self::Managed];

    /// Whether kernels take broadcast arrays.
    pub(super) fn broadcasts(self) -> bool {
        matches!(self, Self::Broadcast | Self::Peer)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "one-gpu",
            Self::Broadcast => "broadcast",
            Self::Peer => "peer-loads",
            Self::Copies => "copies",
            Self::Managed => "managed",
        })
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|form| form.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is none of one-gpu, broadcast, peer-loads, copies, managed"))
    }
}
