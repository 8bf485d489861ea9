# A warp reads a row's edges by neighbouring lanes: BaM's array becomes gpuvm's, and its pointer with a cached line goes.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/^void kernel_coalesce_ptr_pc\(/,/^\}/ {
    s/array_d_t<uint64_t>\* da/gpuvm::array<const uint64_t> da/
    /bam_ptr<uint64_t> ptr/d
    s/= ptr\[/= da[/
}
