//! The installed library, as programs in C and C++ find it: their tests are compiled and run here, with the simulated GPU.

mod abi;
mod examples;
mod misuse;
mod prefix;
