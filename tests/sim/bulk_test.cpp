// Boxes of tensors by bulk copies: where each element goes, against the rules written out a second time; what lies
// outside of the tensor; seeded mistakes with their silent twins; what an encoder refuses.
#include "kernels/cudasim/counters.h"
#include "kernels/hopper.cuh"
#include "kernels/tensor_map.cuh"
#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

struct Place {
    int c0, c1, c2, c3;
};
enum class Bug {
    none,
    no_wait,
    expects_too_little,
    expects_too_much,
    no_fence_of_init,
    no_fence_of_stores,
    no_store_wait,
    no_barrier
};

// Thread 0 loads a box, all write what came to `out`, add one to it in place, and thread 0 stores the box to `to`.
template <int rank, Bug bug>
__global__ void through(float* out, CUtensorMap from, CUtensorMap to, Place at, unsigned elements) {
    KEEL_DYNAMIC_SHARED(float, tile);
    KEEL_SHARED(std::uint64_t, full, [1]);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        if (bug != Bug::no_fence_of_init) fence_mbarrier_init();
        const unsigned bytes = elements * 4;
        mbarrier_arrive_expect(full, bug == Bug::expects_too_little ? bytes - 128
                                     : bug == Bug::expects_too_much ? bytes + 16
                                                                    : bytes);
        if (rank == 2) load_box(tile, from, full, at.c0, at.c1);
        if (rank == 3) load_box(tile, from, full, at.c0, at.c1, at.c2);
        if (rank == 4) load_box(tile, from, full, at.c0, at.c1, at.c2, at.c3);
    }
    __syncthreads();
    if (bug != Bug::no_wait) mbarrier_wait(full, 0);
    for (unsigned i = threadIdx.x; i < elements; i += blockDim.x) {
        out[i] = tile[i];
        tile[i] += 1;
    }
    if (bug != Bug::no_fence_of_stores) fence_async();
    if (bug != Bug::no_barrier) __syncthreads();
    if (threadIdx.x == 0) {
        if (rank == 2) store_box(to, tile, at.c0, at.c1);
        if (rank == 3) store_box(to, tile, at.c0, at.c1, at.c2);
        if (rank == 4) store_box(to, tile, at.c0, at.c1, at.c2, at.c3);
        commit_stores();
        if (bug != Bug::no_store_wait) wait_stores<0>();
    }
}

struct Case {
    std::int64_t dims[4];
    unsigned box[4];
    Place at;
    CUtensorMapSwizzle swizzle;
    unsigned span;
};
constexpr std::int64_t pitch = 4;  // elements between the end of a row and the next

// Element i0 + n0 (i1 + n1 (i2 + …)) of the tensor is 1 + that number; rows are `pitch` longer.
struct Tensor {
    std::int64_t strides[3];
    std::size_t size;
    Tensor(const Case& c, int rank) {
        std::int64_t stride = (c.dims[0] + 3) / 4 * 4 + pitch;
        for (int i = 1; i < 4; ++i) {
            strides[i - 1] = stride;
            stride *= i < rank ? c.dims[i] : 1;
        }
        size = static_cast<std::size_t>(stride);
    }
};

template <int rank, Bug bug = Bug::none>
sim::SweepResult run(const Case& c, std::vector<float>* box = nullptr, std::vector<float>* stored = nullptr) {
    const Tensor t(c, rank);
    std::vector<float> values(t.size);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
    unsigned elements = 1;
    for (int i = 0; i < rank; ++i) elements *= c.box[i];
    return sim::sweep({}, [&](sim::Outputs& outputs) {
        float *from = nullptr, *to = nullptr, *out = nullptr;
        cudaMalloc(&from, t.size * 4), cudaMalloc(&to, t.size * 4), cudaMalloc(&out, elements * 4);
        cudaMemcpy(from, values.data(), t.size * 4, cudaMemcpyHostToDevice);
        cudaMemset(to, 0, t.size * 4);
        std::int64_t dims[rank], strides[rank - 1];
        unsigned box_dims[rank];
        for (int i = 0; i < rank; ++i) dims[i] = c.dims[i], box_dims[i] = c.box[i];
        for (int i = 0; i + 1 < rank; ++i) strides[i] = t.strides[i];
        cudaLaunchConfig_t config{};
        config.blockDim = 64;
        config.dynamicSmemBytes = elements * 4;
        cudaLaunchKernelEx(&config, through<rank, bug>, out, tensor_map(from, dims, strides, box_dims, c.swizzle),
                           tensor_map(to, dims, strides, box_dims, c.swizzle), c.at, elements);
        std::vector<float> got(elements), back(t.size);
        cudaMemcpy(got.data(), out, elements * 4, cudaMemcpyDeviceToHost);
        cudaMemcpy(back.data(), to, t.size * 4, cudaMemcpyDeviceToHost);
        cudaFree(from), cudaFree(to), cudaFree(out);
        outputs.add("box", got.data(), elements * 4);
        outputs.add("stored", back.data(), t.size * 4);
        if (box) *box = got;
        if (stored) *stored = back;
    });
}

// Where a swizzle puts byte b of a box, from its drawing in the CUDA guide: rows of 128 bytes are eight pieces of 16;
// piece p of row r goes to p ^ r, with r modulo 8 for 128 bytes; with 64 bytes the lower two bits of p and r / 1 modulo
// 4; with 32 the lowest of both.
std::size_t drawn(std::size_t b, unsigned span) {
    const std::size_t row = b / 128, piece = b % 128 / 16;
    const std::size_t mask = span == 128 ? 7 : span == 64 ? 3 : span == 32 ? 1 : 0;
    return row * 128 + ((piece ^ (row & mask)) * 16) + b % 16;
}

template <int rank>
void box_is_the_tensors(const Case& c) {
    std::vector<float> box, stored;
    EXPECT_EQ((run<rank>(c, &box, &stored).text()), "");
    const Tensor t(c, rank);
    std::vector<float> want_stored(t.size, 0.0f);
    const std::int64_t start[4] = {c.at.c0, c.at.c1, c.at.c2, c.at.c3};
    for (std::size_t i = 0; i < box.size(); ++i) {
        std::size_t rest = i, at = 0;
        bool inside = true;
        for (int d = 0; d < rank; ++d) {
            const std::int64_t index = start[d] + static_cast<std::int64_t>(rest % c.box[d]);
            rest /= c.box[d];
            inside = inside && index >= 0 && index < c.dims[d];
            at += static_cast<std::size_t>(index * (d == 0 ? 1 : t.strides[d - 1]));
        }
        const float value = inside ? static_cast<float>(at + 1) : 0.0f;
        ASSERT_EQ(box[drawn(i * 4, c.span) / 4], value) << "element " << i << " of the box";
        if (inside) want_stored[at] = value + 1;
    }
    EXPECT_EQ(stored, want_stored);
}

TEST(Bulk, BoxesAreWhereTheirMapSaysAndZeroOutsideOfTheTensor) {
    const auto none = CU_TENSOR_MAP_SWIZZLE_NONE;
    box_is_the_tensors<2>({{40, 9}, {8, 4}, {8, 2, 0, 0}, none, 0});
    box_is_the_tensors<2>({{37, 9}, {32, 16}, {16, 3, 0, 0}, CU_TENSOR_MAP_SWIZZLE_128B, 128});  // ends of both dims
    box_is_the_tensors<2>({{37, 9}, {16, 8}, {-3, -2, 0, 0}, CU_TENSOR_MAP_SWIZZLE_64B, 64});    // and beginnings
    box_is_the_tensors<2>({{16, 40}, {8, 32}, {8, 16, 0, 0}, CU_TENSOR_MAP_SWIZZLE_32B, 32});
    box_is_the_tensors<2>({{16, 4}, {16, 4}, {20, 1, 0, 0}, none, 0});                                 // all outside
    box_is_the_tensors<3>({{32, 3, 20}, {32, 1, 16}, {0, 2, 8, 0}, CU_TENSOR_MAP_SWIZZLE_128B, 128});  // a head's rows
    box_is_the_tensors<3>({{32, 3, 20}, {16, 2, 5}, {16, 2, 17, 0}, none, 0});
    box_is_the_tensors<4>({{16, 3, 2, 7}, {16, 2, 1, 4}, {0, 1, 1, 5}, CU_TENSOR_MAP_SWIZZLE_64B, 64});
}

constexpr Case plain{{32, 16}, {32, 16}, {0, 0, 0, 0}, CU_TENSOR_MAP_SWIZZLE_128B, 128};

TEST(Bulk, ALoadMustBeWaitedFor) {
    const auto result = run<2, Bug::no_wait>(plain);
    EXPECT_TRUE(result.has(Kind::nondeterminism)) << result.text();
    EXPECT_TRUE(result.says(Kind::missing_wait, {"1 bulk loads", "had not landed", "bulk_test.cpp"})) << result.text();
}
// What lands beyond what was expected leaves the phase open: nobody will take those bytes back.
TEST(Bulk, ExpectingTooLittleOrTooMuchIsADeadlockWithTheBytes) {
    const auto little = run<2, Bug::expects_too_little>(plain), much = run<2, Bug::expects_too_much>(plain);
    EXPECT_TRUE(little.says(Kind::deadlock, {"1 of 1 arrivals", "128 bytes more than expected"}) ||
                little.says(Kind::deadlock, {"128 bytes more than expected"}))
        << little.text();
    EXPECT_TRUE(much.says(Kind::deadlock, {"16 bytes missing", "bulk_test.cpp"})) << much.text();
}
TEST(Bulk, ALoadMaySeeItsMbarrierOnlyAfterAFence) {
    EXPECT_TRUE(
        (run<2, Bug::no_fence_of_init>(plain).says(Kind::missing_fence, {"fence.mbarrier_init", "bulk_test.cpp"})));
}
TEST(Bulk, AStoreMaySeeWhatThreadsWroteOnlyAfterAFence) {
    EXPECT_TRUE(
        (run<2, Bug::no_fence_of_stores>(plain).says(Kind::missing_fence, {"fence.proxy.async", "bulk_test.cpp"})));
}
TEST(Bulk, AStoreMustBeWaitedForAndComesAfterABarrier) {
    EXPECT_TRUE((run<2, Bug::no_store_wait>(plain).says(Kind::missing_wait, {"thread 0", "1 bulk stores"})));
    EXPECT_FALSE((run<2, Bug::no_barrier>(plain).clean()));
}

// Two boxes at one mbarrier, of which only one was expected: whoever waits may read the other too early.
template <bool fixed>
__global__ void two_boxes(float* out, CUtensorMap map) {
    KEEL_DYNAMIC_SHARED(float, tile);
    KEEL_SHARED(std::uint64_t, full, [1]);
    if (threadIdx.x == 0) {
        mbarrier_init(full, fixed ? 1 : 2);
        fence_mbarrier_init();
        mbarrier_arrive_expect(full, fixed ? 2048 : 1024);
        load_box(tile, map, full, 0, 0);
        load_box(tile + 256, map, full, 0, 8);
        if (!fixed) {
            mbarrier_arrive_expect(full, 0);
            mbarrier_wait(full, 0);
        }
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    for (unsigned i = threadIdx.x; i < 512; i += blockDim.x) out[i] = tile[i];
}
TEST(Bulk, BytesOfEveryBoxMustBeExpected) {
    const auto go = [](void (*kernel)(float*, CUtensorMap)) {
        return sim::sweep({}, [&](sim::Outputs& outputs) {
            std::vector<float> host(1024);
            float *from = nullptr, *out = nullptr;
            cudaMalloc(&from, 4096), cudaMalloc(&out, 2048);
            cudaMemset(from, 0, 4096);
            cudaLaunchConfig_t config{};
            config.blockDim = 32;
            config.dynamicSmemBytes = 2048;
            cudaLaunchKernelEx(&config, kernel, out,
                               tensor_map(from, {32, 32}, {32}, {32u, 8u}, CU_TENSOR_MAP_SWIZZLE_128B));
            cudaMemcpy(host.data(), out, 2048, cudaMemcpyDeviceToHost);
            cudaFree(from), cudaFree(out);
            outputs.add("out", host.data(), 2048);
        });
    };
    EXPECT_EQ(go(two_boxes<true>).text(), "");
    EXPECT_TRUE(go(two_boxes<false>).says(Kind::deadlock, {"1024 bytes more than expected"}))
        << go(two_boxes<false>).text();
}

// ---- what is refused -----------------------------------------------------------------------------------------------

TEST(Bulk, MapsThatADriverRefusesAreNamed) {
    alignas(16) static float data[64];
    const auto encode = [](const float* at, std::int64_t dim, std::int64_t stride, unsigned box,
                           CUtensorMapSwizzle swizzle) {
        sim::take_findings();
        EXPECT_THROW(tensor_map(at, {dim, 4}, {stride}, {box, 4u}, swizzle), Error);
        std::string text;
        for (const auto& finding : sim::take_findings()) text += finding.text;
        return text;
    };
    const auto none = CU_TENSOR_MAP_SWIZZLE_NONE;
    EXPECT_NE(encode(data + 1, 16, 16, 4, none).find("address must be a multiple of 16"), std::string::npos);
    EXPECT_NE(encode(data, 16, 14, 4, none).find("stride of dim 1 is 56 bytes"), std::string::npos);
    EXPECT_NE(encode(data, 16, 16, 3, none).find("12 bytes, no multiple of 16"), std::string::npos);
    EXPECT_NE(encode(data, 16, 16, 260, none).find("260 along dim 0; it must be 1 to 256"), std::string::npos);
    EXPECT_NE(encode(data, 0, 16, 4, none).find("dim 0 is 0"), std::string::npos);
    EXPECT_NE(encode(data, 64, 64, 64, CU_TENSOR_MAP_SWIZZLE_128B).find("more than the 128 of its swizzle"),
              std::string::npos);
}

enum class Where { right, odd, beyond, no_map, two_coordinates, freed };
template <Where where>
__global__ void misplaced(float* out, CUtensorMap map) {
    KEEL_DYNAMIC_SHARED(float, tile);
    KEEL_SHARED(std::uint64_t, full, [1]);
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect(full, 1024);
    const CUtensorMap nothing{};
    if (where == Where::two_coordinates)
        load_box(tile, map, full, 0, 0, 0);
    else
        load_box(tile + (where == Where::odd      ? 8
                         : where == Where::beyond ? 64
                                                  : 0),
                 where == Where::no_map ? nothing : map, full, 0, 0);
    mbarrier_wait(full, 0);
    out[0] = tile[0];
}
TEST(Bulk, CopiesThatWouldDamageMemoryAreNamed) {
    const auto go = [](void (*kernel)(float*, CUtensorMap), bool freed = false) {
        return sim::sweep({}, [&](sim::Outputs&) {
            float *from = nullptr, *out = nullptr;
            cudaMalloc(&from, 1024), cudaMalloc(&out, 4);
            const CUtensorMap map = tensor_map(from, {32, 8}, {32}, {32u, 8u}, CU_TENSOR_MAP_SWIZZLE_128B);
            if (freed) cudaFree(from);
            cudaLaunchConfig_t config{};
            config.blockDim = 1;
            config.dynamicSmemBytes = 1152;
            cudaLaunchKernelEx(&config, kernel, out, map);
            if (!freed) cudaFree(from);
            cudaFree(out);
        });
    };
    EXPECT_EQ(go(misplaced<Where::right>).text(), "");
    EXPECT_TRUE(go(misplaced<Where::odd>).says(Kind::misaligned, {"no multiple of 128 bytes"}));
    EXPECT_TRUE(go(misplaced<Where::beyond>).says(Kind::out_of_bounds, {"1024 bytes do not lie in one array"}));
    EXPECT_TRUE(go(misplaced<Where::no_map>).says(Kind::bad_launch, {"never encoded"}));
    EXPECT_TRUE(go(misplaced<Where::two_coordinates>).says(Kind::bad_launch, {"3 coordinates", "rank 2"}));
    EXPECT_TRUE(go(misplaced<Where::right>, true).says(Kind::out_of_bounds, {"does not lie in one allocation"}));
}

}  // namespace
}  // namespace keel::on_cudasim
