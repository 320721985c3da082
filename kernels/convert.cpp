#include "kernels/convert.h"

#include "kernels/cuda_ops.h"
#include "kernels/simd.h"
#include "kernels/tiles.h"

namespace keel {
namespace {

template <class To, class From> void check(const Convert<To, From>& a) {
    if (a.x.size() != a.y.size())
        fail("convert: x has ", a.x.size(), " elements, but y has ", a.y.size(), "; they must be as many");
    expect_contiguous("convert: x", a.x);
    expect_contiguous("convert: y", a.y);
}
template <class T> void check(const Add<T>& a) {
    if (a.a.size() != a.y.size() || a.b.size() != a.y.size())
        fail("add: a has ", a.a.size(), " and b ", a.b.size(), " elements, but y has ", a.y.size(),
             "; they must be as many");
    expect_contiguous("add: a", a.a);
    expect_contiguous("add: b", a.b);
    expect_contiguous("add: y", a.y);
}

template <class To, class From> void convert_cpu(Stream& stream, const Convert<To, From>& a) {
    parallel_flat(stream, a.y.size(), [&](std::int64_t begin, std::int64_t count) {
        To* y = a.y.data() + begin;
        const From* x = a.x.data() + begin;
        simd::sweep(count, [&](auto at) { at.store(y, at.load(x)); });
    });
}

template <class T> void add_cpu(Stream& stream, const Add<T>& a) {
    parallel_flat(stream, a.y.size(), [&](std::int64_t begin, std::int64_t count) {
        T* y = a.y.data() + begin;
        const T* left = a.a.data() + begin;
        const T* right = a.b.data() + begin;
        simd::sweep(count, [&](auto at) { at.store(y, at.load(left) + at.load(right)); });
    });
}

}  // namespace

template <class To, class From> void convert(Stream& stream, const Convert<To, From>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    convert_cpu(stream, args);
}
template <class T> void add(Stream& stream, const Add<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    add_cpu(stream, args);
}

template void convert<float, float>(Stream&, const Convert<float, float>&);
template void convert<float, bf16>(Stream&, const Convert<float, bf16>&);
template void convert<bf16, float>(Stream&, const Convert<bf16, float>&);
template void convert<bf16, bf16>(Stream&, const Convert<bf16, bf16>&);
template void convert<float, f16>(Stream&, const Convert<float, f16>&);
template void convert<f16, float>(Stream&, const Convert<f16, float>&);
template void add<float>(Stream&, const Add<float>&);
template void add<bf16>(Stream&, const Add<bf16>&);
template void add<f16>(Stream&, const Add<f16>&);

}  // namespace keel
