# A lane walks a row of each matrix, through a reader each.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/DATA_TYPE\* (A|B),/gpuvm::array<const DATA_TYPE> \1,/g
/__global__/,/^\}/ {
    s/int j;/auto row_a = A.reader();\n\t\tauto row_b = B.reader();\n\t\t&/
    s/j < _PB_N;/j < _PB_N \&\& !A.failed();/
    s/A\[/row_a[/
    s/B\[/row_b[/
}
