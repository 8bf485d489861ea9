// The software NIC's engine where it is a kernel, which the runtime launches beside those that post requests.
#include <gpuvm/detail/nic_engine.cuh>

// One block fills a multiprocessor: kernels beside it get the others whole.
__global__ void __launch_bounds__(1024, 1) gpuvm_nic_engine(gpuvm::layout::NicEngine engine, unsigned number) {
    gpuvm::detail::nic::run_engine(engine, number);
}
