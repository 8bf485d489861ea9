//! Ranks: as threads of this process, and as processes that `mpirun` starts where the program has MPI.

#[cfg(feature = "mpi")]
mod job;
#[cfg(feature = "mpi")]
mod killed;
#[cfg(feature = "mpi")]
mod mpirun;
mod threads;
#[cfg(not(feature = "mpi"))]
mod without_mpi;
