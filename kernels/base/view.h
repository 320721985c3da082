// kernels/base/view.h: a typed window on memory that somebody else owns. Passed by value, never frees.
//
// Row-major. The last dims are contiguous; rows of the first dim may lie `stride` elements apart, so that the q columns
// of a packed qkv are a View too. Ops that need contiguous memory say so and check.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "kernels/base/error.h"

namespace keel {

template <class T> class View {
public:
    static constexpr int max_rank = 4;

    View(T* data, std::initializer_list<std::int64_t> dims) : data_(data), rank_(static_cast<int>(dims.size())) {
        if (rank_ < 1 || rank_ > max_rank) fail("View: rank ", rank_, " is not in 1…", max_rank);
        int i = 0;
        for (const std::int64_t d : dims) {
            if (d < 0) fail("View: dim ", i, " is ", d, "; a dim cannot be negative");
            dims_[static_cast<std::size_t>(i++)] = d;
        }
        stride_ = inner_size();
    }

    // A View of T is a View of const T.
    template <class U, class = std::enable_if_t<std::is_same_v<const U, T> && !std::is_same_v<U, T>>>
    View(const View<U>& other) : data_(other.data()), rank_(other.rank()), stride_(other.stride()) {
        for (int i = 0; i < rank_; ++i) dims_[static_cast<std::size_t>(i)] = other.dim(i);
    }

    T* data() const { return data_; }
    int rank() const { return rank_; }
    std::int64_t dim(int i) const { return dims_[static_cast<std::size_t>(i)]; }
    std::int64_t stride() const { return stride_; }  // elements from one row of dim 0 to the next
    std::int64_t size() const { return dims_[0] * inner_size(); }
    std::int64_t bytes() const { return size() * static_cast<std::int64_t>(sizeof(T)); }
    bool contiguous() const { return stride_ == inner_size() || dims_[0] <= 1; }

    T* row(std::int64_t i) const { return data_ + i * stride_; }
    T& operator[](std::int64_t i) const { return data_[i]; }  // of a contiguous View, flat

    // Rows [begin, begin + count) of dim 0.
    View rows(std::int64_t begin, std::int64_t count) const {
        if (begin < 0 || count < 0 || begin + count > dims_[0])
            fail("View: rows ", begin, "…", begin + count, " of ", shape());
        View v = *this;
        v.data_ = row(begin);
        v.dims_[0] = count;
        return v;
    }

    // Columns [begin, begin + count) of a matrix; the result keeps the stride.
    View columns(std::int64_t begin, std::int64_t count) const {
        if (rank_ != 2 || begin < 0 || count < 0 || begin + count > dims_[1])
            fail("View: columns ", begin, "…", begin + count, " of ", shape());
        View v = *this;
        v.data_ = data_ + begin;
        v.dims_[1] = count;
        return v;
    }

    View reshape(std::initializer_list<std::int64_t> dims) const {
        View v(data_, dims);
        if (!contiguous() || v.size() != size()) fail("View: cannot reshape ", shape(), " to ", v.shape());
        return v;
    }

    std::string shape() const {
        std::string text = "[";
        for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(dim(i));
        return text + "]";
    }

private:
    std::int64_t inner_size() const {
        std::int64_t n = 1;
        for (int i = 1; i < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
        return n;
    }

    T* data_;
    std::array<std::int64_t, max_rank> dims_{};
    int rank_;
    std::int64_t stride_ = 0;
};

// The checks every op makes on entry; `what` is "rmsnorm: gain".
template <class T>
void expect_shape(const char* what, const View<T>& v, std::initializer_list<std::int64_t> dims,
                  std::source_location where = std::source_location::current()) {
    const View<T> want(v.data(), dims);
    bool same = v.rank() == want.rank();
    for (int i = 0; same && i < v.rank(); ++i) same = v.dim(i) == want.dim(i);
    if (!same) fail(Located(concat(what, " is ", v.shape(), ", but must be ", want.shape()), where));
}

template <class T>
void expect_contiguous(const char* what, const View<T>& v,
                       std::source_location where = std::source_location::current()) {
    if (!v.contiguous())
        fail(Located(concat(what, " has rows ", v.stride(), " elements apart; it must be contiguous"), where));
}

}  // namespace keel
