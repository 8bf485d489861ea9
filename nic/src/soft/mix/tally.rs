//! How often the faults of a mix happened.

use std::fmt;

use super::{FaultKind, FaultRate};

/// How often each kind of a mix was asked for and bit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultTally {
    pub(super) counts: Vec<FaultCount>,
}

/// One kind of a [`FaultTally`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultCount {
    /// What was asked for.
    pub rate: FaultRate,
    /// How often it began.
    pub begun: u64,
    /// Requests, or doorbells, that it has bitten: not drawn, but shown. `lost` counts when a completion is left out, `reorder` when data
    /// moves ahead of an earlier request's, `pieces` when a part moves without the rest, `unflushed` when a request completes without
    /// its data; the others when the request starts, since they leave it no other way.
    pub bitten: u64,
}

/// Faults that were asked for and never happened: a run that shows nothing of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} asked for and never happened; give a higher rate, more seeds or a longer program",
    list(kinds)
)]
pub struct Unbitten {
    /// The kinds.
    pub kinds: Vec<FaultKind>,
}

fn list(kinds: &[FaultKind]) -> String {
    let names: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
    match names.as_slice() {
        [one] => format!("fault {one} was"),
        many => format!("faults {} were", many.join(", ")),
    }
}

impl FaultTally {
    /// Each kind.
    pub fn counts(&self) -> &[FaultCount] {
        &self.counts
    }

    /// How often a kind bit.
    pub fn bitten(&self, kind: FaultKind) -> u64 {
        self.counts
            .iter()
            .filter(|count| count.rate.kind == kind)
            .map(|count| count.bitten)
            .sum()
    }

    /// Adds what another NIC, or another seed's run, has counted.
    pub fn merge(&mut self, other: &FaultTally) {
        for count in &other.counts {
            match self.counts.iter_mut().find(|there| there.rate.kind == count.rate.kind) {
                Some(there) => {
                    there.begun += count.begun;
                    there.bitten += count.bitten;
                }
                None => self.counts.push(*count),
            }
        }
    }

    /// Whether every kind that was asked for has happened.
    ///
    /// # Errors
    /// [`Unbitten`] with those that have not.
    pub fn check(&self) -> Result<(), Unbitten> {
        let never = self.counts.iter().filter(|count| count.bitten == 0);
        let kinds: Vec<FaultKind> = never.map(|count| count.rate.kind).collect();
        match kinds.is_empty() {
            true => Ok(()),
            false => Err(Unbitten { kinds }),
        }
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, count) in self.counts.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} bitten {}", count.rate, count.bitten)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FaultMix, Mixed};
    use super::*;

    #[test]
    fn a_tally_names_what_never_happened() {
        let mix: FaultMix = "lost:1/2,die:1".parse().unwrap();
        let mut tally = Mixed::new(&mix, 1).tally();
        assert_eq!(tally.check().unwrap_err().kinds, [FaultKind::Lost, FaultKind::Die]);
        let mut other = tally.clone();
        other.counts[0].bitten = 3;
        tally.merge(&other);
        let error = tally.check().unwrap_err();
        assert_eq!(error.kinds, [FaultKind::Die]);
        assert!(
            error
                .to_string()
                .contains("fault `die` was asked for and never happened")
        );
        assert_eq!(tally.bitten(FaultKind::Lost), 3);
    }
}
