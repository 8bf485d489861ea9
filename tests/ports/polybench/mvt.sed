# mvt_kernel1: a lane walks a row, through a reader. mvt_kernel2: neighbouring lanes walk neighbouring columns.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/DATA_TYPE \*a,/gpuvm::array<const DATA_TYPE> a,/
/__global__/,/^\}/ s/j < _PB_N;/j < _PB_N \&\& !a.failed();/
/mvt_kernel1\(int/,/^\}/ {
    s/int j;/&\n\t\tauto row = a.reader();/
    s/a\[/row[/
}
