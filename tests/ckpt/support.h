// tests/ckpt/support.h: bytes from hex, and a look at what an error says.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/tensor.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/random.h"
#include "tests/temp_folder.h"

namespace keel::test {

inline std::string from_hex(std::string_view text) {
    std::string bytes, digits;
    for (const char c : text)
        if (std::isxdigit(static_cast<unsigned char>(c))) digits += c;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    return bytes;
}

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.good()) << path;
}

// Runs `action`, which must throw Error with every one of `parts` in its message.
template <class Action>
void expect_error(Action action, std::initializer_list<std::string> parts) {
    try {
        action();
        ADD_FAILURE() << "no error was thrown; expected one with \"" << *parts.begin() << "\"";
    } catch (const Error& e) {
        for (const std::string& part : parts)
            EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
                << "message: " << e.what() << "\nlacks:   " << part;
    }
}

// Tensors with memory of their own and reproducible content.
class OwnedTensors {
public:
    void add(std::string name, Dtype dtype, std::vector<std::int64_t> shape, std::uint64_t seed = 1) {
        const std::int64_t count = element_count(shape);
        auto& bytes = memory_.emplace_back(static_cast<std::size_t>(count * size_bytes(dtype)));
        std::uint64_t x = seed * 0x9e3779b97f4a7c15u + std::hash<std::string>{}(name);
        for (std::int64_t i = 0; i < count; ++i) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            const float value = static_cast<float>(static_cast<std::int32_t>(x >> 32)) * 0x1p-33f;
            with_type(dtype, [&]<class T>() {
                const T element(value);
                std::memcpy(bytes.data() + i * size_bytes(dtype), &element, sizeof element);
            });
        }
        tensors_.push_back({std::move(name), dtype, std::move(shape), bytes.data()});
    }
    // The same names, shapes and types, filled with 0xee.
    OwnedTensors blank() const {
        OwnedTensors other;
        for (const NamedTensor& t : tensors_) {
            auto& bytes = other.memory_.emplace_back(static_cast<std::size_t>(size_bytes(t)), std::byte{0xee});
            other.tensors_.push_back({t.name, t.dtype, t.shape, bytes.data()});
        }
        return other;
    }
    std::vector<NamedTensor>& all() { return tensors_; }
    const std::vector<NamedTensor>& all() const { return tensors_; }
    const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

private:
    std::vector<std::vector<std::byte>> memory_;  // moving an inner vector keeps its address
    std::vector<NamedTensor> tensors_;
};

}  // namespace keel::test
