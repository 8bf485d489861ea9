// The software NIC's engine where it is a kernel and the host judges each request: its limits, and faults.
#include <gpuvm/detail/nic_judged.cuh>

__global__ void __launch_bounds__(gpuvm::layout::NIC_ENGINE_THREADS, 1)
    gpuvm_nic_engine_judged(gpuvm::layout::NicEngine engine, unsigned number) {
    gpuvm::detail::nic::run_engine<gpuvm::detail::nic::JudgedTurn>(engine, number);
}
