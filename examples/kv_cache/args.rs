//! The command line, and what it comes to.

use clap::Parser;
use gpuvm::Gpu;
use gpuvm_tenants::{MemorySize, parse_bytes};

use crate::{
    cache::{Form, Four},
    error::Problem,
};

/// Decode steps of attention over sequences whose keys and values grow by a token a step, held in several forms.
///
/// Every form runs the same kernels, from one text, and has to give the same bits in every step; the last step of what is small is
/// compared with the CPU as well. Keys, values and queries are drawn by hashing, inside the steps that are timed.
#[derive(Debug, Parser)]
#[command(name = "kv_cache")]
pub struct Options {
    /// Sequences that are decoded together.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub sequences: u32,

    /// Steps that are timed: each adds a token to every sequence. Without it: 128, or 4 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub steps: Option<u32>,

    /// Tokens of the shortest sequence before the first step; the longest has twice as many, the others lie between. Without it: 2048,
    /// or 64 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub prompt: Option<u32>,

    /// Heads of attention. Without it: 32, or 2 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub heads: Option<u32>,

    /// Numbers (float) of a head: a multiple of 4 up to 128.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = parse_head_size)]
    pub head_size: u32,

    /// Tokens of a block of the pool: a multiple of 8.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = parse_block_tokens)]
    pub block_tokens: u32,

    /// The forms to run: `--form elastic,blocks`. Without it: all but managed.
    #[arg(long, value_name = "FORM", value_enum, value_delimiter = ',')]
    pub form: Vec<Form>,

    /// Memory for the frames of the paged form: a share of the keys and values of the last step, or a size.
    #[arg(long, value_name = "SHARE|SIZE", default_value = "50%")]
    pub memory: MemorySize,

    /// Bytes of a page of the paged form: a power of two from 4KiB to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// The GPU: sim, cuda:N, cuda:GPU-UUID, or auto.
    #[arg(long, default_value = "auto")]
    pub gpu: Gpu,

    /// Times that each form runs; the median counts. Without it: 3, or 1 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,

    /// Print a JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Numbers of a head that the lanes of a warp hold, four each.
const HEAD_SIZE_MAX: u32 = 128;
/// Tokens that a warp loads at once, which have to lie side by side: `kTile` of the kernels.
const TILE_TOKENS: u32 = 8;
/// Tokens of the largest block.
const BLOCK_TOKENS_MAX: u32 = 1 << 16;

fn parse_multiple(text: &str, of: u32, max: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (of..=max).contains(&number) && number % of == 0 => Ok(number),
        _ => Err(format!("give a multiple of {of} from {of} to {max}")),
    }
}

fn parse_head_size(text: &str) -> Result<u32, String> {
    parse_multiple(text, 4, HEAD_SIZE_MAX)
}

fn parse_block_tokens(text: &str) -> Result<u32, String> {
    parse_multiple(text, TILE_TOKENS, BLOCK_TOKENS_MAX)
}

fn parse_page_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes @ 4096..=0x20_0000 if bytes.is_power_of_two() => Ok(bytes),
        bytes => Err(format!("{bytes} bytes; a page is a power of two from 4KiB to 2MiB")),
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tokens of each sequence before the first step, the longest first, so that it does not begin last.
    pub prompts: Vec<u32>,
    /// Steps that are timed.
    pub steps: u32,
    /// Heads of attention.
    pub heads: u32,
    /// Numbers of a head.
    pub head_size: u32,
    /// Tokens of a block of the pool.
    pub block_tokens: u32,
    /// Memory for the frames of the paged form.
    pub memory: MemorySize,
    /// Bytes of a page of the paged form.
    pub page_bytes: u64,
    /// Times that each form runs.
    pub repeat: u32,
    /// The forms to run, each once.
    pub forms: Vec<Form>,
    /// The GPU that was asked for.
    pub gpu: Gpu,
}

impl Plan {
    /// What the options ask for on a simulated GPU, or on another.
    ///
    /// # Errors
    /// [`Problem::TooLarge`].
    pub fn new(options: &Options, simulated: bool) -> Result<Self, Problem> {
        let choose = |given: Option<u32>, small, large| given.unwrap_or(if simulated { small } else { large });
        let (count, prompt) = (u64::from(options.sequences), choose(options.prompt, 64, 2048));
        let between = |n: u64| prompt + (u64::from(prompt) * n / (count - 1).max(1)) as u32;
        let mut forms = Vec::new();
        for form in if options.form.is_empty() {
            &Form::USUAL[..]
        } else {
            &options.form
        } {
            if !forms.contains(form) {
                forms.push(*form);
            }
        }
        let plan = Self {
            prompts: (0..count).rev().map(between).collect(),
            steps: choose(options.steps, 4, 128),
            heads: choose(options.heads, 2, 32),
            head_size: options.head_size,
            block_tokens: options.block_tokens,
            memory: options.memory,
            page_bytes: options.page_size,
            repeat: choose(options.repeat, 1, 3),
            forms,
            gpu: options.gpu.clone(),
        };
        match plan.room_bytes() {
            Some(_) => Ok(plan),
            None => Err(Problem::TooLarge),
        }
    }

    /// Sequences.
    pub fn sequences(&self) -> u32 {
        self.prompts.len() as u32
    }

    /// Tokens of a sequence in a step; step 0 is before the first one.
    pub fn tokens(&self, sequence: u32, step: u32) -> u32 {
        self.prompts[sequence as usize] + step
    }

    /// The most tokens that a sequence comes to.
    pub fn capacity(&self) -> u32 {
        self.prompts.iter().max().map_or(0, |longest| longest + self.steps)
    }

    /// Fours of numbers of a row: a token's keys, or its values.
    pub fn row(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.head_size) / 4
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.row() * size_of::<Four>() as u64
    }

    /// Bytes of the keys and values of the last step.
    pub fn used_bytes(&self) -> u64 {
        let tokens = (0..self.sequences()).map(|sequence| u64::from(self.tokens(sequence, self.steps)));
        2 * tokens.sum::<u64>() * self.row_bytes()
    }

    /// Bytes of room for all sequences as long as the longest, keys and values, if there can be so many.
    fn room_bytes(&self) -> Option<u64> {
        let tokens = self.sequences().checked_mul(self.capacity())?;
        let bytes = 2 * u64::from(tokens) * self.row_bytes();
        (bytes < ROOM_MAX).then_some(bytes)
    }
}

/// Bytes that a process has addresses for, about.
const ROOM_MAX: u64 = 1 << 46;
