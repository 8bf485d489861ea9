//! A self-test's words without what names a machine or its network.

use std::net::{IpAddr, SocketAddr};

/// Without addresses of networks and names of devices that only this machine has.
pub fn redact(text: &str) -> String {
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || ".:-[]%".contains(sign);
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let word = &rest[start..];
        let end = word.find(|sign| !is_part(sign)).unwrap_or(word.len());
        out.push_str(&rest[..start]);
        // The sentence's own signs are not the address's.
        let bare = word[..end].trim_end_matches(['.', ':', '-']);
        out.push_str(if is_private(bare) { "<redacted>" } else { bare });
        out.push_str(&word[bare.len()..end]);
        rest = &word[end..];
    }
    out.push_str(rest);
    out
}

fn is_private(word: &str) -> bool {
    // GUIDs, GIDs and hardware addresses; a PCI address has two colons.
    let hex_groups = || {
        let groups: Vec<&str> = word.split(':').collect();
        let hex = |group: &&str| group.bytes().all(|digit| digit.is_ascii_hexdigit());
        groups.len() >= 4 && groups.iter().all(hex)
    };
    let uuid = || word.contains("GPU-") || word.contains("MIG-");
    word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok() || uuid() || hex_groups()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_machine_is_taken_out() {
        for (text, clean) in [
            ("no route to 10.9.0.1:7471.", "no route to <redacted>."),
            ("GID fe80::a288:c2ff:fe12:3456, port 1", "GID <redacted>, port 1"),
            ("node [fd00::1]:7471: gone", "node <redacted>: gone"),
            ("guid a088:c203:0012:3456", "guid <redacted>"),
            (
                "--gpu cuda:GPU-01234567-89ab-cdef-0123-456789abcdef",
                "--gpu <redacted>",
            ),
            (
                "a088c203:12 at 0000:3b:00.0 of mlx5_0",
                "a088c203:12 at 0000:3b:00.0 of mlx5_0",
            ),
            (
                "Linux 6.8.0-45-generic, 4.5 us: ok",
                "Linux 6.8.0-45-generic, 4.5 us: ok",
            ),
            ("", ""),
        ] {
            assert_eq!(redact(text), clean);
        }
    }
}
