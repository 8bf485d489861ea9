//! Random requests of several users, with reads and writes that fail and losses of power, beside a model; and the same with each rule
//! broken, which has to show.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::disk::{Disk, SECTOR};
use crate::{
    Engine, File, Got, How, Piece, Tier, TierOptions,
    rules::{BROKEN, Rule},
};

const BLOCKS: u64 = 160;
const SLOTS: u64 = 64;
/// The file ends within a block.
const SECTORS: u64 = BLOCKS * 8 - 3;
const STEPS: usize = 3000;

/// A request under way.
struct User {
    first: u64,
    count: u64,
    how: How,
    pieces: Vec<Piece>,
    /// What a writer has put there, in version numbers of its sectors.
    put: Option<Vec<u64>>,
}

impl User {
    fn overlaps(&self, first: u64, count: u64) -> bool {
        first < self.first + self.count && self.first < first + count
    }
}

struct Model {
    disk: Arc<Disk>,
    tier: Tier,
    file: File,
    draw: ChaCha8Rng,
    /// By sector: the version that was written last.
    now: Vec<u64>,
    /// By sector: the version that survives a loss of power at least.
    floor: Vec<u64>,
    users: Vec<User>,
    /// What the sync under way promises.
    syncing: Option<Vec<u64>>,
}

type Checked = Result<(), String>;

/// A sector's contents: its number and version, over and over.
fn contents(sector: u64, version: u64) -> [u8; SECTOR] {
    let mut out = [0; SECTOR];
    if version > 0 {
        for (at, word) in out.chunks_mut(8).enumerate() {
            word.copy_from_slice(&(sector << 32 | version << 8 | at as u64).to_le_bytes());
        }
    }
    out
}

fn version_of(sector: u64, bytes: &[u8]) -> Result<u64, String> {
    let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let version = word >> 8 & 0xff_ffff;
    match bytes == contents(sector, version) {
        true => Ok(version),
        false => Err(format!("sector {sector} is torn, or another one's")),
    }
}

impl Model {
    fn new(seed: u64) -> Self {
        let disk = Disk::new(SECTORS * SECTOR as u64);
        disk.fail_one_in(40, seed);
        let options = TierOptions::default().engine(Engine::Polled(seed)).depth(8);
        let tier = Tier::new(SLOTS * 4096, options).unwrap();
        let file = tier.attach("disk", disk.clone(), true).unwrap();
        Self {
            disk,
            tier,
            file,
            draw: ChaCha8Rng::seed_from_u64(seed),
            now: vec![0; SECTORS as usize],
            floor: vec![0; SECTORS as usize],
            users: Vec::new(),
            syncing: None,
        }
    }

    fn step(&mut self) -> Checked {
        match self.draw.random_range(0..100) {
            0..30 => self.ask(),
            30..60 => self.end_one(),
            60..63 => self.begin_sync(),
            63..70 => self.go_on_syncing(),
            70..72 => {
                let block = self.draw.random_range(0..BLOCKS);
                self.file.expect(block * 4096, 1);
                Ok(())
            }
            _ => {
                self.tier.poll();
                Ok(())
            }
        }
    }

    /// A request, which is dropped where it would have to wait for long.
    fn ask(&mut self) -> Checked {
        if self.users.len() >= 12 {
            return Ok(());
        }
        let whole = self.draw.random_bool(0.5);
        // Half of them meet in a few blocks.
        let sectors = if self.draw.random_bool(0.5) { 20 * 8 } else { SECTORS };
        let mut first = self.draw.random_range(0..sectors);
        let mut count = self.draw.random_range(1..=12).min(SECTORS - first);
        if whole {
            first -= first % 8;
            count = 8.min(SECTORS - first);
        }
        let how = if self.draw.random_bool(0.5) {
            How::Write
        } else {
            How::Read
        };
        // Who shares memory with a writer sees anything.
        let meets = |user: &User| user.overlaps(first, count) && (how == How::Write || user.how == How::Write);
        if self.users.iter().any(meets) && !(whole && how == How::Read) {
            return Ok(());
        }
        let mut pieces = Vec::new();
        for _ in 0..20 {
            match self
                .file
                .acquire(first * SECTOR as u64, count * SECTOR as u64, how, &mut pieces)
            {
                Ok(Got::Ready) => {
                    let met = self
                        .users
                        .iter()
                        .any(|user| user.how == How::Write && user.overlaps(first, count));
                    let fresh = self
                        .users
                        .iter()
                        .any(|user| user.how == How::Write && user.overlaps(first, count) && user.put.is_none());
                    let user = User {
                        first,
                        count,
                        how,
                        pieces,
                        put: None,
                    };
                    if met {
                        // A reader beside the writer of a whole block: it sees what was there or what is written, never garbage.
                        let seen = if fresh { self.check(&user) } else { Ok(()) };
                        self.file.release(&user.pieces, how);
                        return seen;
                    }
                    if how == How::Read {
                        self.check(&user)?;
                    }
                    self.users.push(user);
                    return Ok(());
                }
                Ok(Got::Wait) => drop(self.tier.poll()),
                // It failed by chance: asked again, it is read again.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// A reader sees what was written last.
    fn check(&self, user: &User) -> Checked {
        let bytes: u64 = user.pieces.iter().map(|piece| piece.bytes).sum();
        let mut seen = Vec::with_capacity(bytes as usize);
        for piece in &user.pieces {
            let from = std::ptr::with_exposed_provenance::<u8>(piece.address as usize);
            // SAFETY: an acquired piece, and this thread is the only one.
            seen.extend_from_slice(unsafe { std::slice::from_raw_parts(from, piece.bytes as usize) });
        }
        for (sector, bytes) in (user.first..).zip(seen.chunks(SECTOR)) {
            let (version, expected) = (version_of(sector, bytes)?, self.now[sector as usize]);
            if version != expected {
                return Err(format!("sector {sector} has version {version} instead of {expected}"));
            }
        }
        Ok(())
    }

    /// A writer writes and then lets go; a reader looks again, and lets go.
    fn end_one(&mut self) -> Checked {
        if self.users.is_empty() {
            return Ok(());
        }
        let place = self.draw.random_range(0..self.users.len());
        if self.users[place].how == How::Write && self.users[place].put.is_none() {
            self.put(place);
            return Ok(());
        }
        let user = self.users.swap_remove(place);
        let seen = if user.how == How::Read {
            self.check(&user)
        } else {
            Ok(())
        };
        self.file.release(&user.pieces, user.how);
        seen
    }

    /// The bytes have arrived, and the thread that waits for them may know.
    fn put(&mut self, place: usize) {
        let user = &mut self.users[place];
        let mut data = Vec::new();
        let mut put = Vec::new();
        for sector in user.first..user.first + user.count {
            let version = self.now[sector as usize] + 1;
            self.now[sector as usize] = version;
            data.extend_from_slice(&contents(sector, version));
            put.push(version);
        }
        let mut rest = &data[..];
        for piece in &user.pieces {
            let (part, others) = rest.split_at(piece.bytes as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(piece.address as usize);
            // SAFETY: a piece acquired for writing, and this thread is the only one.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            rest = others;
        }
        user.put = Some(put);
    }

    /// What has arrived before is promised.
    fn begin_sync(&mut self) -> Checked {
        if self.syncing.is_none() {
            self.file.tier.retry_writes(&self.file.opened);
            self.syncing = Some(self.now.clone());
        }
        Ok(())
    }

    fn go_on_syncing(&mut self) -> Checked {
        let Some(promised) = self.syncing.take() else {
            return Ok(());
        };
        match self.file.tier.write_some_of(&self.file.opened) {
            Err(_) => {}
            Ok(false) => self.syncing = Some(promised),
            Ok(true) => {
                self.file.opened.storage.sync().map_err(|error| error.to_string())?;
                self.floor = promised;
            }
        }
        Ok(())
    }

    /// What the disk holds lies between what was promised and what was written.
    fn check_disk(&self) -> Checked {
        for (sector, bytes) in self.disk.contents().chunks(SECTOR).enumerate() {
            let version = version_of(sector as u64, bytes)?;
            let (floor, now) = (self.floor[sector], self.now[sector]);
            if version < floor || version > now {
                return Err(format!(
                    "sector {sector} has version {version} on the disk, not {floor} to {now}"
                ));
            }
        }
        Ok(())
    }

    /// All users leave, the disk is repaired, and everything is stored.
    fn end(&mut self) -> Checked {
        self.syncing = None;
        while !self.users.is_empty() {
            self.end_one()?;
        }
        self.disk.repair();
        let mut out = vec![0; (SECTORS * SECTOR as u64) as usize];
        // What failed before may be said once.
        let read = (0..200).find_map(|_| self.file.read(0, &mut out).ok());
        read.ok_or("a block cannot be read although the disk is repaired")?;
        for (sector, bytes) in out.chunks(SECTOR).enumerate() {
            let version = version_of(sector as u64, bytes)?;
            if version != self.now[sector] {
                return Err(format!(
                    "sector {sector} has version {version} instead of {}",
                    self.now[sector]
                ));
            }
        }
        self.file.sync().map_err(|error| error.to_string())?;
        self.floor = self.now.clone();
        self.disk.lose_power(3);
        self.check_disk()?;
        let stats = self.tier.stats();
        match stats.dirty {
            0 => Ok(()),
            dirty => Err(format!("{dirty} blocks are dirty after a sync")),
        }
    }
}

fn run(seed: u64) -> Checked {
    let mut model = Model::new(seed);
    for step in 0..STEPS {
        model.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    // Half of the runs end with a loss of power while requests are under way.
    if seed.is_multiple_of(2) {
        model.disk.lose_power(seed);
        return model.check_disk();
    }
    model.end()
}

#[test]
fn random_requests_see_and_store_what_was_written() {
    for seed in 0..300 {
        run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn each_broken_rule_shows() {
    let rules = [
        Rule::AcquiredStays,
        Rule::DirtyStays,
        Rule::DirtyWhileHeld,
        Rule::DirtiedAgain,
        Rule::BlankIsPrivate,
        Rule::ReadAgain,
    ];
    for rule in rules {
        BROKEN.set(Some(rule));
        // A count that goes wrong is a sign as well.
        let outcome = |seed| std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| Err("it panicked".into()));
        let shown = (0..300).find_map(|seed| outcome(seed).err().map(|what| (seed, what)));
        BROKEN.set(None);
        let (seed, what) = shown.unwrap_or_else(|| panic!("{rule:?} is broken, and nothing shows"));
        println!("{rule:?}: seed {seed}: {what}");
    }
}
