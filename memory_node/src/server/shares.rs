//! Sealed memory that other clients may read: by keys that cannot be guessed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::access::random;
use crate::error::NodeError;
use crate::pool::Slice;
use crate::protocol::Nonce;

/// What is shared. It is there as long as any client has it: the one that filled it, or one that attached.
#[derive(Debug, Default)]
pub struct Shares {
    known: HashMap<Nonce, Weak<Slice>>,
}

impl Shares {
    /// The key by which others may read this memory, which nothing writes any more. It stays the same.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub fn key_of(&mut self, memory: &Arc<Slice>) -> Result<Nonce, NodeError> {
        self.known.retain(|_, known| known.strong_count() > 0);
        let this = Arc::downgrade(memory);
        if let Some((key, _)) = self.known.iter().find(|(_, known)| known.ptr_eq(&this)) {
            return Ok(*key);
        }
        let key = random()?;
        self.known.insert(key, this);
        Ok(key)
    }

    /// What is shared by a key.
    pub fn memory(&self, key: &Nonce) -> Option<Arc<Slice>> {
        self.known.get(key).and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;
    use crate::pool::{PAGE_BYTES, Pool};

    #[test]
    fn memory_is_shared_until_the_last_one_leaves() {
        let pool = Pool::new(Mapping::plain(16 * 4096).unwrap());
        let [first, second] = [1, 2].map(|pages| Arc::new(pool.take(pages * PAGE_BYTES).unwrap()));
        let mut shares = Shares::default();
        let key = shares.key_of(&first).unwrap();
        assert_eq!(shares.key_of(&first).unwrap(), key);
        assert_ne!(shares.key_of(&second).unwrap(), key);
        assert!(shares.memory(&[0; 16]).is_none());
        let attached = shares.memory(&key).unwrap();
        assert_eq!(attached.pointer(), first.pointer());
        // Who filled it leaves first: it stays, and is granted to nothing else.
        drop(first);
        assert_eq!(pool.free(), 13 * PAGE_BYTES);
        assert!(shares.memory(&key).is_some());
        drop(attached);
        assert_eq!(pool.free(), 14 * PAGE_BYTES);
        assert!(shares.memory(&key).is_none());
        // The next key finds that it has gone.
        let third = Arc::new(pool.take(PAGE_BYTES).unwrap());
        shares.key_of(&third).unwrap();
        assert_eq!(shares.known.len(), 2);
    }
}
