//! How blocks come.

use std::{ops::Range, sync::Arc};

use super::{AHEAD_BYTES, EMPTY, FAILED_MOST, JOINED_BLOCKS, JOINED_BYTES, Key, Phase, Slot, Slots, ToLoad};
use crate::{FileError, engine::Op, opened::Opened};

impl Slots {
    /// See [`File::expect`](crate::File::expect).
    pub fn expect(&mut self, file: &Arc<Opened>, span: Range<u64>) -> bool {
        for block in self.blocks(&span) {
            let key = (file.id, block);
            if let Some(&slot) = self.places.get(&key) {
                self.note_asked(file, slot);
                continue;
            }
            if self.failed.contains_key(&key) {
                continue;
            }
            if self.ahead >= self.slots.len() / 2 {
                return false;
            }
            let Some(slot) = self.take_slot(false) else {
                return false;
            };
            self.load_asked(file, key, slot);
        }
        true
    }

    /// Takes note of the first request for a block that was read ahead.
    pub(super) fn note_asked(&mut self, file: &Arc<Opened>, slot: u32) {
        let slot = &mut self.slots[slot as usize];
        if std::mem::take(&mut slot.unasked) {
            self.first_asked.push((Arc::downgrade(file), slot.key.1));
        }
    }

    /// Begins to load a block that somebody asks for.
    pub(super) fn load_asked(&mut self, file: &Arc<Opened>, key: Key, slot: u32) {
        // Streams learn of requests when these come: many ask at a time, and what is read ahead has to be ahead of all of them.
        self.first_asked.push((Arc::downgrade(file), key.1));
        self.load(file, key, slot);
    }

    fn load(&mut self, file: &Arc<Opened>, key: Key, slot: u32) {
        self.loads += 1;
        self.ahead += 1;
        let wanted_until = self.loads + self.slots.len() as u64;
        self.slots[slot as usize] = Slot {
            key,
            phase: Phase::Loading,
            wanted_until,
            ..EMPTY
        };
        self.places.insert(key, slot);
        self.order.enter(slot, key);
        self.to_load.push(ToLoad {
            key,
            slot,
            file: Arc::clone(file),
            alone: false,
        });
    }

    pub(super) fn loaded(&mut self, op: Op, result: std::io::Result<u64>) {
        if result.is_err() && !op.again {
            // One of several blocks may be the cause; or none is: Linux tells a read by O_DIRECT, once, that the page cache could not write
            // another part of the file before (`filemap_write_and_wait_range`).
            for slot in op.slots {
                let key = self.slots[slot as usize].key;
                self.to_load.push(ToLoad {
                    key,
                    slot,
                    file: Arc::clone(&op.file),
                    alone: true,
                });
            }
            return;
        }
        let mut left = match &result {
            Ok(bytes) => *bytes,
            Err(_) => 0,
        };
        self.stats.read_bytes += left;
        let mut offset = op.offset;
        let mut failure = None;
        for (&slot, span) in op.slots.iter().zip(&op.spans) {
            if left >= span.bytes {
                left -= span.bytes;
                self.stats.loaded += 1;
                self.slots[slot as usize].phase = Phase::Ready;
            } else {
                // The bytes came in order: what is left is of this block, and a shorter one behind it has none.
                left = 0;
                let path = op.file.path.clone();
                let why = failure.get_or_insert_with(|| match &result {
                    Ok(bytes) => FileError::Shrank {
                        path,
                        before: op.file.length,
                        now: op.offset + bytes,
                    },
                    Err(error) => {
                        let source = Arc::new(copy_of(error));
                        FileError::Read {
                            path,
                            offset,
                            bytes: span.bytes,
                            source,
                        }
                    }
                });
                let Slot { key, waited_for, .. } = self.slots[slot as usize];
                if waited_for {
                    if self.failed.len() >= FAILED_MOST {
                        self.failed.clear();
                    }
                    self.failed.insert(key, why.clone());
                }
                self.empty(slot);
            }
            offset += span.bytes;
        }
        self.stats.failures += u64::from(failure.is_some());
    }

    /// Gives waiting loads an operation each, neighbours one together.
    pub(super) fn begin_loads(&mut self) {
        if self.to_load.is_empty() || self.engines.room() == 0 {
            return;
        }
        let mut waiting = std::mem::take(&mut self.to_load);
        waiting.sort_unstable_by_key(|load| load.key);
        let mut rest = waiting.into_iter().peekable();
        while self.engines.room() > 0
            && let Some(ToLoad { key, slot, file, alone }) = rest.next()
        {
            let mut run = vec![(key.1, slot)];
            let most = if alone { 1 } else { self.blocks_joined() };
            let follows = |next: &ToLoad, blocks: usize| next.key == (key.0, key.1 + blocks as u64) && !next.alone;
            while run.len() < most
                && let Some(next) = rest.next_if(|next| follows(next, run.len()))
            {
                run.push((next.key.1, next.slot));
            }
            self.begin(file, false, alone, &run);
        }
        self.to_load.extend(rest);
    }

    /// Begins to load what streams will ask for, as far as there is room without displacing what others wait for.
    pub(super) fn read_ahead(&mut self) {
        let window = (AHEAD_BYTES / self.memory.block).clamp(1, self.slots.len() as u64 / 32);
        for (file, block) in std::mem::take(&mut self.first_asked) {
            let Some(file) = file.upgrade() else { continue };
            let end = file.length.div_ceil(self.memory.block);
            for block in self.streams.note(file.id, block, window) {
                let key = (file.id, block);
                let known = block >= end || self.places.contains_key(&key) || self.failed.contains_key(&key);
                if known {
                    continue;
                }
                if self.ahead >= self.slots.len() / 4 {
                    break;
                }
                let Some(slot) = self.take_slot(false) else { break };
                self.load(&file, key, slot);
                self.slots[slot as usize].unasked = true;
            }
        }
    }

    pub(super) fn blocks_joined(&self) -> usize {
        JOINED_BLOCKS.min((JOINED_BYTES / self.memory.block) as usize).max(1)
    }
}

/// An error that says the same.
fn copy_of(error: &std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(code) => std::io::Error::from_raw_os_error(code),
        None => std::io::Error::new(error.kind(), error.to_string()),
    }
}
