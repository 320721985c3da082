#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/pages.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

// What is larger than caches hold is zeroed past them, in whole lines; its ends need not be those of a line.
TEST(Clear, IsZeroToTheByteAndNoFurtherWhateverItsSize) {
    for (const std::int64_t bytes : {0ll, 1ll, 63ll, 64ll, 300'001ll, (64ll << 20) - 1, (64ll << 20) + 131}) {
        SCOPED_TRACE(bytes);
        constexpr std::int64_t before = 37, after = 200;
        Pages pages(before + bytes + after);
        std::byte* const all = pages.data();
        std::memset(all, 0xa5, static_cast<std::size_t>(before + bytes + after));
        clear(stream_of(2), View<std::byte>(all + before, {bytes}));
        const auto is = [](int value) { return [value](std::byte b) { return b == std::byte(value); }; };
        EXPECT_TRUE(std::all_of(all, all + before, is(0xa5)));
        EXPECT_TRUE(std::all_of(all + before, all + before + bytes, is(0)));
        EXPECT_TRUE(std::all_of(all + before + bytes, all + before + bytes + after, is(0xa5)));
    }
}

}  // namespace
}  // namespace keel
