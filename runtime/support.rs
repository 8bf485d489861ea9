//! The runtime's own kernels: whole-region flush and release, from the same device library that user kernels use.

use std::sync::Arc;

use gpuvm_gpu::{CompileOptions, Gpu, Kernel, Source, Stream};
use gpuvm_layouts as layout;

use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    vm::VmInner,
};

const SOURCE: &str = include_str!("support.cu");

pub(crate) struct Support {
    version: Arc<dyn Kernel>,
    flush: Arc<dyn Kernel>,
    release: Arc<dyn Kernel>,
    reap: Arc<dyn Kernel>,
    age: Arc<dyn Kernel>,
    catch_up: Arc<dyn Kernel>,
    forget: Arc<dyn Kernel>,
    stream: Arc<dyn Stream>,
    /// Of what goes on beside everything else.
    background: Arc<dyn Stream>,
}

impl Support {
    pub fn compile(gpu: &dyn Gpu, options: &CompileOptions) -> Result<Self> {
        let doing = || "compiling the runtime's own kernels".to_owned();
        let names = [
            "gpuvm_version",
            "gpuvm_flush",
            "gpuvm_release",
            "gpuvm_reap",
            "gpuvm_age",
            "gpuvm_catch_up",
            "gpuvm_forget",
        ];
        let module = gpu
            .compile(&Source::new("gpuvm_support.cu", SOURCE), &names, options)
            .doing(doing)?;
        let kernel = |name| module.kernel(name).doing(doing);
        Ok(Self {
            version: kernel(names[0])?,
            flush: kernel(names[1])?,
            release: kernel(names[2])?,
            reap: kernel(names[3])?,
            age: kernel(names[4])?,
            catch_up: kernel(names[5])?,
            forget: kernel(names[6])?,
            stream: gpu.stream().doing(doing)?,
            background: gpu.stream().doing(doing)?,
        })
    }

    /// Runs a kernel on this GPU and compares the layouts it was compiled with to the runtime's.
    pub fn check_version(&self, vm: &VmInner) -> Result<()> {
        let out = DeviceArray::<u32>::zeroed(&*vm.gpu, 1).doing(|| "checking the device library".into())?;
        let args = [out.addr().to_ne_bytes().to_vec()];
        vm.launcher().run(
            &self.stream,
            &self.version,
            vm.service_config(1),
            &args,
            None,
            "checking the device library",
        )?;
        let found = out
            .read(&*vm.gpu, 0, 1)
            .doing(|| "checking the device library".into())?[0];
        if found != layout::LAYOUT_VERSION {
            return Err(Error::Unavailable {
                what: "the device library".into(),
                reason: format!(
                    "its layouts have version {found}, the runtime's {}; rebuild gpuvm",
                    layout::LAYOUT_VERSION
                ),
            });
        }
        Ok(())
    }

    /// Writes the dirty pages of a region home.
    pub fn flush(&self, vm: &VmInner, region: u32, pages: u64, name: &str) -> Result<()> {
        let args = [
            vm.desc.addr().to_ne_bytes().to_vec(),
            region.to_ne_bytes().to_vec(),
            0u64.to_ne_bytes().to_vec(),
            pages.to_ne_bytes().to_vec(),
        ];
        vm.launcher().run(
            &self.stream,
            &self.flush,
            vm.service_config(pages),
            &args,
            Some((region, name.to_owned())),
            &format!("flush of region `{name}`"),
        )
    }

    /// Finishes what has completed on lost queue pairs, and closes them to reservations.
    pub fn reap(&self, vm: &VmInner, first: u32, count: u32) -> Result<()> {
        let args = [
            vm.desc.addr().to_ne_bytes().to_vec(),
            first.to_ne_bytes().to_vec(),
            count.to_ne_bytes().to_vec(),
        ];
        vm.launcher().run(
            &self.background,
            &self.reap,
            vm.service_config(1),
            &args,
            None,
            "closing the queue pairs of a home that has returned",
        )
    }

    /// Marks what a home holds of pages of a region as stale.
    pub fn age(&self, vm: &VmInner, region: u32, home: u32, pages: std::ops::Range<u64>, name: &str) -> Result<()> {
        let args = [
            vm.desc.addr().to_ne_bytes().to_vec(),
            region.to_ne_bytes().to_vec(),
            home.to_ne_bytes().to_vec(),
            pages.start.to_ne_bytes().to_vec(),
            pages.end.to_ne_bytes().to_vec(),
        ];
        vm.launcher().run(
            &self.background,
            &self.age,
            vm.service_config(pages.end - pages.start),
            &args,
            Some((region, name.to_owned())),
            &format!("marking copies of region `{name}` as stale"),
        )
    }

    /// The kernel that forgets failed fetches of a region's pages, and its arguments.
    pub fn forget(&self, vm: &VmInner, region: u32, pages: u64) -> (&Arc<dyn Kernel>, [Vec<u8>; 4]) {
        let args = [
            vm.desc.addr().to_ne_bytes().to_vec(),
            region.to_ne_bytes().to_vec(),
            0u64.to_ne_bytes().to_vec(),
            pages.to_ne_bytes().to_vec(),
        ];
        (&self.forget, args)
    }

    /// Mends stale copies of pages.
    pub fn catch_up(
        &self,
        vm: &VmInner,
        array: &layout::ArrayDesc,
        pages: std::ops::Range<u64>,
        name: &str,
    ) -> Result<()> {
        let args = [
            bytemuck::bytes_of(array).to_vec(),
            pages.start.to_ne_bytes().to_vec(),
            pages.end.to_ne_bytes().to_vec(),
        ];
        vm.launcher().run(
            &self.background,
            &self.catch_up,
            vm.service_config(pages.end - pages.start),
            &args,
            Some((array.region & !layout::ARRAY_NEVER_EVICTED, name.to_owned())),
            &format!("catching up copies of region `{name}`"),
        )
    }

    /// Gives the frames of a region back, dropping what is dirty still if `discard`.
    pub fn release(&self, vm: &VmInner, region: u32, pages: u64, discard: bool, name: &str) -> Result<()> {
        let args = [
            vm.desc.addr().to_ne_bytes().to_vec(),
            region.to_ne_bytes().to_vec(),
            0u64.to_ne_bytes().to_vec(),
            pages.to_ne_bytes().to_vec(),
            u32::from(discard).to_ne_bytes().to_vec(),
        ];
        vm.launcher().run(
            &self.stream,
            &self.release,
            vm.service_config(pages),
            &args,
            Some((region, name.to_owned())),
            &format!("release of region `{name}`"),
        )
    }
}
