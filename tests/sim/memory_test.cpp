// Seeded mistakes with memory: out of bounds in global and shared memory, misaligned vectors, launches and copies that
// a GPU refuses. Each is named with its line, or with the launch that made the damage; the fixed twins are silent.
#include <csignal>
#include <cstdlib>

#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

// ---- global memory
// -----------------------------------------------------------------------------------------------------------

std::string line;
template <bool fixed>
__global__ void checked(float* x, unsigned n) {
    const unsigned i = blockIdx.x * 32 + threadIdx.x;
    if (fixed ? i >= n : i > n) return;
    line = next_line();
    store<1>(x + i, {{load<1>(x + i).at[0] + 1}});
}
TEST(SimMemory, AnElementPastTheEndIsNamedWithThreadAndLine) {
    EXPECT_EQ(sweep_kernel({.blocks = 2}, counting(40), checked<true>, 40u).text(), "");
    const auto result = sweep_kernel({.blocks = 2}, counting(40), checked<false>, 40u);
    EXPECT_TRUE(result.says(Kind::out_of_bounds,
                            {"thread 8 of block 1", "4 bytes", "0 bytes past the end of one of 160", line}))
        << result.text();
}

template <bool fixed>
__global__ void unchecked(float* x, unsigned n) {
    const unsigned i = blockIdx.x * 32 + threadIdx.x;
    if (fixed ? i < n : i <= n) x[i] = 7;
}
#if !SIM_ASAN && !SIM_TSAN  // which see to such faults themselves
TEST(SimMemory, CodeOfTheHostThatTouchesTheDevicesMemoryDiesOfItWhereThatIsAskedFor) {
    const auto touch = [](bool faults) {
        sim::Config config;
        config.host_faults = faults;
        sim::configure(config);
        float* x = nullptr;
        cudaMalloc(&x, 64);
        cudaMemset(x, 0, 64);  // operations of streams may
        float seen = *static_cast<volatile float*>(x);
        cudaFree(x);
        std::_Exit(seen == 0 ? 7 : 8);  // threads that the model keeps were not forked
    };
    EXPECT_EXIT(touch(true), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT(touch(false), testing::ExitedWithCode(7), "");
}
TEST(SimMemory, MemoryThatIsClosedToTheHostCanBeFreedWhileOtherMemoryIsHeld) {
    sim::Config config;
    config.host_faults = true;
    sim::configure(config);
    float *x = nullptr, *y = nullptr;
    cudaMalloc(&x, 64), cudaMalloc(&y, 64);
    cudaMemset(x, 0, 64);
    EXPECT_EQ(cudaFree(x), cudaSuccess);  // which looks at the zones around both
    EXPECT_EQ(cudaMemset(y, 0, 64), cudaSuccess);
    EXPECT_EQ(cudaFree(y), cudaSuccess);
    sim::configure({});
}
#endif
#if !SIM_ASAN  // which ends the program at once, with the line: sanitizer_test.cpp
TEST(SimMemory, APlainWritePastTheEndIsFoundInTheRedZoneAndNamesTheLaunch) {
    EXPECT_EQ(sweep_kernel({.blocks = 2}, counting(40), unchecked<true>, 40u).text(), "");
    line = next_line();
    const auto result = sweep_kernel({.blocks = 2}, counting(40), unchecked<false>, 40u);
    EXPECT_TRUE(result.says(Kind::out_of_bounds, {"the launch at", line, "past the end of an allocation of 160 bytes"}))
        << result.text();
}
__global__ void before(float* x) { x[-1] = 7; }
TEST(SimMemory, APlainWriteBeforeTheStartIsFoundInTheRedZone) {
    EXPECT_TRUE(
        sweep_kernel({}, counting(40), before).says(Kind::out_of_bounds, {"wrote before an allocation of 160 bytes"}));
}
#endif

template <int by>
__global__ void as_vectors(float* x) {
    store<4>(x + by + 4 * threadIdx.x, load<4>(x + by));
}
TEST(SimMemory, AMisalignedVectorIsNamed) {
    EXPECT_FALSE(sweep_kernel({.threads = 8}, counting(40), as_vectors<4>).has(Kind::misaligned));
    EXPECT_TRUE(sweep_kernel({.threads = 8}, counting(40), as_vectors<1>)
                    .says(Kind::misaligned, {"16 bytes", "memory_test.cpp"}));
}

__global__ void add_somewhere(float* x, long long by) { atomicAdd(x + by, 1.0f); }
TEST(SimMemory, AtomicsAreHeldAgainstTheTableOfAllocations) {
    EXPECT_EQ(sweep_kernel({}, counting(8), add_somewhere, 7).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(8), add_somewhere, 8).says(Kind::out_of_bounds, {"memory_test.cpp"}));
}

TEST(SimMemory, APointerOfTheHostAmongTheArgumentsIsNamed) {
    static float host[32];
    const auto result = sim::sweep({}, [](sim::Outputs&) {
        cudaLaunchConfig_t config{};
        config.blockDim = 32;
        cudaLaunchKernelEx(&config, unchecked<true>, host, 32u);
    });
    EXPECT_TRUE(result.says(Kind::out_of_bounds, {"argument 0", "memory_test.cpp"})) << result.text();
}

// ---- shared memory
// ---------------------------------------------------------------------------------------------------------------

template <bool fixed>
__global__ void static_shared(float* x) {
    KEEL_SHARED(float, tile, [32]);
    KEEL_SHARED(float, other, [32]);
    const unsigned i = threadIdx.x;
    float* t = tile;
    t[fixed ? i : i + 1] = x[i];
    other[i] = 0;
    __syncthreads();
    x[i] = other[i];
}
#if !SIM_ASAN
TEST(SimMemory, AWritePastAStaticSharedArrayIsFoundAndNamesTheArray) {
    EXPECT_EQ(sweep_kernel({}, counting(32), static_shared<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(32), static_shared<false>)
                    .says(Kind::out_of_bounds, {"past the end of tile of", "128 bytes"}));
}
#endif

template <bool fixed>
__global__ void dynamic_shared(float* x) {
    KEEL_DYNAMIC_SHARED(float, tile);
    const unsigned i = threadIdx.x;
    tile[fixed ? i : i + 1] = x[i];
    __syncthreads();
    x[i] = tile[31];
}
#if !SIM_ASAN
TEST(SimMemory, AWritePastDynamicSharedMemoryIsFound) {
    EXPECT_EQ(sweep_kernel({.shared_bytes = 128}, counting(32), dynamic_shared<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({.shared_bytes = 128}, counting(32), dynamic_shared<false>)
                    .says(Kind::out_of_bounds, {"past the end of dynamic shared memory"}));
}
#endif

template <bool fixed>
__global__ void copies(float* x) {
    KEEL_SHARED(float, tile, [128]);
    const unsigned i = threadIdx.x;
    line = next_line();
    cp_async_16(tile + 4 * i + (fixed ? 0 : 4), x + 4 * i);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    x[i] = tile[i];
}
TEST(SimMemory, AnAsynchronousCopyToOutsideOfAnArrayIsNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(128), copies<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(128), copies<false>).says(Kind::out_of_bounds, {"thread 31", line}));
    EXPECT_TRUE(sweep_kernel({}, counting(127), copies<true>).says(Kind::out_of_bounds, {"thread 31", line}));
}

template <bool fixed>
__global__ void rows(float* x) {
    KEEL_SHARED(__nv_bfloat16, tile, [8][8]);
    const unsigned i = threadIdx.x;
    for (unsigned k = i; k < 64; k += 32) tile[k / 8][k % 8] = __float2bfloat16(1);
    __syncthreads();
    std::uint32_t r[4];
    line = next_line();
    ldmatrix_x4(r, &tile[0][0] + 8 * (fixed ? i % 8 : i));
    x[i] = static_cast<float>(r[3]);
}
TEST(SimMemory, AnLdmatrixRowOutsideOfSharedMemoryIsNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(32), rows<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(32), rows<false>).says(Kind::out_of_bounds, {"lane 8", line}));
}

// nvcc's assembler refuses a kernel that declares more than 48 KiB; a launch may ask for more, up to what a block of this GPU can have.
template <int bytes>
__global__ void declares(float* x) {
    line = next_line();
    KEEL_SHARED(unsigned char, tile, [bytes]);
    tile[threadIdx.x] = 1;
    __syncthreads();
    x[threadIdx.x] = tile[31 - threadIdx.x];
}
TEST(SimMemory, AKernelMayDeclare48KiBOfSharedMemoryAndNoMore) {
    EXPECT_EQ(sweep_kernel({}, counting(32), declares<49152>).text(), "");
    const auto result = sweep_kernel({}, counting(32), declares<49153>);
    EXPECT_TRUE(result.says(Kind::bad_launch, {"tile of", line, "49153 bytes", "a kernel may declare 49152"})) << result.text();
    EXPECT_TRUE(sweep_kernel({}, counting(32), declares<(2 << 20)>).has(Kind::bad_launch));
}
TEST(SimMemory, DeclaredAndAskedForSharedMemoryCountTogether) {
    EXPECT_EQ(sweep_kernel({.shared_bytes = 48128}, counting(32), declares<1024>).text(), "");
    const auto result = sweep_kernel({.shared_bytes = 48129}, counting(32), declares<1024>);
    EXPECT_TRUE(result.says(Kind::bad_launch, {"1024 bytes", "beside 48129 asked for", "together it may have 49152 without cudaFuncAttributeMaxDynamic"}))
        << result.text();
    ASSERT_EQ(cudaFuncSetAttribute(declares<2048>, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448), cudaSuccess);
    EXPECT_EQ(sweep_kernel({.shared_bytes = 230400}, counting(32), declares<2048>).text(), "");
    EXPECT_TRUE(sweep_kernel({.shared_bytes = 230401}, counting(32), declares<2048>).says(Kind::bad_launch, {"together it may have 232448, all of a block"}));
}

// ---- launches that a GPU refuses
// -----------------------------------------------------------------------------------------------

std::string refused(const Grid& grid) { return sweep_kernel(grid, counting(32), dynamic_shared<true>).text(); }
TEST(SimMemory, LaunchesOutOfRangeAreRefused) {
    EXPECT_NE(refused({.threads = 1025, .shared_bytes = 128}).find("1025 x 1 x 1 threads"), std::string::npos);
    EXPECT_NE(refused({.blocks = 0, .shared_bytes = 128}).find("a grid of 0"), std::string::npos);
    EXPECT_NE(refused({.shared_bytes = 49153}).find("cudaFuncAttributeMaxDynamicSharedMemorySize"), std::string::npos);
    EXPECT_EQ(cudaFuncSetAttribute(dynamic_shared<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
              cudaSuccess);
    EXPECT_EQ(refused({.shared_bytes = 65536}), "");
    EXPECT_EQ(cudaFuncSetAttribute(dynamic_shared<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 233000),
              cudaErrorInvalidValue);
    sim::take_findings();
    cudaGetLastError();
}

// ---- copies and frees
// -------------------------------------------------------------------------------------------------------------

std::string first_finding() {
    const auto findings = sim::take_findings();
    cudaGetLastError();
    return findings.empty() ? "" : std::string(name(findings.front().kind)) + ": " + findings.front().text;
}
TEST(SimMemory, CopiesOutOfBoundsOrInTheWrongDirectionAreRefused) {
    float host[8] = {};
    float* x = nullptr;
    ASSERT_EQ(cudaMalloc(&x, sizeof host), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(first_finding(), "");
    EXPECT_EQ(cudaMemcpy(x + 1, host, sizeof host, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_NE(first_finding().find(
                  "bad copy: the destination has 28 bytes left, but 32 are asked for, at tests/sim/memory_test.cpp"),
              std::string::npos);
    EXPECT_EQ(cudaMemcpy(host, x, sizeof host, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_NE(first_finding().find("the destination is no device memory"), std::string::npos);
    EXPECT_EQ(cudaMemcpy(host, x, sizeof host, cudaMemcpyHostToHost), cudaErrorInvalidValue);
    EXPECT_NE(first_finding().find("the source is device memory"), std::string::npos);
    EXPECT_EQ(cudaMemset(x, 0, 33), cudaErrorInvalidValue);
    EXPECT_NE(first_finding().find("the destination of a memset has 32 bytes left"), std::string::npos);
    EXPECT_EQ(cudaFree(x + 1), cudaErrorInvalidValue);
    EXPECT_NE(first_finding().find("cudaFree of an address"), std::string::npos);
    EXPECT_EQ(cudaFree(x), cudaSuccess);
    EXPECT_EQ(cudaFree(x), cudaErrorInvalidValue);
    EXPECT_NE(first_finding().find("bad call"), std::string::npos);
}

TEST(SimMemory, ABrokenLaunchIsAnErrorOfLaterCallsUntilItIsLookedAt) {
    float* x = nullptr;
    ASSERT_EQ(cudaMalloc(&x, 32), cudaSuccess);
    cudaLaunchConfig_t config{};
    config.blockDim = 32;
    EXPECT_EQ(cudaLaunchKernelEx(&config, checked<false>, x, 8u), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaLaunchKernelEx(&config, checked<true>, x, 8u), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
    EXPECT_EQ(sim::take_findings().size(), 1u);
    EXPECT_EQ(cudaLaunchKernelEx(&config, checked<true>, x, 8u), cudaSuccess);
    EXPECT_EQ(cudaFree(x), cudaSuccess);
    cudaGetLastError();
}

}  // namespace
}  // namespace keel::on_cudasim
