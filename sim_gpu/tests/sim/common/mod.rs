//! What the tests of the simulated GPU share.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use gpuvm_gpu::{
    CompileOptions, DeviceMemory, Gpu, GpuError, Kernel, Launch, LaunchConfig, LaunchOutcome, Module, Source, Stream,
};
use gpuvm_sim_gpu::{Mode, SimGpu, SimGpuBuilder};

/// No kernel of the tests may take longer, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A GPU, one compiled source and one stream.
pub struct Bed {
    pub module: Arc<dyn Module>,
    pub stream: Arc<dyn Stream>,
    pub gpu: SimGpu,
}

/// The defaults of these tests.
pub fn builder() -> SimGpuBuilder {
    SimGpu::builder().memory_bytes(64 << 20)
}

/// `text` compiled on a GPU of `builder`, or a panic with the compiler's log.
pub fn bed_on(builder: SimGpuBuilder, text: &str, kernels: &[&str]) -> Bed {
    let gpu = builder.build().expect("a simulated GPU");
    let source = Source::new("test.cu", text);
    let module = gpu
        .compile(&source, kernels, &CompileOptions::default())
        .unwrap_or_else(|e| panic!("{e}"));
    let stream = gpu.stream().expect("a stream");
    Bed { module, stream, gpu }
}

/// `text` compiled on a GPU of the fast mode.
pub fn bed(text: &str, kernels: &[&str]) -> Bed {
    bed_on(builder(), text, kernels)
}

/// `text` compiled on a GPU of the seeded mode.
pub fn seeded(seed: u64, text: &str, kernels: &[&str]) -> Bed {
    bed_on(builder().mode(Mode::Seeded(seed)), text, kernels)
}

impl Bed {
    pub fn kernel(&self, name: &str) -> Arc<dyn Kernel> {
        self.module.kernel(name).expect("the kernel was compiled")
    }

    /// `count` zeroed words.
    pub fn words(&self, count: usize) -> DeviceMemory {
        self.gpu.allocate(count as u64 * 4, 256).expect("memory")
    }

    pub fn start(&self, name: &str, config: &LaunchConfig, args: &[&[u8]]) -> Arc<dyn Launch> {
        self.start_on(&self.stream, name, config, args)
    }

    pub fn start_on(
        &self,
        stream: &Arc<dyn Stream>,
        name: &str,
        config: &LaunchConfig,
        args: &[&[u8]],
    ) -> Arc<dyn Launch> {
        stream
            .launch(&self.kernel(name), config, args, 0, Box::new(|_| ()))
            .expect("a launch")
    }

    /// Launches and waits.
    pub fn outcome(&self, name: &str, config: &LaunchConfig, args: &[&[u8]]) -> LaunchOutcome {
        self.start(name, config, args)
            .wait(Some(LIMIT))
            .expect("it ends in time")
    }

    /// The error that a launch must end with.
    pub fn error(&self, name: &str, config: &LaunchConfig, args: &[&[u8]]) -> GpuError {
        self.outcome(name, config, args).expect_err("the launch must fail")
    }

    /// Launches `name(out, args..)` over zeroed words and gives them back.
    pub fn run(&self, name: &str, config: &LaunchConfig, count: usize, args: &[&[u8]]) -> Vec<u32> {
        let out = self.words(count);
        let address = out.addr().to_ne_bytes();
        let mut all: Vec<&[u8]> = vec![&address];
        all.extend_from_slice(args);
        self.outcome(name, config, &all).unwrap_or_else(|e| panic!("{e}"));
        self.read(&out, count)
    }

    /// Sets the first word.
    pub fn set(&self, memory: &DeviceMemory, value: u32) {
        self.gpu
            .write(memory.addr(), &value.to_ne_bytes())
            .expect("live memory");
    }

    pub fn read(&self, memory: &DeviceMemory, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.gpu.read(memory.addr(), &mut bytes).expect("live memory");
        bytes
            .chunks_exact(4)
            .map(|c| u32::from_ne_bytes([c[0], c[1], c[2], c[3]]))
            .collect()
    }
}
