//! What the firmware says to a command.

use std::fmt;

/// What the firmware said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0 is success.
    pub status: u8,
    /// The firmware's own code of what is wrong: NVIDIA's support knows them.
    pub syndrome: u32,
    /// The number of what was made, or the state that was asked for; else 0.
    pub value: u32,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.status {
            0x00 => "well",
            0x01 => "internal error",
            0x02 => "bad operation",
            0x03 => "bad parameter",
            0x04 => "bad system state",
            0x05 => "bad resource",
            0x06 => "resource busy",
            0x08 => "limit exceeded",
            0x09 => "bad resource state",
            0x0a => "bad index",
            0x0f => "no resources",
            0x10 => "bad queue pair state",
            0x50 => "bad input length",
            0x51 => "bad output length",
            _ => "unknown status",
        };
        write!(
            f,
            "firmware status {:#04x} ({meaning}), syndrome {:#010x}",
            self.status, self.syndrome
        )
    }
}
