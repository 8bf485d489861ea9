# Everything that the original has in managed memory is paged. Rows end where reads after a fault give zero.
/#include <cstdio>/a #include <gpuvm/gpuvm.cuh>
s/int \*(d_adjacencyList|d_edgesOffset|d_edgesSize)/gpuvm::array<const int> \1/g
s/int \*(d_distance|d_parent|d_currentQueue|d_nextQueue|d_degrees)/gpuvm::array<int> \1/g
s/atomicMin\(&d_distance\[v\], /d_distance.atomic_min(v, /
