//! Applications on the simulated GPU: each over paged arrays and in the ways that need no CUDA, compared with the processor.

mod dense;
mod embedding;
mod graphs;
mod knn;
mod queries;
mod sort;

use gpuvm::{Gpu, Placement, SimulatedGpu, Vm};
use gpuvm_workloads::apps::{App, AppError, Space, Way, paged_bytes};

const PAGE: u64 = 4096;

/// Runs an application twice with memory for a quarter of its pages (64 frames at least), and checks both results.
fn run(app: &dyn App, transport: gpuvm::Transport, way: Way) -> Result<(), AppError> {
    let frames = (paged_bytes(app, PAGE) / PAGE / 4).max(64);
    let vm = Vm::builder()
        .gpu(Gpu::from(SimulatedGpu::new().workers(2)))
        .transport(transport)
        .page_size(PAGE)
        .frame_memory(frames * PAGE)
        .build()
        .unwrap();
    let space = Space::new(&vm, way, "0")?;
    let mut loaded = app.load(&space)?;
    for _ in 0..2 {
        loaded.run()?;
        assert!(app.check(&loaded.found()?)? > 0, "{}: nothing was compared", app.name());
    }
    if let Way::Paged(_) | Way::Resident = way {
        let stats = space.stats()?;
        // Arrays that are only read may stay where they live, pages that are overwritten are not fetched, and those that are looked up
        // come without a fault.
        let paged = stats.faults + stats.bytes_in_place + stats.pages_overwritten + stats.pages_fetched;
        assert!(paged > 0, "{}: nothing was paged", app.name());
    }
    Ok(())
}

/// Runs an application over the software NIC, directly in each placement, and in each way of a peer that the simulated GPU has.
fn every_way(app: &dyn App) {
    let soft = || gpuvm::Transport::from(gpuvm::Soft::new());
    let direct = || gpuvm::Transport::Direct;
    let ran = |way: Way, transport: gpuvm::Transport| {
        let kind = format!("{} {way}", app.name());
        run(app, transport, way).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
    };
    ran(Way::Paged(Placement::Fetch), soft());
    // The second run finds all pages of most arrays there, and reads them by plain pointers.
    ran(Way::Resident, soft());
    ran(Way::Resident, direct());
    for placement in [Placement::Auto, Placement::Fetch, Placement::InPlace, Placement::LookUp] {
        ran(Way::Paged(placement), direct());
    }
    for way in [Way::Raw, Way::InPlace, Way::Chunked] {
        match run(app, direct(), way) {
            Ok(()) | Err(AppError::Way { .. }) => {}
            Err(error) => panic!("{} {way}: {error:?}", app.name()),
        }
    }
    let refused = run(app, direct(), Way::Managed);
    assert!(matches!(refused, Err(AppError::Way { .. })), "{refused:?}");
}
