// What nvcc's assembler makes of every kernel, held against tests/sim/kernel_budgets.txt: no spill, no more registers
// and shared memory than planned, and as many instructions of tensor cores and of asynchronous copies as the kernel is
// written with.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/sim/cubin.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using cubin::Kernel;

std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// "sm_80 attention.cu: tiles_kernel<64, 2, 64>", and what it may use.
std::string key_of(const Kernel& k, const std::string& file) {
    return "sm_" + std::to_string(k.architecture) + " " + file + ": " + k.name;
}
struct Budget {
    int registers = 0, shared_bytes = 0, mma = 0, ldmatrix = 0, cp_async = 0, wgmma = 0, bulk = 0;
    auto operator<=>(const Budget&) const = default;
};
// Registers are handed out by eights.
Budget budget_of(const Kernel& k) {
    return {(k.registers + 7) / 8 * 8, k.shared_bytes, k.mma, k.ldmatrix, k.cp_async, k.wgmma, k.bulk};
}
std::string line_of(const std::string& key, const Budget& b) {
    std::ostringstream out;
    out << key << " | " << b.registers << ' ' << b.shared_bytes << ' ' << b.mma << ' ' << b.ldmatrix << ' '
        << b.cp_async;
    if (b.wgmma + b.bulk > 0) out << ' ' << b.wgmma << ' ' << b.bulk;
    return out.str();
}

struct Budgets {
    std::string toolkit;  // "13.0": the numbers are this assembler's
    std::map<std::string, Budget> of;
};
Budgets read_budgets() {
    Budgets budgets;
    std::ifstream in(std::string(KEEL_SOURCE_DIR) + "/tests/sim/kernel_budgets.txt");
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with("toolkit ")) budgets.toolkit = line.substr(8);
        const auto bar = line.find(" | ");
        if (line.starts_with("#") || bar == std::string::npos) continue;
        Budget b;
        std::istringstream(line.substr(bar + 3)) >> b.registers >> b.shared_bytes >> b.mma >> b.ldmatrix >> b.cp_async >>
            b.wgmma >> b.bulk;  // the last two may be left out
        budgets.of[line.substr(0, bar)] = b;
    }
    return budgets;
}

std::map<std::string, Kernel> built_kernels() {
    std::map<std::string, Kernel> all;
    for (const fs::path folder : {KEEL_CUDA_OBJECTS})
        for (const auto& entry : fs::directory_iterator(folder))
            if (entry.path().extension() == ".o")
                for (const Kernel& k : cubin::kernels_of(bytes_of(entry.path())))
                    all[key_of(k, entry.path().stem().string())] = k;
    return all;
}
// Kernels of comm need the header of NCCL; those for Hopper are built for it whatever the others are built for.
bool is_built_here(const std::string& key) {
    if (key.find(" nccl") != std::string::npos && !KEEL_CUDA_WITH_NCCL) return false;
    if (key.find("_hopper") != std::string::npos) return KEEL_HOPPER;
    std::istringstream architectures(KEEL_CUDA_ARCHITECTURES);
    for (std::string one; architectures >> one;)
        if (key.starts_with("sm_" + one.substr(0, one.find_first_not_of("0123456789")) + " ")) return true;
    return false;
}

// Another assembler, or another GPU's, may unroll and allocate in another way, but not leave the tensor cores.
void expect_same_kinds(const Budget& got, const Budget& may, const std::string& key) {
    EXPECT_EQ(got.mma > 0, may.mma > 0) << key;
    EXPECT_EQ(got.ldmatrix > 0, may.ldmatrix > 0) << key;
    EXPECT_EQ(got.cp_async > 0, may.cp_async > 0) << key;
    EXPECT_EQ(got.wgmma > 0, may.wgmma > 0) << key;
    EXPECT_EQ(got.bulk > 0, may.bulk > 0) << key;
}

TEST(KernelBudgets, NoKernelSpills) {
    const auto kernels = built_kernels();
    ASSERT_GT(kernels.size(), 100u);
    for (const auto& [key, k] : kernels) {
        EXPECT_EQ(k.local, 0) << key << " reads or writes local memory";
        EXPECT_GT(k.registers, 0) << key;
    }
}

TEST(KernelBudgets, KernelsKeepToTheirRegistersMemoryAndInstructions) {
    const Budgets budgets = read_budgets();
    const auto kernels = built_kernels();
    const bool same_toolkit = budgets.toolkit == KEEL_CUDA_VERSION;
    std::string all = "toolkit " KEEL_CUDA_VERSION "\n";
    for (const auto& [key, k] : kernels) {
        if (k.architecture != 80 && k.architecture != 90) continue;
        const Budget got = budget_of(k);
        all += line_of(key, got) + "\n";
        const auto known = budgets.of.find(key);
        if (known == budgets.of.end()) {
            ADD_FAILURE() << key << " has no budget in tests/sim/kernel_budgets.txt; it needs: " << line_of(key, got);
            continue;
        }
        const Budget& may = known->second;
        expect_same_kinds(got, may, key);
        if (!same_toolkit) continue;
        EXPECT_LE(got.registers, may.registers) << key;
        EXPECT_LE(got.shared_bytes, may.shared_bytes) << key;
        EXPECT_EQ(got.mma, may.mma) << key;
        EXPECT_EQ(got.ldmatrix, may.ldmatrix) << key;
        EXPECT_EQ(got.cp_async, may.cp_async) << key;
        EXPECT_EQ(got.wgmma, may.wgmma) << key;
        EXPECT_EQ(got.bulk, may.bulk) << key;
    }
    for (const auto& [key, budget] : budgets.of)
        EXPECT_EQ(kernels.contains(key), is_built_here(key)) << key << " is in the budgets, and built nowhere";
    if (HasFailure()) {
        const fs::path path = fs::temp_directory_path() / "keel_kernel_budgets.txt";
        std::ofstream(path) << all;
        ADD_FAILURE() << "what kernels use now is in " << path
                      << "; what is meant to be so goes to tests/sim/kernel_budgets.txt";
    }
}

// Newer GPUs that KEEL_CUDA_ARCHITECTURES asked for have no numbers of their own: they run what sm_80 runs.
TEST(KernelBudgets, KernelsForNewerGpusUseWhatThoseForSm80Use) {
    const Budgets budgets = read_budgets();
    for (const auto& [key, k] : built_kernels()) {
        if (k.architecture == 80 || k.architecture == 90) continue;
        const auto on_80 = budgets.of.find("sm_80" + key.substr(key.find(' ')));
        if (on_80 != budgets.of.end())
            expect_same_kinds(budget_of(k), on_80->second, key);
        else  // the library of sorts may have kernels of their own
            EXPECT_NE(key.find("CUB::"), std::string::npos) << key << " is not among those for sm_80";
    }
}

}  // namespace
}  // namespace keel
