//! The command `gpuvm` as its users call it.

mod common;

mod bench;
mod convert;
mod doctor;
mod exec;
mod guide;
mod profile;
mod ptx;
mod refusals;
mod results;
mod run_apps;
mod run_bfs;
mod serve;
mod sharing;
mod shell;
mod simulate;
mod tenants;
mod timeline;
