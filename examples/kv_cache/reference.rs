//! The last step on the CPU.

use crate::{args::Plan, cache::Four, error::Problem};

/// Numbers of keys up to which the CPU computes the last step too.
const NUMBERS_MAX: u64 = 1 << 24;
/// How far a result may be from the CPU's, which has twice the digits. Results are means of numbers below 1, so this is about a hundred
/// roundings of a `float`.
pub const TOLERANCE: f64 = 1e-5;

/// What is drawn, as the kernels number it.
#[derive(Clone, Copy)]
enum Which {
    Key,
    Value,
    Query,
}

fn mixed(number: u64) -> u64 {
    let hash = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// A number of a row, as the kernels draw it: exactly so, since it has 24 bits.
fn drawn(which: Which, sequence: u32, token: u32, index: u64) -> f64 {
    let hash = mixed(u64::from(sequence) << 42 | u64::from(token) << 20 | (which as u64) << 18 | index);
    (hash >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// Whether the CPU takes little time for it.
pub fn is_small(plan: &Plan) -> bool {
    plan.used_bytes() / 2 / size_of::<f32>() as u64 <= NUMBERS_MAX
}

/// Compares what the last step computed with the CPU.
///
/// # Errors
/// [`Problem::Wrong`].
pub fn check(plan: &Plan, results: &[Four]) -> Result<(), Problem> {
    let found: &[f32] = bytemuck::cast_slice(results);
    let heads = (0..plan.sequences()).flat_map(|sequence| (0..plan.heads).map(move |head| (sequence, head)));
    for ((sequence, head), found) in heads.zip(found.chunks(plan.head_size as usize)) {
        let expected = attended(plan, sequence, head);
        for (number, (&found, &expected)) in (0..).zip(found.iter().zip(&expected)) {
            // Not the other way round, which NaN would pass.
            let alike = (f64::from(found) - expected).abs() <= TOLERANCE;
            if !alike {
                return Err(Problem::Wrong {
                    sequence,
                    head,
                    number,
                    found,
                    expected,
                    tolerance: TOLERANCE,
                });
            }
        }
    }
    Ok(())
}

/// What a head of a sequence has in the last step.
fn attended(plan: &Plan, sequence: u32, head: u32) -> Vec<f64> {
    let (tokens, size) = (plan.tokens(sequence, plan.steps), u64::from(plan.head_size));
    let first = u64::from(head) * size;
    let numbers = |which, token| (first..first + size).map(move |index| drawn(which, sequence, token, index));
    let query: Vec<f64> = numbers(Which::Query, tokens - 1).collect();
    let score = |token| {
        let dot: f64 = numbers(Which::Key, token)
            .zip(&query)
            .map(|(key, query)| key * query)
            .sum();
        dot / (size as f64).sqrt()
    };
    let scores: Vec<f64> = (0..tokens).map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut sums, mut weights) = (vec![0.0; size as usize], 0.0);
    for (token, score) in (0..).zip(scores) {
        let weight = (score - most).exp();
        weights += weight;
        for (sum, value) in sums.iter_mut().zip(numbers(Which::Value, token)) {
            *sum += weight * value;
        }
    }
    sums.iter().map(|sum| sum / weights).collect()
}
