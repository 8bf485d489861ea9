# bicg_kernel1: neighbouring lanes walk neighbouring columns. bicg_kernel2: a lane walks a row, through a reader.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/DATA_TYPE \*A,/gpuvm::array<const DATA_TYPE> A,/
/__global__/,/^\}/ s/(i < _PB_NX|j < _PB_NY);/\1 \&\& !A.failed();/
/bicg_kernel2\(int/,/^\}/ {
    s/int j;/auto row = A.reader();\n\t\t&/
    s/A\[/row[/
}
