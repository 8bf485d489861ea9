//! How what was written goes to the files.

use std::{sync::Arc, time::Instant};

use super::{RETRY_AFTER, Slot, Slots};
use crate::{
    FileError,
    engine::Op,
    opened::Opened,
    rules::{Rule, holds},
};

impl Slots {
    /// A block is clean.
    pub(super) fn cleaned(&mut self, slot: u32) {
        let slot = &mut self.slots[slot as usize];
        slot.dirty = false;
        if let Some(file) = self.dirty_files.get_mut(&slot.key.0) {
            file.blocks -= 1;
            if file.blocks == 0 {
                self.dirty_files.remove(&slot.key.0);
            }
        }
    }

    pub(super) fn written(&mut self, op: Op, result: std::io::Result<u64>) {
        let bytes = op.bytes();
        let failure = match result {
            Ok(moved) if moved == bytes => None,
            Ok(moved) => Some(std::io::Error::new(
                std::io::ErrorKind::WriteZero,
                format!("{moved} of {bytes} bytes were taken"),
            )),
            Err(error) => Some(error),
        };
        let doubted = self
            .dirty_files
            .get(&op.file.id)
            .is_some_and(|file| op.number <= file.doubted);
        let mut refused = Vec::new();
        for &slot in &op.slots {
            let held = &mut self.slots[slot as usize];
            held.writing = false;
            let again = std::mem::take(&mut held.again) && holds(Rule::DirtiedAgain);
            let stays = again || held.writers > 0 || failure.is_some() && holds(Rule::DirtyStays);
            match stays {
                // Of several, one may be the cause: each is tried by itself first.
                true if failure.is_some() && op.slots.len() == 1 && !doubted => refused.push(slot),
                true => self.dirtied.push_back(slot),
                false => self.cleaned(slot),
            }
        }
        match failure {
            None => self.stats.written_bytes += bytes,
            Some(_) => self.stats.failures += 1,
        }
        let Some(file) = self.dirty_files.get_mut(&op.file.id) else {
            return;
        };
        file.refused.append(&mut refused);
        match failure {
            Some(source) => {
                let (path, offset) = (op.file.path.clone(), op.offset);
                let failure = FileError::Write {
                    path,
                    offset,
                    bytes,
                    source: Arc::new(source),
                };
                file.alone = true;
                if !doubted {
                    file.failed = Some((failure, Instant::now()));
                }
            }
            None if file.refused.is_empty() => file.failed = None,
            None => {}
        }
    }

    /// Has the file's blocks written at once that could not be. Failures of writes that have begun by now are none.
    pub fn retry_writes(&mut self, file: &Opened) {
        if let Some(file) = self.dirty_files.get_mut(&file.id) {
            file.failed = None;
            file.doubted = self.stats.writes;
            self.dirtied.extend(file.refused.drain(..));
        }
    }

    /// Begins to write this many dirty blocks, the oldest first; those that were refused a while ago are tried again.
    pub(super) fn write_oldest(&mut self, most: usize) {
        for file in self.dirty_files.values_mut() {
            if file
                .failed
                .as_ref()
                .is_some_and(|(_, when)| when.elapsed() >= RETRY_AFTER)
            {
                self.dirtied.extend(file.refused.drain(..));
            }
        }
        let (mut chosen, mut later) = (Vec::new(), Vec::new());
        let most = most.min(self.engines.room() * self.blocks_joined());
        while chosen.len() < most
            && let Some(slot) = self.dirtied.pop_front()
        {
            let held = &self.slots[slot as usize];
            if !held.dirty || held.writing {
                continue;
            }
            match held.writers > 0 {
                true => later.push(slot),
                false => chosen.push(slot),
            }
        }
        self.dirtied.extend(later);
        self.write(chosen);
    }

    /// Begins to write slots; those for which no operation is left stay dirty.
    pub(super) fn write(&mut self, mut chosen: Vec<u32>) {
        chosen.sort_unstable_by_key(|slot| self.slots[*slot as usize].key);
        chosen.dedup();
        let mut rest = chosen.into_iter().peekable();
        while self.engines.room() > 0
            && let Some(slot) = rest.next()
        {
            let key = self.slots[slot as usize].key;
            let Some(dirty) = self.dirty_files.get(&key.0) else {
                continue;
            };
            let (file, most) = (
                Arc::clone(&dirty.file),
                if dirty.alone { 1 } else { self.blocks_joined() },
            );
            let mut run = vec![(key.1, slot)];
            while run.len() < most
                && let Some(next) =
                    rest.next_if(|next| self.slots[*next as usize].key == (key.0, key.1 + run.len() as u64))
            {
                run.push((key.1 + run.len() as u64, next));
            }
            for (_, slot) in &run {
                self.slots[*slot as usize].writing = true;
            }
            self.begin(file, true, false, &run);
        }
        self.dirtied.extend(rest);
    }

    /// Begins to write dirty blocks of a file. Whether it has none. An error once none is left but those that cannot be written.
    pub fn write_some_of(&mut self, file: &Arc<Opened>) -> Result<bool, FileError> {
        let Some(dirty) = self.dirty_files.get(&file.id) else {
            return Ok(true);
        };
        if let Some((failure, _)) = &dirty.failed
            && dirty.refused.len() as u64 == dirty.blocks
        {
            // All others are written.
            return Err(failure.clone());
        }
        let most = self.engines.room() * self.blocks_joined();
        let (slots, mut chosen) = (&self.slots, Vec::new());
        self.dirtied.retain(|slot| {
            let held = &slots[*slot as usize];
            let waits = held.dirty && !held.writing;
            let begins = waits && held.key.0 == file.id && held.writers == 0 && chosen.len() < most;
            if begins {
                chosen.push(*slot);
            }
            waits && !begins
        });
        self.write(chosen);
        self.engines.start_all();
        if !holds(Rule::DirtyWhileHeld) {
            let waits = |slot: &Slot| slot.key.0 == file.id && slot.dirty && slot.writers == 0;
            return Ok(!self.slots.iter().any(waits));
        }
        Ok(false)
    }
}
