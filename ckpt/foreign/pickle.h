// ckpt/foreign/pickle.h: Python's pickles (protocols 2 to 5) as trees of plain values. Nothing is ever called.
//
// A pickle is a program for a stack machine; two of its instructions, REDUCE and BUILD, let whoever wrote it call any
// function of whoever reads it. Here they only note what they would have called: the result is a value of kind `object`
// that holds the callable's name, its arguments and what was set on it. Containers of the standard library are known by
// name and become what they are. Everything else is data for the caller to judge.
//
// Values are shared, and may contain themselves: a walk over them must bound its depth. Errors name the file, the byte and
// the instruction. Memory: at most max_values values, and in proportion to the pickle, whatever it says.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

struct PickleValue {
    enum class Kind : std::uint8_t { none, boolean, integer, real, text, bytes, list, tuple, dict, set, global, object, persistent };

    Kind kind = Kind::none;
    std::int64_t integer = 0;  // of integer, and of boolean 0 or 1; past 64 bits a number is kept as its `bytes`
    double real = 0;
    std::string text;                    // of text, bytes, and of global "module.name"
    std::vector<PickleValue*> items{};   // of list, tuple, set; of dict, key and value in turn
    PickleValue* callee = nullptr;       // of object: the global that makes it
    PickleValue* arguments = nullptr;    // of object: a tuple; of persistent: the id
    PickleValue* state = nullptr;        // of object: what BUILD set on it, usually a dict

    bool is(Kind k) const { return kind == k; }
    bool is_global(std::string_view name) const { return kind == Kind::global && text == name; }
    // The value under a text key of a dict, or of an object, the attribute of this name; nullptr if there is none.
    const PickleValue* find(std::string_view key) const;
    // "a dict of 3", "None", "an object of argparse.Namespace": for messages.
    std::string description() const;
};

class Pickle {
public:
    static constexpr std::size_t max_values = std::size_t{1} << 23;

    // Reads the pickle at the beginning of `bytes`; what follows it is not looked at. `file` starts every message.
    Pickle(std::string_view bytes, const std::string& file);

    const PickleValue& root() const { return *root_; }

private:
    std::deque<PickleValue> values_;  // their addresses last
    const PickleValue* root_ = nullptr;
};

}  // namespace keel
