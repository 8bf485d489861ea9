//! Random numbers that are the same on every machine: additions and multiplications alone, which IEEE 754 rounds.

/// A number with mean 0 and variance 1 whose density is near the normal one: the sum of four uniform ones, from 64 random bits.
pub(crate) fn near_normal(bits: u64) -> f64 {
    let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
    // Each has the mean 32767.5 and the variance 2^32 / 12.
    (sum as f64 - 131_070.0) / 37_837.0
}

/// A number from 0 to below 1, from 64 random bits.
pub(crate) fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
