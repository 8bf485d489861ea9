# A lane walks a vertex's edges, through a reader.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/^void kernel_baseline_pc\(/,/^\}/ {
    s/array_d_t<uint64_t>\* da/gpuvm::array<const uint64_t> da/
    s/const uint64_t start = /auto edges = da.reader();\n        &/
    s/da->seq_read\(i\)/edges[i]/
    /^ *for/ s/i < end;/i < end \&\& !da.failed();/
}
