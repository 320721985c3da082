// ldmatrix and mma.m16n8k16 against the maps of the PTX ISA ("Matrix fragments"), written out here a second time: the
// other way round, from an element to its lane and register. Shuffles, votes and reductions against their definitions.
#include <cmath>
#include <cstring>

#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

// Where the ISA puts an element of the fragments of m16n8k16: lane, register, half.
struct Home {
    unsigned lane, reg, half;
};
Home home_of_a(unsigned row, unsigned column) {
    return {row % 8 * 4 + column % 8 / 2, (row >= 8 ? 1u : 0u) + (column >= 8 ? 2u : 0u), column % 2};
}
Home home_of_b(unsigned k, unsigned n) { return {n * 4 + k % 8 / 2, k >= 8 ? 1u : 0u, k % 2}; }
Home home_of_d(unsigned row, unsigned column) {
    return {row % 8 * 4 + column / 2, (row >= 8 ? 2u : 0u) + column % 2, 0};
}

// x: 32 lanes of a[4], then of b[2]; the results go to d, 32 lanes of 4 floats.
__global__ void multiply(std::uint32_t* x) {
    const unsigned lane = threadIdx.x;
    std::uint32_t a[4];
    for (unsigned i = 0; i < 4; ++i) a[i] = x[lane * 4 + i];
    float d[4];
    for (unsigned i = 0; i < 4; ++i) memcpy(&d[i], &x[192 + lane * 4 + i], 4);
    mma_bf16(d, a, x[128 + lane * 2], x[128 + lane * 2 + 1]);
    for (unsigned i = 0; i < 4; ++i) memcpy(&x[192 + lane * 4 + i], &d[i], 4);
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
void put(std::uint32_t& pair, unsigned half, float value) {
    const std::uint32_t bits = bits_of(value) >> 16;
    pair = half ? (pair & 0xffffu) | bits << 16 : (pair & 0xffff0000u) | bits;
}

TEST(Fragments, MmaMultipliesTheMatricesThatTheIsaDescribes) {
    float a[16][16], b[16][8], c[16][8];
    for (unsigned i = 0; i < 16; ++i)
        for (unsigned k = 0; k < 16; ++k) a[i][k] = static_cast<float>(static_cast<int>(i * 5 + k * 3) % 17 - 8);
    for (unsigned k = 0; k < 16; ++k)
        for (unsigned j = 0; j < 8; ++j) b[k][j] = static_cast<float>(static_cast<int>(k * 7 + j * 11) % 13 - 6);
    for (unsigned i = 0; i < 16; ++i)
        for (unsigned j = 0; j < 8; ++j) c[i][j] = static_cast<float>(i * 100 + j);
    std::vector<std::uint32_t> x(320, 0);
    for (unsigned i = 0; i < 16; ++i)
        for (unsigned k = 0; k < 16; ++k) {
            const Home h = home_of_a(i, k);
            put(x[h.lane * 4 + h.reg], h.half, a[i][k]);
        }
    for (unsigned k = 0; k < 16; ++k)
        for (unsigned j = 0; j < 8; ++j) {
            const Home h = home_of_b(k, j);
            put(x[128 + h.lane * 2 + h.reg], h.half, b[k][j]);
        }
    for (unsigned i = 0; i < 16; ++i)
        for (unsigned j = 0; j < 8; ++j) x[192 + home_of_d(i, j).lane * 4 + home_of_d(i, j).reg] = bits_of(c[i][j]);

    std::vector<std::uint32_t> got;
    sim::take_counters();
    const auto result = sim::sweep({}, [&](sim::Outputs& outputs) {
        got = x;
        std::uint32_t* device = nullptr;
        cudaMalloc(&device, got.size() * 4);
        cudaMemcpy(device, got.data(), got.size() * 4, cudaMemcpyHostToDevice);
        cudaLaunchConfig_t config{};
        config.blockDim = 32;
        cudaLaunchKernelEx(&config, multiply, device);
        cudaMemcpy(got.data(), device, got.size() * 4, cudaMemcpyDeviceToHost);
        cudaFree(device);
        outputs.add("d", got.data(), got.size() * 4);
    });
    EXPECT_EQ(result.text(), "");
    EXPECT_EQ(sim::take_counters().mma, 24u);  // one for each schedule
    for (unsigned i = 0; i < 16; ++i)
        for (unsigned j = 0; j < 8; ++j) {
            float want = c[i][j];  // small integers: exact in float, in any order
            for (unsigned k = 0; k < 16; ++k) want += a[i][k] * b[k][j];
            const Home h = home_of_d(i, j);
            EXPECT_EQ(std::bit_cast<float>(got[192 + h.lane * 4 + h.reg]), want) << i << " " << j;
        }
}

// Elements of four 8 x 8 matrices are 64 m + 8 row + column; lane i brings row i % 8 of matrix i / 8.
template <int matrices, bool transposed>
__global__ void load_fragments(std::uint32_t* x) {
    KEEL_SHARED(std::uint16_t, tile, [4][8][8]);
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32) tile[i / 64][i / 8 % 8][i % 8] = static_cast<std::uint16_t>(i);
    __syncwarp();
    std::uint32_t r[matrices];
    if constexpr (matrices == 4 && !transposed) ldmatrix_x4(r, tile[lane / 8][lane % 8]);
    if constexpr (matrices == 4 && transposed) ldmatrix_x4_trans(r, tile[lane / 8][lane % 8]);
    if constexpr (matrices == 2 && !transposed) ldmatrix_x2(r, tile[lane / 8][lane % 8]);
    if constexpr (matrices == 2 && transposed) ldmatrix_x2_trans(r, tile[lane / 8][lane % 8]);
    for (unsigned m = 0; m < matrices; ++m) x[lane * 4 + m] = r[m];
}
template <int matrices, bool transposed>
void ldmatrix_is_the_map() {
    std::vector<std::uint32_t> got;
    const auto result = sim::sweep({}, [&](sim::Outputs& outputs) {
        got.assign(128, 0);
        std::uint32_t* device = nullptr;
        cudaMalloc(&device, 512);
        cudaMemset(device, 0, 512);
        cudaLaunchConfig_t config{};
        config.blockDim = 32;
        cudaLaunchKernelEx(&config, load_fragments<matrices, transposed>, device);
        cudaMemcpy(got.data(), device, 512, cudaMemcpyDeviceToHost);
        cudaFree(device);
        outputs.add("r", got.data(), 512);
    });
    EXPECT_EQ(result.text(), "");
    for (unsigned m = 0; m < matrices; ++m)
        for (unsigned row = 0; row < 8; ++row)
            for (unsigned column = 0; column < 8; ++column) {
                const unsigned r = transposed ? column : row, c = transposed ? row : column;
                const std::uint32_t pair = got[(r * 4 + c / 2) * 4 + m];
                EXPECT_EQ(c % 2 ? pair >> 16 : pair & 0xffffu, m * 64 + row * 8 + column)
                    << m << " " << row << " " << column;
            }
}
TEST(Fragments, LdmatrixX4IsTheMap) { ldmatrix_is_the_map<4, false>(); }
TEST(Fragments, LdmatrixX4TransIsTheMap) { ldmatrix_is_the_map<4, true>(); }
TEST(Fragments, LdmatrixX2IsTheMap) { ldmatrix_is_the_map<2, false>(); }
TEST(Fragments, LdmatrixX2TransIsTheMap) { ldmatrix_is_the_map<2, true>(); }

// Rows of 64 bf16 are 128 bytes: the 8 rows of a matrix lie in the same banks, unless chunks of 16 bytes are swizzled
// by the row.
template <bool swizzled>
__global__ void load_tile(std::uint32_t* x) {
    KEEL_SHARED(std::uint16_t, tile, [8][64]);
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 512; i += 32) tile[i / 64][i % 64] = static_cast<std::uint16_t>(i);
    __syncthreads();
    std::uint32_t r[4];
    const unsigned row = lane % 8, chunk = lane / 8;
    ldmatrix_x4(r, &tile[row][8 * (swizzled ? chunk ^ row : chunk)]);
    x[lane] = r[0];
}
TEST(Fragments, BankConflictsOfLdmatrixAreCounted) {
    for (const bool swizzled : {false, true}) {
        sim::take_counters();
        std::uint32_t* device = nullptr;
        cudaMalloc(&device, 128);
        cudaLaunchConfig_t config{};
        config.blockDim = 32;
        config.gridDim = 3;
        cudaLaunchKernelEx(&config, swizzled ? load_tile<true> : load_tile<false>, device);
        cudaFree(device);
        const sim::Counters counted = sim::take_counters();
        EXPECT_EQ(counted.launches, 1u);
        EXPECT_EQ(counted.blocks, 3u);
        EXPECT_EQ(counted.barriers, 3u);
        EXPECT_EQ(counted.ldmatrix, 12u);
        EXPECT_EQ(counted.ldmatrix_conflicts, swizzled ? 0u : 84u);  // 8 rows in the same banks: 7 more passes each
    }
}

// ---- warp functions
// ------------------------------------------------------------------------------------------------------------

std::vector<int> run_on_lanes(void (*kernel)(int*)) {
    std::vector<int> got(32);
    const auto result = sim::sweep({}, [&](sim::Outputs& outputs) {
        int* device = nullptr;
        cudaMalloc(&device, 128);
        cudaLaunchConfig_t config{};
        config.blockDim = 32;
        cudaLaunchKernelEx(&config, kernel, device);
        cudaMemcpy(got.data(), device, 128, cudaMemcpyDeviceToHost);
        cudaFree(device);
        outputs.add("x", got.data(), 128);
    });
    EXPECT_EQ(result.text(), "");
    return got;
}
template <class F>
void expect_lanes(void (*kernel)(int*), F want) {
    const auto got = run_on_lanes(kernel);
    for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(got[static_cast<std::size_t>(lane)], want(lane)) << "lane " << lane;
}
__device__ int lane_id() { return static_cast<int>(threadIdx.x); }

__global__ void index_8(int* x) { x[lane_id()] = __shfl_sync(all_lanes, lane_id(), 11, 8); }
__global__ void up_3(int* x) { x[lane_id()] = __shfl_up_sync(all_lanes, lane_id(), 3, 16); }
__global__ void down_3(int* x) { x[lane_id()] = __shfl_down_sync(all_lanes, lane_id(), 3, 16); }
__global__ void xor_20(int* x) { x[lane_id()] = __shfl_xor_sync(all_lanes, lane_id(), 20, 16); }
__global__ void wide(int* x) {
    const double v = __shfl_sync(all_lanes, 1e300 * lane_id(), 7);
    x[lane_id()] = v == 7e300;
}
TEST(Fragments, ShufflesStayInTheirSegments) {
    expect_lanes(index_8, [](int lane) { return lane / 8 * 8 + 3; });
    expect_lanes(up_3, [](int lane) { return lane % 16 >= 3 ? lane - 3 : lane; });
    expect_lanes(down_3, [](int lane) { return lane % 16 + 3 < 16 ? lane + 3 : lane; });
    // A lane of an earlier segment may be read, one of a later segment may not.
    expect_lanes(xor_20, [](int lane) { return (lane ^ 20) / 16 <= lane / 16 ? lane ^ 20 : lane; });
    expect_lanes(wide, [](int) { return 1; });
}

__global__ void votes(int* x) {
    const int lane = lane_id();
    const int odd = lane % 2;
    x[lane] = static_cast<int>(__ballot_sync(all_lanes, odd) == 0xaaaaaaaau) + 2 * __any_sync(all_lanes, lane == 31) +
              4 * __all_sync(all_lanes, lane < 31) +
              8 * static_cast<int>(__match_any_sync(all_lanes, lane / 8) == 0xffu << lane / 8 * 8);
}
__global__ void reductions(int* x) {
    const int lane = lane_id();
    const unsigned mask = lane < 20 ? 0x000fffffu : 0xfff00000u;
    x[lane] =
        __reduce_add_sync(mask, lane) + 1000 * __reduce_max_sync(mask, lane) + 100000 * __reduce_min_sync(mask, lane);
}
__global__ void halves(int* x) {  // the two halves of a warp go different ways, each with its own mask
    const int lane = lane_id();
    int v = lane;
    if (lane < 16) {
        for (int i = 8; i > 0; i /= 2) v += __shfl_xor_sync(0x0000ffffu, v, i);
    } else {
        v *= 2;
        for (int i = 8; i > 0; i /= 2) v += __shfl_xor_sync(0xffff0000u, v, i);
    }
    x[lane] = v;
}
TEST(Fragments, VotesAndReductionsHonourTheirMasks) {
    expect_lanes(votes, [](int) { return 1 + 2 + 8; });
    expect_lanes(reductions, [](int lane) { return lane < 20 ? 190 + 19000 : 306 + 31000 + 2000000; });
    expect_lanes(halves, [](int lane) { return lane < 16 ? 120 : 2 * (16 * 16 + 120); });
}

__global__ void block_votes(int* x) {
    const int i = lane_id();
    x[i] = __syncthreads_count(i < 5) + 100 * __syncthreads_or(i == 3) + 1000 * __syncthreads_and(i >= 0) +
           10000 * __syncthreads_and(i != 9);
}
TEST(Fragments, BarriersCountAndVote) {
    expect_lanes(block_votes, [](int) { return 5 + 100 + 1000; });
}

TEST(Fragments, Bf16RoundsToNearestEvenAndKeepsNaN) {
    EXPECT_EQ(__float2bfloat16(1.00390625f).bits, 0x3f80);  // a tie, to even
    EXPECT_EQ(__float2bfloat16(1.01171875f).bits, 0x3f82);
    EXPECT_EQ(__float2bfloat16(std::nanf("")).bits, 0x7fff);
    EXPECT_EQ(__float2bfloat16(3.4e38f).bits, 0x7f80);
    EXPECT_EQ(__bfloat162float(__low2bfloat16(__floats2bfloat162_rn(1, 2))), 1);
    EXPECT_EQ(__bfloat162float(__high2bfloat16(__floats2bfloat162_rn(1, 2))), 2);
}

}  // namespace
}  // namespace keel::on_cudasim
