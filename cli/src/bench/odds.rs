//! Pages drawn with given weights in constant time: the alias method (Vose, A Linear Algorithm for Generating Random Numbers
//! with a Given Distribution, 1991).

use crate::bench::machine::shuffled;

/// A page is chosen evenly, then kept with its odds of 2^32, else replaced by its other one.
pub struct Odds {
    /// How often of 2^32 times the page is kept.
    pub odds: Vec<u32>,
    /// What is drawn else.
    pub others: Vec<u32>,
}

impl Odds {
    /// All pages alike.
    pub fn even(pages: u64) -> Self {
        Self::of(vec![1.0; pages as usize])
    }

    /// The k-th most popular page with probability proportional to k^-`exponent`; which pages are popular is drawn.
    pub fn zipf(pages: u64, exponent: f64) -> Self {
        let mut weights = vec![0.0; pages as usize];
        for (rank, page) in (1u64..).zip(shuffled(pages, 7)) {
            weights[page as usize] = (rank as f64).powf(-exponent);
        }
        Self::of(weights)
    }

    /// Each page with probability proportional to its weight.
    fn of(mut weights: Vec<f64>) -> Self {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut odds = vec![u32::MAX; weights.len()];
        let mut others: Vec<u32> = (0..weights.len() as u32).collect();
        // Those below the mean are filled up by those above it, each by one.
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            others.iter().partition(|page| weights[**page as usize] < mean);
        while let (Some(page), Some(&giver)) = (small.pop(), large.last()) {
            let share = weights[page as usize] / mean;
            // Below 1; the cast saturates.
            odds[page as usize] = (share * 2f64.powi(32)) as u32;
            others[page as usize] = giver;
            let left = &mut weights[giver as usize];
            *left -= mean * (1.0 - share);
            if *left < mean {
                large.pop();
                small.push(giver);
            }
        }
        Self { odds, others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each page is drawn, of once.
    fn drawn(table: &Odds) -> Vec<f64> {
        let pages = table.odds.len() as f64;
        let mut drawn = vec![0.0; table.odds.len()];
        for (page, (&odds, &other)) in table.odds.iter().zip(&table.others).enumerate() {
            let kept = f64::from(odds) / 2f64.powi(32);
            drawn[page] += kept / pages;
            drawn[other as usize] += (1.0 - kept) / pages;
        }
        drawn
    }

    #[test]
    fn even_odds_are_even() {
        for often in drawn(&Odds::even(1000)) {
            assert!((often * 1000.0 - 1.0).abs() < 1e-6, "{often}");
        }
    }

    #[test]
    fn popular_pages_are_drawn_as_zipf_says() {
        let pages = 5000;
        let drawn = drawn(&Odds::zipf(pages, 0.99));
        let whole: f64 = (1..=pages).map(|rank| (rank as f64).powf(-0.99)).sum();
        for (rank, page) in (1u64..).zip(shuffled(pages, 7)) {
            let wanted = (rank as f64).powf(-0.99) / whole;
            assert!((drawn[page as usize] / wanted - 1.0).abs() < 1e-3, "rank {rank}");
        }
    }
}
