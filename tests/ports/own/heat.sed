# Both arrays of cells are paged; the sums stay plain memory. A thread of `sum` walks neighbours, through a reader.
/#include <stdlib.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/const float\* now/gpuvm::array<const float> now/
/__global__/ s/float\* next/gpuvm::array<float> next/
/__global__ void sum/,/^\}/ {
    s/float total/auto cells_from_here = now.reader();\n    &/
    s/i < cells;/i < cells \&\& !now.failed();/
    s/now\[/cells_from_here[/
}
