//! Ranks by MPI.

use std::ops::Range;

use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use mpi::{Count, Threading};

use crate::ranks::check_parts;
use crate::{ClusterError, Place, Ranks};

/// The ranks that `mpirun` or `srun` started; one where neither did. MPI ends with it: all ranks drop it. Only the thread that made it uses
/// it. What MPI itself reports ends the job, by MPI's own handler of errors.
pub struct Mpi {
    // Communicators go before MPI ends.
    world: SimpleCommunicator,
    host: SimpleCommunicator,
    place: Place,
    _universe: Universe,
}

impl Mpi {
    /// Starts MPI.
    ///
    /// # Errors
    /// [`ClusterError::Started`].
    pub fn start() -> Result<Self, ClusterError> {
        // Other threads of this process never call MPI.
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled).ok_or(ClusterError::Started)?;
        let world = universe.world();
        let host = world.split_shared(world.rank());
        let place = Place {
            rank: number(world.rank()),
            size: number(world.size()),
            on_host: number(host.rank()),
            of_host: number(host.size()),
        };
        Ok(Self {
            world,
            host,
            place,
            _universe: universe,
        })
    }

    /// Ends the job, with this status of this rank.
    pub fn abort(&self, status: u8) -> ! {
        self.world.abort(status.into())
    }
}

/// A rank or a count of ranks, which are never negative.
fn number(count: Count) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// What its first rank says.
fn from_root(world: &SimpleCommunicator, said: &[u8]) -> Vec<u8> {
    let root = world.process_at_rank(0);
    let mut length = said.len() as u64;
    root.broadcast_into(&mut length);
    let mut heard = if world.rank() == 0 { said.to_vec() } else { Vec::new() };
    heard.resize(length as usize, 0);
    root.broadcast_into(&mut heard[..]);
    heard
}

impl Ranks for Mpi {
    fn place(&self) -> Place {
        self.place
    }

    fn barrier(&self) {
        self.world.barrier();
    }

    fn host_barrier(&self) {
        self.host.barrier();
    }

    fn gather(&self, what: &str, own: &[u32], parts: &[Range<usize>], all: &mut [u32]) -> Result<(), ClusterError> {
        check_parts(what, self.place, own.len(), parts, all.len())?;
        // All fit, as `check_parts` has seen.
        let counts: Vec<Count> = parts.iter().map(|part| part.len() as Count).collect();
        let places: Vec<Count> = parts.iter().map(|part| part.start as Count).collect();
        let mut into = PartitionMut::new(all, counts, places);
        self.world.all_gather_varcount_into(own, &mut into);
        Ok(())
    }

    fn sum(&self, number: u64) -> u64 {
        let mut sum = 0;
        self.world.all_reduce_into(&number, &mut sum, SystemOperation::sum());
        sum
    }

    fn most(&self, number: f64) -> f64 {
        let mut most = number;
        self.world.all_reduce_into(&number, &mut most, SystemOperation::max());
        most
    }

    fn hear_first(&self, said: &[u8]) -> Vec<u8> {
        from_root(&self.world, said)
    }

    fn hear_first_of_host(&self, said: &[u8]) -> Vec<u8> {
        from_root(&self.host, said)
    }
}
