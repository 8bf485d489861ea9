// The format of a queue pair, chosen at run time by its kind.
#pragma once

#include "mlx5.cuh"
#include "rxe.cuh"

namespace gpuvm {
namespace detail {

// Relaxed stores: `announce` has the fence that puts them before the doorbell record.
GPUVM_DEVICE void write_request(const layout::QueueDesc* queue, u64 index, const Request& request) {
    if (queue->kind == layout::QUEUE_KIND_RXE)
        rxe::write_request(queue, index, request);
    else
        mlx5::write_request(queue, index, request);
}

GPUVM_DEVICE Completion completion(const layout::QueueDesc* queue, u64 index) {
    return queue->kind == layout::QUEUE_KIND_RXE ? rxe::completion(queue, index) : mlx5::completion(queue, index);
}

// Tells the NIC that every request below `written` is there: first the record, then the doorbell. One caller at a
// time for each queue pair.
GPUVM_DEVICE void announce(const layout::QueueDesc* queue, u64 written) {
    bool is_rxe = queue->kind == layout::QUEUE_KIND_RXE;
    if (is_rxe) rxe::free_completions(queue, written);
    // The requests before the record, at the NIC.
    fence_acq_rel_sys();
    st_relaxed_sys(reinterpret_cast<u32*>(queue->doorbell_record),
                   is_rxe ? rxe::doorbell_record(queue, written) : mlx5::doorbell_record(queue, written));
    // The record before the doorbell, at the NIC or its proxy.
    fence_acq_rel_sys();
    st_mmio_sys(reinterpret_cast<u64*>(queue->doorbell), is_rxe ? written : mlx5::doorbell(queue, written));
}

}  // namespace detail
}  // namespace gpuvm
