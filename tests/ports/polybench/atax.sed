# atax_kernel1: a lane walks a row, through a reader. atax_kernel2: neighbouring lanes walk neighbouring columns.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/DATA_TYPE \*A,/gpuvm::array<const DATA_TYPE> A,/
/__global__/,/^\}/ s/(i < _PB_NX|j < _PB_NY);/\1 \&\& !A.failed();/
/atax_kernel1\(int/,/^\}/ {
    s/int j;/auto row = A.reader();\n\t\t&/
    s/A\[/row[/
}
