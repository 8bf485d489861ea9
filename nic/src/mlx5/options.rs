//! How an mlx5 device is opened.

use crate::NicError;

/// How an mlx5 device is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mlx5Options {
    /// The device, such as `mlx5_0`. Default: the first one whose port is active, else the first one.
    pub device: Option<String>,
    /// Its port, from 1 on. Default: 1.
    pub port: u8,
    /// Which of the port's GIDs packets come from. Default: on Ethernet a RoCE v2 one, of an IPv4 address if there is
    /// one; on InfiniBand the first.
    pub gid_index: Option<u8>,
    /// Most bytes of a packet's data: 256, 512, 1024, 2048 or 4096; never more than what the port has. Default: what
    /// the port has.
    pub mtu: Option<u32>,
    /// Service level of the packets, 0 to 15. Default: 0.
    pub service_level: u8,
    /// Traffic class of the packets (RoCE: DSCP and ECN). Default: 0.
    pub traffic_class: u8,
    /// How long an answer may take before the request is sent again: 4.096 us doubled this many times, 1 to 31.
    /// Default: 14 (67 ms).
    pub ack_timeout: u8,
    /// How often it is sent again, 0 to 7. Default: 7.
    pub retry_count: u8,
    /// How its queues are made. Default: [`QueueMaking::Verbs`].
    pub queues: QueueMaking,
}

/// How the queues of an mlx5 device are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QueueMaking {
    /// By plain verbs: rings in memory of [`SharedMemory::allocate`](super::SharedMemory::allocate), a completion for each request in a place of its own.
    #[default]
    Verbs,
    /// By firmware commands over DEVX: rings in memory of [`SharedMemory::allocate_queues`](super::SharedMemory::allocate_queues), such as a GPU's own, a collapsed
    /// completion queue. Queue pairs do not tell which request failed once
    /// those behind it are flushed.
    Devx,
}

impl std::fmt::Display for QueueMaking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Verbs => "verbs",
            Self::Devx => "devx",
        })
    }
}

/// A word that names no way of making queues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid way of making queues `{0}`: expected verbs or devx")]
pub struct UnknownQueueMaking(String);

impl std::str::FromStr for QueueMaking {
    type Err = UnknownQueueMaking;

    /// `verbs` or `devx`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "verbs" => Ok(Self::Verbs),
            "devx" => Ok(Self::Devx),
            other => Err(UnknownQueueMaking(other.to_owned())),
        }
    }
}

impl Default for Mlx5Options {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: None,
            mtu: None,
            service_level: 0,
            traffic_class: 0,
            ack_timeout: 14,
            retry_count: 7,
            queues: QueueMaking::Verbs,
        }
    }
}

impl Mlx5Options {
    pub(super) fn check(&self) -> Result<(), NicError> {
        let numbers = [
            ("port", self.port.into(), 1, 255, "1 to 255"),
            ("service level", self.service_level.into(), 0, 15, "0 to 15"),
            ("ack timeout", self.ack_timeout.into(), 1, 31, "a code of 1 to 31"),
            ("retry count", self.retry_count.into(), 0, 7, "0 to 7"),
        ];
        for (what, value, least, most, expected) in numbers {
            if !(least..=most).contains(&value) {
                return Err(NicError::BadArgument { what, value, expected });
            }
        }
        match self.mtu {
            Some(mtu) if self.mtu_code().is_none() => Err(NicError::BadArgument {
                what: "MTU",
                value: mtu.into(),
                expected: "256, 512, 1024, 2048 or 4096 bytes",
            }),
            _ => Ok(()),
        }
    }

    /// The MTU as `enum ibv_mtu`; none where none is asked for, or one that there is not.
    pub(super) fn mtu_code(&self) -> Option<u32> {
        let mtu = self.mtu?;
        let code = mtu.checked_ilog2()?.checked_sub(7)?;
        (mtu.is_power_of_two() && (1..=5).contains(&code)).then_some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_of_making_queues_have_names() {
        for making in [QueueMaking::Verbs, QueueMaking::Devx] {
            assert_eq!(making.to_string().parse(), Ok(making));
        }
        let error = "ofed".parse::<QueueMaking>().expect_err("none").to_string();
        assert!(error.contains("verbs or devx"), "{error}");
    }

    #[test]
    fn mtus_have_their_codes() {
        let code = |mtu| {
            Mlx5Options {
                mtu: Some(mtu),
                ..Default::default()
            }
            .mtu_code()
        };
        assert_eq!([256, 512, 1024, 2048, 4096].map(code), [1, 2, 3, 4, 5].map(Some));
        assert_eq!([0, 1, 128, 255, 1000, 8192].map(code), [None; 6]);
    }
}
