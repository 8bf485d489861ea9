//! A fake of libibverbs.so.1 and libmlx5.so.1.
//!
//! It exports, from one shared library, the functions of both that `gpuvm_nic::mlx5` uses. Its device `mlx5_0` makes
//! queue pairs whose rings lie where the parent domain's allocators put them, and a software NIC executes them: data
//! moves. To put it in the libraries' place, give the shared library both names, by links to one file, in a folder, and
//! name the folder in `LD_LIBRARY_PATH` when a program starts. The program needs no change:
//!
//! ```sh
//! cargo build -p gpuvm-fake-rdma && mkdir -p target/fake
//! for name in libibverbs.so.1 libmlx5.so.1; do ln -sf ../debug/libfake_rdma.so target/fake/$name; done
//! LD_LIBRARY_PATH=target/fake PROGRAM
//! ```
//!
//! Its device reaches itself alone: a path that does not lead back to its port has no route. There is no connection
//! manager.
//!
//! It is stricter than the libraries: arguments that they would take on trust are checked, and what is torn down in the
//! wrong order, used after its end, or left behind is noted as a breach.
//!
//! | variable | effect |
//! |---|---|
//! | `FAKE_RDMA_LOG` | the file that each call is appended to, and each breach |
//! | `FAKE_RDMA_FAIL` | calls that fail, as `name:errno` or `name:errno@n` (the n-th call), separated by commas; the name `any` counts all |
//! | `FAKE_RDMA_PORT` | `down`: the port has no link; `another_down`: there is a device before it, `mlx5_9`, whose port has none |
//! | `FAKE_RDMA_LINK` | `infiniband` instead of Ethernet |
//! | `FAKE_RDMA_ALLOCATORS` | `ignored`: rings lie in memory of the library |
//! | `FAKE_RDMA_ENTRY_BYTES` | bytes of a completion that it tells (64) |
//! | `FAKE_RDMA_REQUEST_BLOCKS` | blocks of the send ring for each request (1) |
//! | `FAKE_RDMA_ENGINES` | threads that execute queues (1) |
//!
//! A test can steer and ask it by the functions whose names begin with `fake_rdma_`; see [`control`].

mod calls;
mod config;
pub mod control;
mod devx;
mod direct;
mod errno;
mod mapping;
mod objects;
mod verbs;

pub(crate) use calls::{pointer, status};
pub(crate) use errno::{Outcome, set_errno};
