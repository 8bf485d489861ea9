// The software NIC's engine where it is a kernel, which the runtime launches beside those that post requests.
#include <gpuvm/detail/nic_engine.cuh>

// One block fills a multiprocessor, by its registers: kernels beside it get the others whole. With more threads they
// would not be enough for what a lane has on its way.
__global__ void __launch_bounds__(gpuvm::layout::NIC_ENGINE_THREADS, 1)
    gpuvm_nic_engine(gpuvm::layout::NicEngine engine, unsigned number) {
    gpuvm::detail::nic::run_engine<gpuvm::detail::nic::Turn>(engine, number);
}
