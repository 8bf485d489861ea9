//! The sizes of benchmarks whose frames come and go.

use clap::Args;

use crate::error::CliError;
use crate::sizes::parse_bytes;

/// Data in host memory, and frames for a part of it whose number changes.
#[derive(Debug, Args)]
pub struct ChangingArgs {
    /// Bytes of the data, whose pages a kernel reads in a random order. Without it: 24 GiB, and 12 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub data: Option<u64>,

    /// Bytes of frames. Without it: 20 GiB, and 8 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub frames: Option<u64>,
}

/// As [`ChangingArgs`], with what there is for options that were not given.
#[derive(Clone, Copy, Debug)]
pub struct Changing {
    /// Pages of the data.
    pub pages: u64,
    /// Bytes of frames.
    pub frames: u64,
    /// Bytes by which the frame pool shrinks, or that another process allocates.
    pub going: u64,
}

impl ChangingArgs {
    /// The sizes on an NVIDIA GPU, or on a simulated one. `going` is the option `name`.
    ///
    /// # Errors
    /// [`CliError::Options`] for sizes that do not go together.
    pub fn sizes(&self, is_cuda: bool, name: &str, page: u64, going: u64) -> Result<Changing, CliError> {
        let usual = |cuda: u64, simulated: u64| if is_cuda { cuda } else { simulated };
        let frames = self.frames.unwrap_or(usual(20 << 30, 8 << 20));
        let pages = self.data.unwrap_or(usual(24 << 30, 12 << 20)) / page;
        if going >= frames || going < page || pages == 0 || pages > u64::from(u32::MAX) {
            return Err(CliError::Options(format!(
                "{name} must be at least a page and less than --frames, and --data must be between one page and 2^32 pages"
            )));
        }
        Ok(Changing { pages, frames, going })
    }
}
