//! Who may join: networks, and the proof of a shared secret.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use ipnet::IpNet;
use sha2::Sha256;

use crate::error::NodeError;
use crate::protocol::{NONCE_BYTES, PROOF_BYTES, VERSION};

/// A network that clients may come from: `10.9.0.0/24`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl Network {
    /// Whether an address is in it. An IPv4 address that is written as an IPv6 one is taken for what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let network = text.parse::<IpNet>().ok();
        let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network
            .map(Network)
            .ok_or_else(|| format!("'{text}' is not a network; write 10.9.0.0/24, fd00::/8 or one address"))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Who proves something. The two proofs of one handshake must differ, or a node could answer with the client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Node,
}

/// What both ends know of one handshake.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    /// The node's random number, good for one request.
    pub challenge: [u8; NONCE_BYTES],
    /// The client's, so that it does not take an old answer for this one.
    pub client_nonce: [u8; 8],
    /// The node as the client addresses it: a proof made for one node is worth nothing at another.
    pub node: SocketAddr,
}

impl Handshake {
    fn digest(&self, secret: &str, side: Side) -> Hmac<Sha256> {
        // A key of any length is taken.
        let mut mac =
            <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(match side {
            Side::Client => b"gpuvm memory node: client",
            Side::Node => b"gpuvm memory node: node  ",
        });
        mac.update(&VERSION.to_le_bytes());
        mac.update(&self.challenge);
        mac.update(&self.client_nonce);
        // One form for both families, so that the fields before it cannot shift.
        let ip = match self.node.ip().to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        mac.update(&ip.octets());
        mac.update(&self.node.port().to_le_bytes());
        mac
    }

    /// The proof that `side` knows the secret.
    pub fn prove(&self, secret: &str, side: Side) -> [u8; PROOF_BYTES] {
        let full = self.digest(secret, side).finalize().into_bytes();
        std::array::from_fn(|at| full[at])
    }

    /// Whether a proof is right, compared in constant time.
    pub fn check(&self, secret: &str, side: Side, proof: &[u8; PROOF_BYTES]) -> bool {
        self.digest(secret, side).verify_truncated_left(proof).is_ok()
    }
}

/// Random bytes from the operating system.
///
/// # Errors
/// Where it has none.
pub fn random<const N: usize>() -> Result<[u8; N], NodeError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| NodeError::System {
        what: "get random numbers",
        source: std::io::Error::other(error),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake() -> Handshake {
        Handshake {
            challenge: [7; NONCE_BYTES],
            client_nonce: [9; 8],
            node: "10.9.0.2:7471".parse().unwrap(),
        }
    }

    #[test]
    fn a_proof_holds_for_its_handshake_and_side_only() {
        let proof = handshake().prove("open sesame", Side::Client);
        assert!(handshake().check("open sesame", Side::Client, &proof));
        assert!(!handshake().check("open sesame", Side::Node, &proof));
        assert!(!handshake().check("open Sesame", Side::Client, &proof));
        assert!(!handshake().check("", Side::Client, &proof));
        let others = [
            Handshake {
                challenge: [8; NONCE_BYTES],
                ..handshake()
            },
            Handshake {
                client_nonce: [8; 8],
                ..handshake()
            },
            Handshake {
                node: "10.9.0.3:7471".parse().unwrap(),
                ..handshake()
            },
            Handshake {
                node: "10.9.0.2:7472".parse().unwrap(),
                ..handshake()
            },
        ];
        for other in others {
            assert!(!other.check("open sesame", Side::Client, &proof), "{other:?}");
        }
        for bit in 0..PROOF_BYTES * 8 {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!handshake().check("open sesame", Side::Client, &wrong), "bit {bit}");
        }
    }

    #[test]
    fn a_mapped_address_is_the_same_node() {
        let mapped = Handshake {
            node: "[::ffff:10.9.0.2]:7471".parse().unwrap(),
            ..handshake()
        };
        assert_eq!(mapped.prove("s", Side::Node), handshake().prove("s", Side::Node));
    }

    #[test]
    fn networks_contain_their_addresses() {
        for (network, inside, outside) in [
            ("10.9.0.0/24", "10.9.0.255", "10.9.1.0"),
            ("10.9.0.7", "10.9.0.7", "10.9.0.8"),
            ("10.9.0.0/24", "::ffff:10.9.0.1", "::ffff:10.8.0.1"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "1.2.3.4", "::1"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{network} {outside}");
        }
        for text in ["", "10.9.0.0/33", "10.9.0/24", "host", "10.9.0.0/-1", "10.9.0.1/24/24"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
    }
}
