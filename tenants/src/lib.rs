//! Processes that use gpuvm share a GPU's memory by asking: who is short asks, and who has more than its share gives some up.
//!
//! There is no daemon and no right that a user does not have anyway. A folder of the user ([`Folder`]) has a locked file and a socket
//! for each [`Tenant`]; both mean nothing any more once its process is dead. Who gives how much is a function, [`plan`].
//! What a process holds and how it gives it up, it says by a [`Holder`].
//!
//! ```
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//!
//! use gpuvm_tenants::{DriverView, Folder, Holder, Holding, SharedGpu, Tenant, Terms};
//!
//! struct Nothing;
//! impl Holder for Nothing {
//!     fn holding(&self) -> Holding {
//!         Holding::default()
//!     }
//!     fn give_up(&self, _bytes: u64, _deadline: Instant) -> u64 {
//!         0
//!     }
//! }
//!
//! # let above = tempfile::tempdir()?;
//! # let folder = Folder::at(above.path().join("registry"));
//! # let _ = stringify!(
//! let folder = Folder::of_user();
//! # );
//! let gpu = SharedGpu { key: "sim".parse()?, total_bytes: 8 << 30 };
//! let tenant = Tenant::join(&folder, &gpu, Terms::from_env(gpu.total_bytes)?, Arc::new(Nothing))?;
//! // No other tenant is there, and the driver does not say what is free.
//! let refused = tenant.ask(1 << 20, Duration::from_secs(5), DriverView::default);
//! assert!(refused.unwrap_err().to_string().starts_with("1 MiB of GPU memory were asked for, and 0 B are available"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entry;
mod folder;
mod message;
mod peer;
mod places;
mod plan;
mod server;
mod short;
mod size;
mod tenant;
mod terms;

use std::time::Instant;

pub use folder::{FOLDER_VARIABLE, Folder, FolderError, GpuKey};
pub use message::{Changed, Description, Holding, PeerError};
pub use peer::{Peer, tenants};
pub use plan::{Stake, plan};
pub use short::{DriverView, HolderOf, Keeps, MemoryLeft, Short};
pub use size::{MemorySize, parse_bytes, spell_bytes};
pub use tenant::{AskError, Granted, JoinError, SharedGpu, Tenant};
pub use terms::{
    LIMIT_VARIABLE, Limit, LimitChange, MINIMUM_VARIABLE, Minimum, PRIORITY_VARIABLE, Terms, TermsChange, TermsError,
    parse_priority,
};

/// What a process holds of a GPU's memory, and how it gives it up. Called from threads of the [`Tenant`], [`Holder::holding`] also while
/// [`Holder::give_up`] is under way.
pub trait Holder: Send + Sync {
    /// What it holds now. It returns at once.
    fn holding(&self) -> Holding;

    /// Gives back `bytes` to the driver, or what can be given back until `deadline`, and returns how much that was. It returns by the
    /// deadline. It may give back more where its memory comes in larger units; what it may go down to are its own terms
    /// ([`Tenant::terms`]), by which `bytes` were worked out. One call comes at a time.
    fn give_up(&self, bytes: u64, deadline: Instant) -> u64;
}
