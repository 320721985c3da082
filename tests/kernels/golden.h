// tests/kernels/golden.h: reads tests/golden/<name>.golden, tensors of float64 written by a program that is not keel.
//
// Text, so that a change can be read in a diff: '#' comments; "tensor NAME DIM…"; then DIM×… hexadecimal floats,
// which lose no bit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace keel {

class Golden {
public:
    struct Tensor {
        std::vector<std::int64_t> dims;
        std::vector<double> values;
    };

    explicit Golden(const std::string& name);  // "ops/rmsnorm"

    const std::vector<double>& operator[](const std::string& tensor) const { return at(tensor).values; }
    std::int64_t dim(const std::string& tensor, std::size_t i) const { return at(tensor).dims.at(i); }
    double scalar(const std::string& tensor) const { return at(tensor).values.at(0); }

private:
    const Tensor& at(const std::string& tensor) const;

    std::string path_;
    std::map<std::string, Tensor> tensors_;
};

}  // namespace keel
