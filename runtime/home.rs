//! Where a region's pages live: memory of this host or a file there, of a neighbour GPU, or of memory nodes across the network.
//! Another kind of home is another implementation of [`Home`], and nothing else.

use std::{ops::Range, sync::Arc};

use bytemuck::Zeroable;
use gpuvm_gpu::{Gpu, GpuError, HostRegistration};
use gpuvm_layouts::StripeDesc;
use gpuvm_nic::{MemoryKey, Nic, NicError};
use parking_lot::Mutex;

use crate::{
    error::{Doing, Result},
    frames::FrameMemory,
    node::Node,
    queues::{Queues, Reached},
};

mod at_nodes;
mod host;
mod host_pages;
mod in_file;
mod neighbour;
mod striped;

pub(crate) use at_nodes::AtNodes;
pub(crate) use host::InHost;
pub(crate) use host_pages::{FileMap, HostPages};
pub(crate) use in_file::InFile;
pub(crate) use neighbour::AtNeighbour;
pub(crate) use striped::{NodeMemory, Striped};

/// What leads from one GPU to homes.
pub(crate) struct DataPaths<'a> {
    pub gpu: &'a dyn Gpu,
    /// None where lanes copy the pages themselves.
    pub nics: &'a [Arc<dyn Nic>],
    /// None where lanes copy the pages themselves.
    pub queues: Option<&'a Queues>,
    /// Memory nodes, in the order of the groups of queue pairs.
    pub nodes: &'a [Arc<Node>],
}

/// Where pages of a region live. Every kind of home answers every question: none has an answer for kinds that it does not know.
/// A region with replicas has two of them and chooses for each page: what decides is in GPU memory (`region/replicas.rs`).
pub(crate) trait Home: Send + Sync {
    /// What holds a page, as reports name it.
    fn name(&self, page: u64) -> String;

    /// What is said of it beside a page that could not be served; nothing for this host's own memory. It never waits.
    fn holder(&self, page: u64) -> Option<String>;

    /// Copies bytes out.
    ///
    /// # Errors
    /// Of a home that is elsewhere.
    ///
    /// # Safety
    /// The span lies in the home, and nothing writes it meanwhile.
    unsafe fn read(&self, gpu: &dyn Gpu, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// Of a home that is elsewhere.
    ///
    /// # Safety
    /// The span lies in the home, which may be written, and nothing else reads or writes it meanwhile.
    unsafe fn write(&self, gpu: &dyn Gpu, offset: u64, data: &[u8]) -> Result<()>;

    /// Lets a GPU's NICs or lanes reach it, until the answer is [withdrawn](Reach::withdraw).
    ///
    /// # Errors
    /// The GPU's and the NICs'.
    fn register(&self, paths: &DataPaths<'_>, read_only: bool) -> Result<Reach>;

    /// Where its pages are, as the device sees it: at least one part, each with a stripe for every NIC that reaches it. With the
    /// frames of a region that has its own.
    fn stripes(&self, paths: &DataPaths<'_>, reach: &Reach, own_frames: Option<&FrameMemory>) -> Vec<Vec<StripeDesc>>;

    /// Device address of page 0 where lanes copy pages themselves, else 0.
    fn direct_addr(&self, reach: &Reach) -> u64;

    /// Whether the host cannot reach a page, or what the home held of it is gone.
    fn is_lost(&self, paths: &DataPaths<'_>, page: u64) -> bool;

    /// Whether the host or kernels cannot reach a page.
    fn is_away(&self, paths: &DataPaths<'_>, page: u64) -> bool;

    /// Whether kernels could not at some time: what the home holds of the page may be behind.
    fn was_away(&self, paths: &DataPaths<'_>, page: u64) -> bool;

    /// This host's memory, if that is what it is.
    fn host_memory(&self) -> Option<&HostPages>;

    /// The bytes of a file that it is, if it is that.
    fn file_span(&self) -> Option<FileSpan>;

    /// The memory of nodes, which goes with their sessions, if that is what it is.
    fn at_nodes(&self) -> Option<&Striped>;

    /// Tries again what it could not store: the cause may be fixed.
    fn retry_writes(&self);

    /// Has the system store what it holds where that outlives the process.
    ///
    /// # Errors
    /// [`Error::Sync`](crate::Error::Sync).
    fn sync(&self) -> Result<()>;

    /// Gives memory of other machines and GPUs back. Nothing reaches it any more.
    fn give_back(&self);
}

/// Bytes of a file.
pub(crate) struct FileSpan {
    /// Device and number of the file, which its names share.
    pub identity: (u64, u64),
    pub bytes: Range<u64>,
}

/// One of a region's homes, and how the region's GPU reaches it.
pub(crate) struct ReachedHome {
    // Dropped in this order: nothing reaches memory that is gone.
    pub reach: Reach,
    pub home: Arc<dyn Home>,
}

impl ReachedHome {
    pub fn stripes(&self, paths: &DataPaths<'_>, own_frames: Option<&FrameMemory>) -> Vec<Vec<StripeDesc>> {
        self.home.stripes(paths, &self.reach, own_frames)
    }

    pub fn direct_addr(&self) -> u64 {
        self.home.direct_addr(&self.reach)
    }
}

/// How one GPU reaches a home.
pub(crate) enum Reach {
    /// By nothing that was registered here: it is empty, or another machine's or GPU's.
    None,
    /// The NICs, each by a key, and what moves a software NIC's bytes, in place.
    Nics(Mutex<HomeKeys>, Mutex<Option<HostRegistration>>),
    /// Lanes, in place; none once they may not any more.
    Lanes(Mutex<Option<HostRegistration>>),
}

impl Reach {
    /// Takes the home of `region` from NICs and lanes. It may be tried again after an error, when it may be reached still.
    pub fn withdraw(&self, gpu: &dyn Gpu, region: &str) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Nics(keys, pinned) => {
                let gone = keys.lock().deregister();
                gone.doing(|| format!("deregistering region `{region}`"))?;
                drop(pinned.lock().take());
                Ok(())
            }
            Self::Lanes(registration) => {
                let mut registration = registration.lock();
                // A dead context reaches nothing; a kernel that runs on may reach the memory for ever.
                if let Some(cause) = gpu.lost()
                    && !matches!(cause, GpuError::Lost { .. })
                {
                    std::mem::forget(registration.take());
                    return Err(cause).doing(|| format!("taking region `{region}` from its lanes"));
                }
                drop(registration.take());
                Ok(())
            }
        }
    }
}

/// The keys of one home, one a NIC, in the NICs' order.
#[derive(Default)]
pub(crate) struct HomeKeys(Vec<(Arc<dyn Nic>, MemoryKey)>);

impl HomeKeys {
    pub fn push(&mut self, nic: &Arc<dyn Nic>, key: MemoryKey) {
        self.0.push((Arc::clone(nic), key));
    }

    pub fn iter(&self) -> impl Iterator<Item = MemoryKey> {
        self.0.iter().map(|(_, key)| *key)
    }

    /// Takes the keys back. Those that could not be are left for another try.
    pub fn deregister(&mut self) -> Result<(), NicError> {
        while let Some((nic, key)) = self.0.last() {
            nic.deregister(*key)?;
            self.0.pop();
        }
        Ok(())
    }
}

impl Drop for HomeKeys {
    fn drop(&mut self) {
        // A region whose creation failed half way: nothing has used the keys.
        if let Err(error) = self.deregister() {
            tracing::error!(%error, "host memory stays registered with the NIC");
        }
    }
}

/// A stripe at address `home`.
fn stripe(home: u64, rkey: u32, reached: &Reached, own_frames: Option<&FrameMemory>) -> StripeDesc {
    StripeDesc {
        home,
        frame_keys: own_frames.map_or(0, |frames| frames.keys_of(reached.nic)),
        rkey,
        queue_first: reached.first,
        queue_count: reached.count,
        flags: 0,
    }
}

/// The stripes of a home that software NICs reach here at address `home`, over queue pairs for place `place` of this host.
fn stripes_of_this_host(
    home: u64,
    place: usize,
    paths: &DataPaths<'_>,
    reach: &Reach,
    own_frames: Option<&FrameMemory>,
) -> Vec<Vec<StripeDesc>> {
    let (Reach::Nics(keys, _), Some(queues)) = (reach, paths.queues) else {
        return unmoved(home);
    };
    let keys = keys.lock();
    let with_key = keys.iter().zip(queues.of_host(place));
    vec![
        with_key
            .map(|(key, reached)| stripe(home, key.rkey, &reached, own_frames))
            .collect(),
    ]
}

/// The only stripe of a home whose queue pairs nothing looks at: it has no page, or none that a NIC moves.
fn unmoved(home: u64) -> Vec<Vec<StripeDesc>> {
    vec![vec![StripeDesc {
        home,
        ..StripeDesc::zeroed()
    }]]
}
