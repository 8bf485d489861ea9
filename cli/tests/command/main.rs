//! The command `gpuvm` as its users call it.

mod common;

mod bench;
mod convert;
mod doctor;
mod elastic;
mod files;
mod gps;
mod guide;
mod natural;
mod profile;
mod refusals;
mod resize;
mod run_apps;
mod run_bfs;
mod serve;
mod sharing;
mod shell;
mod simulate;
mod take;
mod tenants;
mod timeline;
