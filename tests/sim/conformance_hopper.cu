// The computations of conformance.h for the wrappers of hopper.cuh and wgmma.cuh. Compiled for sm_90a alone.
#include <bit>

#include "kernels/hopper.cuh"
#include "tests/sim/conformance.h"
#include "tests/sim/product_kernel.cuh"

namespace keel::KEEL_DEVICE {
namespace {

using Word = std::uint32_t;

// Warp 0 hands six rounds of 32 words to warp 1 through two stages.
__global__ void ring(Word* out, const Word* in) {
    constexpr unsigned stages = 2, rounds = 6;
    KEEL_SHARED(Word, tile, [stages][32]);
    KEEL_SHARED(std::uint64_t, full, [stages]);
    KEEL_SHARED(std::uint64_t, empty, [stages]);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (unsigned s = 0; s < stages; ++s) mbarrier_init(&full[s], 32), mbarrier_init(&empty[s], 32);
    __syncthreads();
    for (unsigned r = 0; r < rounds; ++r) {
        const unsigned s = r % stages, turn = r / stages;
        if (warp == 0) {
            mbarrier_wait(&empty[s], (turn + 1) % 2);
            tile[s][lane] = in[r * 32 + lane];
            mbarrier_arrive(&full[s]);
        } else {
            mbarrier_wait(&full[s], turn % 2);
            out[r * 32 + lane] = tile[s][31 - lane];
            mbarrier_arrive(&empty[s]);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_invalidate(&full[0]);
        mbarrier_init(&full[0], 1);
        mbarrier_arrive(&full[0]);
        mbarrier_wait(&full[0], 0);
    }
}

// A box of 512 floats as it lies in shared memory; then each is one more, and the box is stored over `out` by its map.
template <int rank>
__global__ void box(float* raw, const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                    int c0, int c1, int c2, int c3) {
    KEEL_DYNAMIC_SHARED(float, tile);
    KEEL_SHARED(std::uint64_t, full, [1]);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_expect(full, 2048);
        mbarrier_arrive(full);
        if (rank == 2) load_box(tile, from, full, c0, c1);
        if (rank == 3) load_box(tile, from, full, c0, c1, c2);
        if (rank == 4) load_box(tile, from, full, c0, c1, c2, c3);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    for (unsigned i = threadIdx.x; i < 512; i += 32) {
        raw[i] = tile[i];
        tile[i] += 1;
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        if (rank == 2) store_box(to, tile, c0, c1);
        if (rank == 3) store_box(to, tile, c0, c1, c2);
        if (rank == 4) store_box(to, tile, c0, c1, c2, c3);
        commit_stores();
        wait_stores<0>();
    }
}

// Sixteen rows of 128 bytes, each a box by itself at its own place of the swizzle's pattern; every fifth from outside.
__global__ void rows(float* raw, const __grid_constant__ CUtensorMap from) {
    KEEL_DYNAMIC_SHARED(float, tile);
    KEEL_SHARED(std::uint64_t, full, [1]);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(full, 2048);
        for (int row = 0; row < 16; ++row) load_box(tile + row * 32, from, full, 0, row % 5 == 4 ? -1 : 15 - row);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    for (unsigned i = threadIdx.x; i < 512; i += 32) raw[i] = tile[i];
}

__global__ void __launch_bounds__(384, 1) hand_over(Word* out, const Word* in) {
    if (threadIdx.x < 128)
        give_up_registers<24>();
    else
        take_registers<240>();
    out[threadIdx.x] = in[threadIdx.x] * 3;
}

std::uint64_t hash(const std::vector<float>& x) {  // FNV-1a
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const float f : x) {
        const Word w = std::bit_cast<Word>(f);
        for (int byte = 0; byte < 4; ++byte) h = (h ^ (w >> 8 * byte & 0xffu)) * 0x100000001b3u;
    }
    return h;
}

constexpr int words = 8192;  // of input and of output

struct Program {
    Word *in = nullptr, *out = nullptr;
    std::vector<Conformance> all;

    template <class... Params, class... Arguments>
    void run(const char* name, unsigned threads, std::size_t shared_bytes, void (*kernel)(Params...),
             Arguments... arguments) {
        check(cudaMemset(out, 0, words * sizeof(Word)));
        cudaLaunchConfig_t config{};
        config.gridDim = 1;
        config.blockDim = threads;
        config.dynamicSmemBytes = shared_bytes;
        check(cudaLaunchKernelEx(&config, kernel, arguments...));
        std::vector<float> output(words);
        check(cudaMemcpy(output.data(), out, words * sizeof(Word), cudaMemcpyDeviceToHost));
        all.push_back({name, hash(output)});
    }
    // Loads from the input, seen as a tensor, and stores to the second half of the output.
    template <int rank>
    void run_box(const char* name, const std::int64_t (&dims)[rank], const std::int64_t (&strides)[rank - 1],
                 const unsigned (&box_dims)[rank], CUtensorMapSwizzle swizzle, int c0, int c1, int c2 = 0, int c3 = 0) {
        auto *const from = reinterpret_cast<float*>(in), *const raw = reinterpret_cast<float*>(out);
        run(name, 32, 2048, box<rank>, raw, tensor_map(from, dims, strides, box_dims, swizzle),
            tensor_map(raw + words / 2, dims, strides, box_dims, swizzle), c0, c1, c2, c3);
    }
    // A lies in the first half of the input, B in the second.
    template <int n, unsigned span, bool a_transposed, bool b_transposed, bool a_in_registers = false>
    void run_product(const char* name) {
        const auto* const a = reinterpret_cast<const __nv_bfloat16*>(in);
        const auto* const b = reinterpret_cast<const __nv_bfloat16*>(in + words / 2);
        run(name, 128, (64 + n) * depth * 2,
            product<n, span, a_transposed, b_transposed, a_in_registers, ProductBug::none>,
            reinterpret_cast<float*>(out), product_map<span>(a, 64, a_transposed),
            product_map<span>(b, n, b_transposed));
    }
};

}  // namespace

std::vector<Conformance> conformance_hopper() {
    Program p;
    check(cudaMalloc(&p.in, words * sizeof(Word)));
    check(cudaMalloc(&p.out, words * sizeof(Word)));
    const auto fill = [&](auto value) {
        std::vector<Word> input(words);
        Word state = 12345;
        for (Word& w : input) w = value(state = state * 1664525u + 1013904223u);
        check(cudaMemcpy(p.in, input.data(), words * sizeof(Word), cudaMemcpyHostToDevice));
    };
    const auto* const in = p.in;
    fill([](Word x) { return std::bit_cast<Word>(static_cast<float>(x >> 8)); });
    p.run("mbarriers", 64, 0, ring, p.out, in);
    p.run("setmaxnreg", 384, 0, hand_over, p.out, in);
    p.run_box<2>("box of rank 2, 128 bytes", {40, 50}, {44}, {32u, 16u}, CU_TENSOR_MAP_SWIZZLE_128B, 16, 40);
    p.run_box<2>("box of rank 2, 64 bytes", {40, 50}, {44}, {16u, 32u}, CU_TENSOR_MAP_SWIZZLE_64B, -4, -3);
    p.run_box<2>("box of rank 2, 32 bytes", {40, 80}, {44}, {8u, 64u}, CU_TENSOR_MAP_SWIZZLE_32B, 8, 3);
    p.run_box<2>("box of rank 2, plain", {40, 50}, {44}, {16u, 32u}, CU_TENSOR_MAP_SWIZZLE_NONE, 30, 2);
    p.run_box<3>("box of rank 3", {32, 3, 20}, {32, 100}, {32u, 1u, 16u}, CU_TENSOR_MAP_SWIZZLE_128B, 0, 2, 8);
    p.run_box<4>("box of rank 4", {16, 3, 2, 7}, {16, 48, 100}, {16u, 2u, 2u, 8u}, CU_TENSOR_MAP_SWIZZLE_64B, 0, 1, 0,
                 1);
    p.run("boxes of one row", 32, 2048, rows, reinterpret_cast<float*>(p.out),
          tensor_map(reinterpret_cast<const float*>(in), {32, 20}, {36}, {32u, 1u}, CU_TENSOR_MAP_SWIZZLE_128B));
    // Pairs of bf16 of small integers: their products and sums are exact.
    fill([](Word x) {
        const auto half = [](Word bits) {
            return std::bit_cast<Word>(static_cast<float>(static_cast<int>(bits % 16) - 8)) >> 16;
        };
        return half(x >> 12) | half(x >> 20) << 16;
    });
    p.run_product<64, 128, false, false>("wgmma n64");
    p.run_product<128, 128, false, false>("wgmma n128");
    p.run_product<128, 128, false, true>("wgmma n128, b transposed");
    p.run_product<64, 128, true, true>("wgmma n64, both transposed");
    p.run_product<64, 128, false, true, true>("wgmma n64, a in registers");
    p.run_product<128, 128, false, true, true>("wgmma n128, a in registers");
    p.run_product<128, 64, false, true>("wgmma, 64 bytes");
    p.run_product<64, 32, true, false>("wgmma, 32 bytes");
    p.run_product<64, 0, false, true>("wgmma, no swizzle");
    check(cudaFree(p.in));
    check(cudaFree(p.out));
    return p.all;
}

}  // namespace keel::KEEL_DEVICE
