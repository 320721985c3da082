// data/protobuf_reader.h: the fields of a protocol buffer, one after another, out of a string. Nothing is copied, and a
// length that points outside of its message is an error.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/error.h"

namespace keel {

class ProtobufReader {
public:
    ProtobufReader(std::string_view message, const std::string& name) : message_(message), name_(name) {}

    // Goes to the next field; false at the end. What the caller does not ask for is skipped.
    bool next() {
        if (at_ == message_.size()) return false;
        const std::uint64_t key = varint();
        field_ = key >> 3;
        type_ = static_cast<int>(key & 7);
        if (field_ == 0) damaged("field 0");
        switch (type_) {
            case 0: number_ = varint(); break;
            case 1: number_ = fixed(8); break;
            case 2: {
                const std::uint64_t size = varint();
                if (size > message_.size() - at_) damaged("a length that goes past the end");
                bytes_ = message_.substr(at_, size);
                at_ += size;
                break;
            }
            case 5: number_ = fixed(4); break;
            default: damaged("an unknown type of field");
        }
        return true;
    }

    std::uint64_t field() const { return field_; }
    std::string_view bytes() const { return expect(2), bytes_; }
    std::uint64_t number() const { return expect(0), number_; }
    bool flag() const { return number() != 0; }
    float real() const { return expect(5), std::bit_cast<float>(static_cast<std::uint32_t>(number_)); }

private:
    [[noreturn]] void damaged(const char* what) const { fail(name_, ": a damaged protocol buffer: ", what, " at byte ", at_); }
    void expect(int type) const {
        if (type_ != type) damaged("a field of another type than its number has");
    }
    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            if (at_ == message_.size()) damaged("a number that is cut off");
            const auto byte = static_cast<unsigned char>(message_[at_++]);
            value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
            if (byte < 0x80) return value;
        }
        damaged("a number that does not end");
    }
    std::uint64_t fixed(std::size_t size) {
        if (size > message_.size() - at_) damaged("a number that is cut off");
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < size; ++i)
            value |= static_cast<std::uint64_t>(static_cast<unsigned char>(message_[at_ + i])) << (8 * i);
        at_ += size;
        return value;
    }

    std::string_view message_;
    const std::string& name_;
    std::size_t at_ = 0;
    std::uint64_t field_ = 0, number_ = 0;
    int type_ = 0;
    std::string_view bytes_;
};

}  // namespace keel
