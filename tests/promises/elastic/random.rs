//! Random operations over many buffers, against plain vectors.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Bench, bench_of, config, handle, hog, until};
use crate::program::seeds;
use gpuvm::{ElasticBuffer, Error};

/// Operations of one run.
const OPERATIONS: usize = 10_000;
const BUFFERS: usize = 12;
/// Handles of all buffers together.
const HANDLES: u64 = 24;
const TAGS: [&str; 2] = ["even", "odd"];

/// A buffer, and what is known of its elements.
struct Tried {
    buffer: ElasticBuffer<u32>,
    model: Vec<Option<u32>>,
}

/// What has happened, so that a run that tries nothing is seen.
#[derive(Debug, Default)]
struct Happened {
    refused: u64,
    moved: u64,
    shared: u64,
    paused: u64,
}

struct Run {
    bench: Bench,
    /// Has what the others are not to have.
    hog: Option<ElasticBuffer<u32>>,
    rng: ChaCha8Rng,
    handle: u64,
    tried: Vec<Option<Tried>>,
    paused: [bool; 2],
    happened: Happened,
}

impl Run {
    fn new(seed: u64) -> Self {
        let bench = bench_of(30);
        let hog = hog(&bench.vm);
        hog.shrink(HANDLES * handle(&bench.vm)).unwrap();
        let mut tried = Vec::new();
        tried.resize_with(BUFFERS, || None);
        Self {
            handle: handle(&bench.vm),
            hog: Some(hog),
            bench,
            rng: ChaCha8Rng::seed_from_u64(seed),
            tried,
            paused: [false; 2],
            happened: Happened::default(),
        }
    }

    fn make(&mut self, place: usize) {
        if self.paused[place % 2] {
            // Those of a tag fit into memory together.
            return;
        }
        let length = match self.rng.random_range(0..3) {
            0 => 0,
            _ => self.rng.random_range(1..3 * self.handle),
        };
        let builder = self.bench.vm.elastic::<u32>(6 * self.handle).length(length);
        match builder.tag(TAGS[place % 2]).priority(place as i32 % 3).build() {
            Ok(buffer) => {
                self.happened.shared += u64::from(!buffer.pointer().is_multiple_of(4 * self.handle));
                let model = vec![None; length as usize];
                self.tried[place] = Some(Tried { buffer, model });
            }
            Err(Error::OutOfHandles { .. }) => self.happened.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    /// A range of elements, a few thousand at most.
    fn range(&mut self, length: u64) -> (u64, u64) {
        let first = self.rng.random_range(0..=length);
        (first, (first + self.rng.random_range(0..5000)).min(length))
    }

    fn grow(&mut self, tried: &mut Tried) {
        let by = self.rng.random_range(0..self.handle);
        let before = (tried.buffer.len(), tried.buffer.pointer());
        match tried.buffer.grow(by) {
            Ok(grown) => {
                assert_eq!(grown.first, before.0);
                self.happened.moved += u64::from(grown.moved_bytes > 0);
                tried.model.resize((before.0 + by) as usize, None);
            }
            Err(Error::BeyondMax { .. }) => assert!(before.0 + by > 6 * self.handle),
            Err(Error::OutOfHandles { .. }) => self.happened.refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert_eq!(
            (tried.buffer.len(), tried.buffer.pointer()),
            (tried.model.len() as u64, before.1)
        );
        assert!(tried.buffer.capacity() >= tried.buffer.len());
    }

    fn write(&mut self, tried: &mut Tried) {
        let (first, end) = self.range(tried.buffer.len());
        let base: u32 = self.rng.random();
        let values: Vec<u32> = (first..end).map(|i| base.wrapping_add(i as u32)).collect();
        if self.rng.random_range(0..3) == 0 {
            self.bench.must("fill", config(), (&tried.buffer, first, end, base));
        } else {
            tried.buffer.write(first, &values).unwrap();
        }
        for (known, value) in tried.model[first as usize..].iter_mut().zip(values) {
            *known = Some(value);
        }
    }

    fn check(&self, tried: &Tried, (first, end): (u64, u64)) {
        let mut found = vec![0; (end - first) as usize];
        tried.buffer.read(first, &mut found).unwrap();
        for (i, (known, found)) in (first..).zip(tried.model[first as usize..].iter().zip(found)) {
            assert!(
                known.is_none_or(|known| known == found),
                "element {i} of {:?}: {known:?}, {found}",
                tried.buffer
            );
        }
    }

    fn pause_or_resume(&mut self) {
        let which = self.rng.random_range(0..2);
        if !self.paused[which] {
            self.bench.vm.pause(TAGS[which]).unwrap();
            self.paused[which] = true;
            self.happened.paused += 1;
            return;
        }
        match self.bench.vm.resume(TAGS[which]) {
            Ok(_) => self.paused[which] = false,
            Err(Error::OutOfHandles { .. }) => self.happened.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self) {
        let place = self.rng.random_range(0..BUFFERS);
        let action = self.rng.random_range(0..100);
        if action < 2 {
            return self.pause_or_resume();
        }
        if action < 4 {
            self.bench.vm.trim(self.rng.random_range(0..1 << 20));
            return;
        }
        let Some(mut tried) = self.tried[place].take() else {
            return self.make(place);
        };
        if action < 7 {
            // Dropped, paused or not.
            return;
        }
        if self.paused[place % 2] {
            assert!(matches!(tried.buffer.grow(1), Err(Error::Paused { .. })));
        } else {
            match action {
                ..30 => self.grow(&mut tried),
                30..45 => {
                    let by = self.rng.random_range(0..=tried.buffer.len().min(self.handle));
                    tried.buffer.shrink(by).unwrap();
                    tried.model.truncate(tried.model.len() - by as usize);
                }
                45..72 => self.write(&mut tried),
                _ => {
                    let range = self.range(tried.buffer.len());
                    self.check(&tried, range);
                }
            }
        }
        self.tried[place] = Some(tried);
    }

    /// All elements of all buffers.
    fn check_all(&mut self) {
        self.hog = None;
        // There is room for all now.
        for (tag, paused) in TAGS.iter().zip(&self.paused) {
            if *paused {
                self.bench.vm.resume(tag).unwrap();
            }
        }
        for tried in self.tried.iter().flatten() {
            self.check(tried, (0, tried.buffer.len()));
        }
    }
}

#[test]
fn whatever_grows_shrinks_pauses_and_goes_each_buffer_has_what_was_written() {
    for seed in seeds(0, 20) {
        let mut run = Run::new(seed);
        for _ in 0..OPERATIONS {
            run.step();
        }
        run.check_all();
        run.tried.clear();
        until("the end of all handles", || {
            run.bench.vm.elastic_stats().handles.held == 0
        });
        let stats = run.bench.vm.elastic_stats();
        assert_eq!(stats.buffers, 0, "{stats:?}");
        let Happened {
            refused,
            moved,
            shared,
            paused,
        } = run.happened;
        assert!(
            refused > 10 && moved > 10 && shared > 10 && paused > 10,
            "{:?}",
            run.happened
        );
        assert!(
            stats.premapped > 0 && stats.on_demand > 0 && stats.handles.reused > 0,
            "{stats:?}"
        );
    }
}
