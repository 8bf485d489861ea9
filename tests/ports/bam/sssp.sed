# A lane walks a vertex's edges and their weights, through readers.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/^void kernel_baseline_pc\(/,/^\}/ {
    s/array_d_t<(uint64_t|WeightT)>\* (de|dw)/gpuvm::array<const \1> \2/g
    s/uint64_t start = /auto edges = de.reader();\n        auto weights = dw.reader();\n        &/
    s/de->seq_read\(i\)/edges[i]/
    s/dw->seq_read\(i\)/weights[i]/
    /^ *for/ s/i < end;/i < end \&\& !de.failed();/
}
