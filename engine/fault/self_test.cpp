#include "engine/fault/self_test.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/fault/known_product.h"
#include "engine/fault/patterns.h"
#include "kernels/base/affinity.h"
#include "kernels/base/error.h"
#include "kernels/base/pages.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

namespace known = known_product;
using known::depth;

constexpr std::int64_t rows = 48, columns = 80;
constexpr std::int64_t words = (8 << 20) / 8;  // of memory, per core at a time

// What one core said wrong; "" for nothing. `memory` is `words` long, and holds the operands first.
class CoreTest {
public:
    CoreTest(int core, const Tampering& tampering) : core_(core), tampering_(tampering), pages_(words * 8) {}

    std::string run() {
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET(core_, &only);
        if (pthread_setaffinity_np(pthread_self(), sizeof only, &only) != 0) return {};  // taken offline since it was listed
        std::string wrong = multiply<float>("float32");
        if (wrong.empty()) wrong = multiply<bf16>("bf16");
        return wrong.empty() ? remember() : wrong;
    }

private:
    template <class T> std::string multiply(const char* type) {
        T* a = reinterpret_cast<T*>(pages_.data());
        T* b = a + rows * depth;
        float* c = reinterpret_cast<float*>(b + depth * columns);
        std::byte* workspace = pages_.data() + words * 8 - matmul_workspace_bytes;
        static_assert((rows * depth + depth * columns + rows * columns) * 4 <= words * 8 - matmul_workspace_bytes);
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t k = 0; k < depth; ++k) a[i * depth + k] = static_cast<T>(static_cast<float>(known::a(i, k)));
        for (std::int64_t k = 0; k < depth; ++k)
            for (std::int64_t j = 0; j < columns; ++j) b[k * columns + j] = static_cast<T>(static_cast<float>(known::b(k, j)));
        matmul_serial<T, float>({.c = c, .c_stride = columns, .a = {a, depth, 1}, .b = {b, columns, 1}, .m = rows, .n = columns,
                                 .k = depth, .accumulate = false}, workspace);
        if (tampering_.product) tampering_.product(core_, {c, static_cast<std::size_t>(rows * columns)});
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < columns; ++j) {
                const auto right = static_cast<float>(known::product(i, j));
                if (c[i * columns + j] != right)
                    return concat("core ", core_, " multiplied wrongly in ", type, ": element (", i, ", ", j, ") of a product is ",
                                  c[i * columns + j], ", and must be ", right);
            }
        return {};
    }

    std::string remember() {
        auto* memory = reinterpret_cast<std::uint64_t*>(pages_.data());
        for (std::size_t p = 0; p < memory_patterns; ++p) {
            for (std::int64_t i = 0; i < words; ++i) memory[i] = pattern_word(p, i);
            if (tampering_.memory) tampering_.memory(core_, {memory, static_cast<std::size_t>(words)});
            asm volatile("" : : "r"(memory) : "memory");  // what was written is read, not remembered by the compiler
            for (std::int64_t i = 0; i < words; ++i)
                if (memory[i] != pattern_word(p, i)) {
                    char text[64];
                    std::snprintf(text, sizeof text, "%016llx, and must be %016llx", static_cast<unsigned long long>(memory[i]),
                                  static_cast<unsigned long long>(pattern_word(p, i)));
                    return concat("core ", core_, " read wrongly from memory it had written: the word at byte ", 8 * i, " is ", text);
                }
        }
        return {};
    }

    int core_;
    const Tampering& tampering_;
    Pages pages_;
};

}  // namespace

std::vector<int> cores_to_test(int local_rank, int local_size) {
    std::vector<int> cores = available_processors();
    if (static_cast<long>(cores.size()) < sysconf(_SC_NPROCESSORS_ONLN) || local_size <= 1) return cores;  // bound, or alone
    std::vector<int> share;
    for (std::size_t i = 0; i < cores.size(); ++i)
        if (static_cast<int>(i) % local_size == local_rank) share.push_back(cores[i]);
    return share;
}

void self_test(const std::string& host, std::span<const int> cores, const Tampering& tampering) {
    constexpr std::size_t at_once = 8;  // 8 MiB each
    std::string wrong;
    std::mutex mutex;
    for (std::size_t first = 0; first < cores.size() && wrong.empty(); first += at_once) {
        std::vector<std::thread> threads;
        for (const int core : cores.subspan(first, std::min(at_once, cores.size() - first)))
            threads.emplace_back([&, core] {
                std::string said;
                try {
                    said = CoreTest(core, tampering).run();
                } catch (const std::exception& e) {
                    said = concat("core ", core, " could not be tested: ", e.what());
                }
                const std::lock_guard lock(mutex);
                if (wrong.empty()) wrong = said;
            });
        for (std::thread& thread : threads) thread.join();
    }
    if (wrong.empty()) return;
    throw Error(concat("the self-test failed on ", host, ": ", wrong, ". Take this machine out, and go on from the newest ",
                       "checkpoint on another one (--watch.self_test false trains here all the same)"),
                std::source_location::current(), ExitCode::device);
}

void self_test(const World& world, const Tampering& tampering) {
    self_test(world.host(), cores_to_test(world.local_rank(), world.local_size()), tampering);
}

}  // namespace keel
