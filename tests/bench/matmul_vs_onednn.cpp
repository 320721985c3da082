// keel's CPU product beside oneDNN's, both on every processor: interleaved, median and best of each, and their ratio.
//
// Not part of any test: its numbers need a quiet machine. Samples in which the system took a processor away are not
// counted, unless there are hardly any others. Prints the multiply-add peak of the same run: a rate means nothing
// without it. Operands lie in huge pages, as the engine's arena does; both sides read the same ones.
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

#include <omp.h>
#include <dnnl.hpp>

#include "kernels/base/stream.h"
#include "kernels/matmul.h"
#include "kernels/matmul_tile.h"

namespace {

using namespace keel;

// One thread is timed by its processor time, which a busy machine spoils less.
bool alone = false;
double now() {
    timespec t;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

long switches() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
}

// Seconds of one call, and whether nothing interrupted it.
template <class Call>
bool timed(Call call, double& seconds) {
    const long before = switches();
    const double begin = now();
    call();
    seconds = now() - begin;
    return alone || switches() == before;
}

struct Samples {
    std::vector<double> seconds, disturbed;
    void add(double sample, bool clean) { (clean ? seconds : disturbed).push_back(sample); }
    double at(double part) {
        if (seconds.size() < 3) seconds.insert(seconds.end(), disturbed.begin(), disturbed.end()), disturbed.clear();
        if (seconds.empty()) return 1e9;
        std::sort(seconds.begin(), seconds.end());
        return seconds[static_cast<std::size_t>(part * static_cast<double>(seconds.size() - 1))];
    }
};

// A sliver of A and a panel of B in the first cache: what the register tile can do at most.
double peak(Stream& stream) {
    constexpr std::int64_t k = 128, calls = 4000;
    double best = 0;
    for (int i = 0; i < 5; ++i) {
        double seconds;
        timed(
            [&] {
                stream.parallel(stream.threads(), [&](std::int64_t, int thread) {
                    float* const x = reinterpret_cast<float*>(stream.workspace(thread));
                    for (std::int64_t j = 0; j < 65536; ++j) x[j] = 0;
                    const tile::Product p{.a = x,
                                          .a_stride = k,
                                          .b = x + 2048,
                                          .b_stride = tile::panel,
                                          .b_panel = 0,
                                          .c = x + 32768,
                                          .c_stride = tile::panel,
                                          .k = k};
                    for (std::int64_t j = 0; j < calls; ++j)
                        tile::product(tile::Order::rows, tile::max_rows, tile::panel, p, [] {});
                });
            },
            seconds);
        best = std::max(best,
                        static_cast<double>(stream.threads() * calls * 2 * tile::max_rows * tile::panel * k) / seconds);
    }
    return best;
}

template <class T>
class Values {
public:
    explicit Values(std::int64_t n) {
        constexpr std::size_t page = 2 << 20;
        const std::size_t bytes = (static_cast<std::size_t>(n) * sizeof(T) + page - 1) / page * page;
        data_ = static_cast<T*>(std::aligned_alloc(page, bytes));
        madvise(data_, bytes, MADV_HUGEPAGE);
        std::uint32_t state = 1;
        for (std::int64_t i = 0; i < n; ++i)
            data_[i] = T(static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f);
    }
    ~Values() { std::free(data_); }
    Values(const Values&) = delete;
    Values& operator=(const Values&) = delete;
    T* data() { return data_; }

private:
    T* data_;
};

struct Shape {
    std::int64_t m, n, k;
    char form[3];
};

template <class T, class C>
void compare(Stream& stream, const Shape& s, int rounds) {
    using namespace dnnl;
    const bool ta = s.form[0] == 'T', tb = s.form[1] == 'T';
    Values<T> a(s.m * s.k), b(s.k * s.n);
    Values<C> c(s.m * s.n), d(s.m * s.n);
    static engine cpu(engine::kind::cpu, 0);
    static dnnl::stream queue(cpu);
    const auto type = [](auto x) {
        return std::is_same_v<decltype(x), float> ? memory::data_type::f32 : memory::data_type::bf16;
    };
    const bool accumulate = ta;  // a weight gradient
    const memory::desc a_desc({s.m, s.k}, type(T()), ta ? memory::dims{1, s.m} : memory::dims{s.k, 1});
    const memory::desc b_desc({s.k, s.n}, type(T()), tb ? memory::dims{1, s.k} : memory::dims{s.n, 1});
    const memory::desc c_desc({s.m, s.n}, type(C()), memory::dims{s.n, 1});
    primitive_attr attributes;
    attributes.set_scratchpad_mode(scratchpad_mode::user);
    if (accumulate) {
        post_ops sum;
        sum.append_sum();
        attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description({a_desc, b_desc, c_desc}, attributes, cpu);
    const dnnl::matmul primitive(description);
    memory scratch(description.scratchpad_desc(), cpu);
    std::unordered_map<int, memory> args{{DNNL_ARG_SRC, memory(a_desc, cpu, a.data())},
                                         {DNNL_ARG_WEIGHTS, memory(b_desc, cpu, b.data())},
                                         {DNNL_ARG_DST, memory(c_desc, cpu, d.data())},
                                         {DNNL_ARG_SCRATCHPAD, scratch}};
    const Matmul<T, C> own{.c = c.data(),
                           .c_stride = s.n,
                           .a = {a.data(), ta ? 1 : s.k, ta ? s.m : 1},
                           .b = {b.data(), tb ? 1 : s.n, tb ? s.k : 1},
                           .m = s.m,
                           .n = s.n,
                           .k = s.k,
                           .accumulate = accumulate};
    const double flops = 2.0 * static_cast<double>(s.m * s.n * s.k);
    const int calls = std::max(1, static_cast<int>((sizeof(T) == 4 ? 5e7 : 2e8) / flops));
    Samples mine, theirs;
    for (int i = 0; i < rounds; ++i) {
        double seconds;
        bool clean = timed(
            [&] {
                for (int j = 0; j < calls; ++j) keel::matmul<T, C>(stream, own);
            },
            seconds);
        if (i > 0) mine.add(seconds / calls, clean);
        clean = timed(
            [&] {
                for (int j = 0; j < calls; ++j) primitive.execute(queue, args);
                queue.wait();
            },
            seconds);
        if (i > 0) theirs.add(seconds / calls, clean);
    }
    std::printf(
        "%s->%s %s %6ld x %6ld x %5ld   keel %7.1f (%7.1f)   oneDNN %7.1f (%7.1f)   ratio %.2f (%.2f)   %zu, %zu "
        "samples\n",
        sizeof(T) == 4 ? "f32 " : "bf16", sizeof(C) == 4 ? "f32 " : "bf16", s.form, static_cast<long>(s.m),
        static_cast<long>(s.n), static_cast<long>(s.k), flops / mine.at(0.5) / 1e9, flops / mine.at(0) / 1e9,
        flops / theirs.at(0.5) / 1e9, flops / theirs.at(0) / 1e9, theirs.at(0.5) / mine.at(0.5),
        theirs.at(0) / mine.at(0), mine.seconds.size(), theirs.seconds.size());
    std::fflush(stdout);
}

}  // namespace

// matmul_vs_onednn [rounds] [f32 | bf16 | both] [threads]
int main(int argc, char** argv) {
    // Threads of the peer that wait by spinning would take keel's turns away. OpenMP reads this before main.
    if (setenv("OMP_WAIT_POLICY", "passive", 0) == 0 && !getenv("GOMP_SPINCOUNT")) {
        setenv("GOMP_SPINCOUNT", "0", 1);
        execv("/proc/self/exe", argv);
    }
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
    const char* only = argc > 2 ? argv[2] : "";
    Stream stream(argc > 3 ? std::atoi(argv[3]) : 0);
    alone = stream.threads() == 1;
    omp_set_num_threads(stream.threads());
    std::printf("%d threads, float peak %.1f GF/s, keel uses %s and %s. GF/s: median (best)\n", stream.threads(),
                peak(stream) / 1e9, matmul_isa<float>(), matmul_isa<bf16>());
    const Shape shapes[] = {
        {2048, 864, 288, "NT"},  {2048, 1536, 288, "NT"}, {2048, 288, 768, "NT"},  {2048, 288, 864, "NN"},
        {864, 288, 2048, "TN"},  {2048, 1536, 512, "NT"}, {2048, 2752, 512, "NT"}, {2048, 512, 1376, "NT"},
        {2048, 512, 2752, "NN"}, {2752, 512, 2048, "TN"}, {1024, 768, 768, "NT"},  {1024, 4096, 768, "NT"},
        {1024, 768, 2048, "NT"}, {1024, 768, 4096, "NN"}, {4096, 768, 1024, "TN"}, {256, 512, 512, "NT"},
        {512, 512, 2048, "TN"},  {256, 32000, 768, "NT"}, {256, 768, 32000, "NN"}, {32000, 768, 256, "TN"},
        {1, 2048, 512, "NT"},    {16, 768, 768, "NT"},
    };
    for (const Shape& shape : shapes) {
        if (std::strcmp(only, "bf16")) compare<float, float>(stream, shape, rounds);
        if (!std::strcmp(only, "f32")) continue;
        if (shape.form[0] == 'T')
            compare<bf16, float>(stream, shape, rounds);
        else
            compare<bf16, bf16>(stream, shape, rounds);
    }
}
