//! Doorbell records (in memory, read by the NIC) and doorbell registers (in the NIC).

use crate::wire::view;

view! {
    /// View of a queue pair's doorbell record (8 bytes): how far its two queues were filled.
    DoorbellRecord, 8;
    /// Receive queue: producer index, low 16 bits count.
    receive, set_receive: u32 => 0;
    /// Send queue: index of the next empty block, low 16 bits count.
    send, set_send: u32 => 4;
}

view! {
    /// View of a completion queue's doorbell record (8 bytes).
    CqDoorbellRecord, 8;
    /// Consumer index, low 24 bits count. Need not be written when overrun is ignored.
    consumer, set_consumer: u32 => 0;
    /// Arming word for events; 0 when polled.
    arm, set_arm: u32 => 4;
}

/// The value stored into a queue pair's doorbell register: the first 8 bytes of a control segment, of which the NIC
/// looks at the index and the queue pair number only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doorbell {
    /// Index of the next empty block of the send queue, modulo 2^16.
    pub index: u16,
    /// The 24-bit queue pair number.
    pub queue_pair: u32,
}

impl Doorbell {
    /// Reads the 8 bytes of a register.
    pub fn parse(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Doorbell {
            index: (u32::from_be_bytes([a, b, c, d]) >> 8) as u16,
            queue_pair: u32::from_be_bytes([e, f, g, h]) >> 8,
        }
    }

    /// The 8 bytes to store, in one store. Bits of the queue pair number above the 24th are dropped.
    pub fn emit(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&(u32::from(self.index) << 8).to_be_bytes());
        bytes[4..].copy_from_slice(&(self.queue_pair << 8).to_be_bytes());
        bytes
    }
}

impl core::fmt::Display for Doorbell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "doorbell qp {:#x} up to #{}", self.queue_pair, self.index)
    }
}
