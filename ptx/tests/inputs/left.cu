// What keeps its address: tensor cores, textures, bulk copies.
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void matrices(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
    wmma::fill_fragment(z, 0.f);
    wmma::load_matrix_sync(x, a, 16);
    wmma::load_matrix_sync(y, b, 16);
    wmma::mma_sync(z, x, y, z);
    wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}

extern "C" __global__ void textures(cudaTextureObject_t t, cudaSurfaceObject_t s, float* out) {
    out[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x) + surf1Dread<float>(s, threadIdx.x * 4);
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void bulk(const float* from, float* to) {
    __shared__ alignas(128) float block[256];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = (unsigned)__cvta_generic_to_shared(block), b = (unsigned)__cvta_generic_to_shared(&barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(at),
                 "l"(from), "r"(b)
                 : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(to), "r"(at) : "memory");
    to[300] = block[0];
}
#endif
