// Runs a fuzz target for some seconds under any compiler: seeded random mutations of seed inputs, no coverage feedback.
//
//     fuzz_token_file SECONDS [SEED] [FILE | FOLDER]…
//
// SEED 0 (the default) gives the same inputs every time. A target may bring seeds of its own (keel_fuzz_seeds). An input
// that kills the target is written to crash-<pid> in the working folder; `fuzz_token_file 0 0 crash-…` runs files once.
//
// For long runs that follow coverage, build the targets without this file, with clang 15 or later (14 has no
// std::source_location):
//     CXX=clang++-15 cmake -S . -B build-fuzz -G Ninja -DKEEL_FUZZ=ON -DKEEL_SANITIZE=fuzzer-no-link,address,undefined
//     cmake --build build-fuzz --target fuzz_token_file
//     build-fuzz/tests/fuzz/fuzz_token_file -max_total_time=3600 a-folder-of-seeds
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
__attribute__((weak)) std::vector<std::string> keel_fuzz_seeds();

namespace {

std::string input;  // what the target is looking at

void dump(int signal) {
    char name[64];
    std::snprintf(name, sizeof name, "crash-%d", static_cast<int>(::getpid()));
    const int fd = ::open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0 && ::write(fd, input.data(), input.size()) >= 0) std::fprintf(stderr, "signal %d; input in %s\n", signal, name);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

using Generator = std::mt19937_64;
std::size_t below(Generator& random, std::size_t n) { return n == 0 ? 0 : random() % n; }

void mutate(Generator& random, const std::vector<std::string>& seeds) {
    static constexpr std::uint64_t interesting[] = {0, 1, 2, 7, 8, 127, 128, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000,
                                                    0xffffffff, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};
    const std::size_t at = below(random, input.size() + 1);
    switch (below(random, 9)) {
        case 0:
            if (!input.empty()) input[below(random, input.size())] ^= static_cast<char>(1 << below(random, 8));
            break;
        case 1:
            if (!input.empty()) input[below(random, input.size())] = static_cast<char>(random());
            break;
        case 2: input.insert(at, 1 + below(random, 8), static_cast<char>(random())); break;
        case 3: input.erase(at, 1 + below(random, 32)); break;
        case 4: input.resize(at); break;
        case 5: {  // a number, at any width
            const std::uint64_t value = interesting[below(random, std::size(interesting))];
            const std::size_t width = std::size_t{1} << below(random, 4);
            for (std::size_t i = 0; i < width && at + i < input.size(); ++i) input[at + i] = static_cast<char>(value >> (8 * i));
            break;
        }
        case 6: {  // a piece of itself or of another seed, somewhere else
            const std::string& from = below(random, 2) == 0 ? input : seeds[below(random, seeds.size())];
            if (from.size() < 1 << 20) input.insert(at, from.substr(below(random, from.size() + 1), 1 + below(random, 64)));
            break;
        }
        case 7: {  // what text formats are made of
            static constexpr const char* words[] = {"{", "}", "[", "]", "\"", ":", ",", "null", "true", "-1", "1e999", "\\u0000", "\\ud800", "\n", "\xff"};
            input.insert(at, words[below(random, std::size(words))]);
            break;
        }
        default:
            if (!input.empty()) std::swap(input[below(random, input.size())], input[below(random, input.size())]);
    }
}

void add_seeds(const std::filesystem::path& path, std::vector<std::string>& seeds) {
    if (std::filesystem::is_directory(path)) {
        for (const auto& entry : std::filesystem::directory_iterator(path)) add_seeds(entry.path(), seeds);
        return;
    }
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
    Generator random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
    std::vector<std::string> seeds;
    if (keel_fuzz_seeds) seeds = keel_fuzz_seeds();
    for (int i = 3; i < argc; ++i) add_seeds(argv[i], seeds);
    seeds.emplace_back();
    for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, dump);

    const auto run = [] { LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()); };
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    long runs = 0;
    for (const std::string& seed : seeds) input = seed, run(), ++runs;
    while (std::chrono::steady_clock::now() < end) {
        input = seeds[below(random, seeds.size())];
        for (std::size_t n = 1 + below(random, 6); n > 0; --n) mutate(random, seeds);
        run();
        ++runs;
    }
    std::printf("%ld inputs\n", runs);
    return 0;
}
