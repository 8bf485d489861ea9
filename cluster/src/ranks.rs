//! What ranks do together.

use std::ops::Range;

use crate::ClusterError;

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0 on.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
    /// Its number among the ranks of its host, from 0 on: the ordinal of its GPU.
    pub on_host: usize,
    /// How many ranks its host has.
    pub of_host: usize,
}

/// The ranks of a job, seen from one of them. Every call but [`place`](Self::place) is made by all ranks, in one order; those whose name
/// says `host`, by all ranks of a host. A rank waits in them for the others.
pub trait Ranks {
    /// Where this rank is.
    fn place(&self) -> Place;

    /// Waits until all ranks are here.
    fn barrier(&self);

    /// Waits until all ranks of this host are here.
    fn host_barrier(&self);

    /// Gives each rank the words of all: `own` are those of this rank, which come to `parts[rank]` of `all`, and so on.
    ///
    /// # Errors
    /// [`ClusterError::Parts`] and [`ClusterError::TooMany`], before anything is sent. All ranks give the same parts, so all fail.
    fn gather(&self, what: &str, own: &[u32], parts: &[Range<usize>], all: &mut [u32]) -> Result<(), ClusterError>;

    /// The sum of all ranks' numbers.
    fn sum(&self, number: u64) -> u64;

    /// The largest of all ranks' numbers.
    fn most(&self, number: f64) -> f64;

    /// What rank 0 says; what others give is not looked at.
    fn hear_first(&self, said: &[u8]) -> Vec<u8>;

    /// What the first rank of this host says; what others give is not looked at.
    fn hear_first_of_host(&self, said: &[u8]) -> Vec<u8>;
}

/// One rank, without MPI.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn place(&self) -> Place {
        Place {
            rank: 0,
            size: 1,
            on_host: 0,
            of_host: 1,
        }
    }

    fn barrier(&self) {}

    fn host_barrier(&self) {}

    fn gather(&self, what: &str, own: &[u32], parts: &[Range<usize>], all: &mut [u32]) -> Result<(), ClusterError> {
        check_parts(what, self.place(), own.len(), parts, all.len())?;
        all.copy_from_slice(own);
        Ok(())
    }

    fn sum(&self, number: u64) -> u64 {
        number
    }

    fn most(&self, number: f64) -> f64 {
        number
    }

    fn hear_first(&self, said: &[u8]) -> Vec<u8> {
        said.to_vec()
    }

    fn hear_first_of_host(&self, said: &[u8]) -> Vec<u8> {
        said.to_vec()
    }
}

/// Whether parts are one a rank, one after the other, of all elements, and the rank has as many as its part.
///
/// # Errors
/// [`ClusterError::Parts`] and [`ClusterError::TooMany`].
pub fn check_parts(
    what: &str,
    place: Place,
    own: usize,
    parts: &[Range<usize>],
    all: usize,
) -> Result<(), ClusterError> {
    let refuse = |reason| {
        Err(ClusterError::Parts {
            what: what.to_owned(),
            reason,
        })
    };
    if parts.len() != place.size {
        return refuse(format!("{} parts for {} ranks", parts.len(), place.size));
    }
    let mut end = 0;
    for (rank, part) in parts.iter().enumerate() {
        if part.start != end || part.end < part.start {
            return refuse(format!(
                "the part of rank {rank} is {part:?}, behind one that ends at {end}"
            ));
        }
        end = part.end;
    }
    if end != all {
        return refuse(format!("the parts end at {end}, the elements at {all}"));
    }
    let mine = parts[place.rank].len();
    if mine != own {
        return refuse(format!("rank {} gives {own} elements for a part of {mine}", place.rank));
    }
    check_count(what, all)
}

/// Whether MPI counts this many elements.
///
/// # Errors
/// [`ClusterError::TooMany`].
fn check_count(what: &str, elements: usize) -> Result<(), ClusterError> {
    match i32::try_from(elements) {
        Ok(_) => Ok(()),
        Err(_) => Err(ClusterError::TooMany {
            what: what.to_owned(),
            elements: elements as u64,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place {
        rank: 1,
        size: 3,
        on_host: 1,
        of_host: 3,
    };

    #[test]
    fn parts_that_fit_are_taken() {
        check_parts("x", PLACE, 0, &[0..4, 4..4, 4..9], 9).unwrap();
        check_parts("x", PLACE, 5, &[0..4, 4..9, 9..9], 9).unwrap();
    }

    #[test]
    fn parts_that_do_not_fit_are_named() {
        type Case<'a> = (usize, &'a [Range<usize>], usize, &'a str);
        #[expect(clippy::reversed_empty_ranges)]
        let cases: [Case<'_>; 6] = [
            (4, &[0..4, 4..8], 8, "2 parts for 3 ranks"),
            (3, &[0..4, 5..8, 8..9], 9, "rank 1 is 5..8, behind one that ends at 4"),
            (3, &[0..4, 4..2, 2..9], 9, "rank 1 is 4..2"),
            (4, &[0..4, 4..8, 8..9], 10, "end at 9, the elements at 10"),
            (3, &[0..4, 4..8, 8..9], 9, "rank 1 gives 3 elements for a part of 4"),
            (1, &[1..4, 4..5, 5..9], 9, "rank 0 is 1..4"),
        ];
        for (own, parts, all, text) in cases {
            let refusal = check_parts("x", PLACE, own, parts, all).unwrap_err().to_string();
            assert!(refusal.contains(text), "{refusal}");
        }
    }

    #[test]
    fn more_elements_than_mpi_counts_are_refused() {
        let end = i32::MAX as usize;
        check_count("ranks", end).unwrap();
        let refusal = check_count("ranks", end + 1).unwrap_err().to_string();
        assert!(
            refusal.contains("an exchange of ranks: 2147483648 elements"),
            "{refusal}"
        );
    }
}
