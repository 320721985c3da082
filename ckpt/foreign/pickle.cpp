#include "ckpt/foreign/pickle.h"

#include <bit>
#include <limits>
#include <optional>
#include <unordered_map>

#include "kernels/base/error.h"

namespace keel {
namespace {

// Text of code points below 256, one byte each; nothing where one is not.
std::optional<std::string> latin1(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c < 0x80) out += text[i];
        else if ((c == 0xc2 || c == 0xc3) && i + 1 < text.size()) out += static_cast<char>((c << 6) | (static_cast<unsigned char>(text[++i]) & 0x3f));
        else return std::nullopt;
    }
    return out;
}

using Kind = PickleValue::Kind;

// The instructions of protocols 2 to 5, as pickletools names them. Those of protocols 0 and 1 alone are lines of text.
enum Op : unsigned char {
    MARK = '(', STOP = '.', POP = '0', POP_MARK = '1', DUP = '2', BINFLOAT = 'G', BININT = 'J', BININT1 = 'K', NONE = 'N',
    BININT2 = 'M', BINPERSID = 'Q', REDUCE = 'R', BINSTRING = 'T', SHORT_BINSTRING = 'U', BINUNICODE = 'X', EMPTY_LIST = ']',
    APPEND = 'a', BUILD = 'b', GLOBAL = 'c', DICT = 'd', EMPTY_DICT = '}', APPENDS = 'e', BINGET = 'h', LONG_BINGET = 'j',
    LIST = 'l', BINPUT = 'q', LONG_BINPUT = 'r', SETITEM = 's', TUPLE = 't', EMPTY_TUPLE = ')', SETITEMS = 'u', BINBYTES = 'B',
    SHORT_BINBYTES = 'C', PROTO = 0x80, NEWOBJ = 0x81, TUPLE1 = 0x85, TUPLE2 = 0x86, TUPLE3 = 0x87, NEWTRUE = 0x88,
    NEWFALSE = 0x89, LONG1 = 0x8a, LONG4 = 0x8b, SHORT_BINUNICODE = 0x8c, BINUNICODE8 = 0x8d, BINBYTES8 = 0x8e,
    EMPTY_SET = 0x8f, ADDITEMS = 0x90, FROZENSET = 0x91, NEWOBJ_EX = 0x92, STACK_GLOBAL = 0x93, MEMOIZE = 0x94, FRAME = 0x95,
    BYTEARRAY8 = 0x96
};

class Machine {
public:
    Machine(std::string_view bytes, const std::string& file, std::deque<PickleValue>& values) : bytes_(bytes), file_(file), values_(values) {}

    const PickleValue* run() {
        while (true) {
            op_at_ = at_;
            op_ = take(1)[0];
            if (static_cast<unsigned char>(op_) == STOP) {
                if (!marks_.empty() || stack_.size() != 1) refuse("ends with ", stack_.size(), " values instead of one");
                return stack_.back();
            }
            step(static_cast<unsigned char>(op_));
        }
    }

private:
    template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) const {
        constexpr char digits[] = "0123456789abcdef";
        const auto op = static_cast<unsigned char>(op_);
        fail(file_, ": byte ", op_at_, " of the pickle, instruction 0x", digits[op >> 4], digits[op & 15],
             op > ' ' && op < 0x7f ? concat(" '", op_, "'") : std::string(), ": ", parts...);
    }

    std::string_view take(std::uint64_t count) {
        if (count > bytes_.size() - at_) refuse("needs ", count, " bytes, but ", bytes_.size() - at_, " are left; the pickle is cut or damaged");
        const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(count));
        at_ += taken.size();
        return taken;
    }
    std::uint64_t number(std::size_t width) {
        std::uint64_t value = 0;
        const std::string_view taken = take(width);
        for (std::size_t i = 0; i < width; ++i) value |= static_cast<std::uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
        return value;
    }
    std::string_view line() {
        const std::size_t end = bytes_.find('\n', at_);
        if (end == std::string_view::npos) refuse("a line does not end");
        const std::string_view text = take(end - at_);
        take(1);
        return text;
    }

    // Few instructions can copy much, again and again. An honest byte makes at most a pointer in a list, and once more in a set.
    static std::size_t budget(std::size_t pickle_bytes) { return (std::size_t{1} << 20) + 32 * pickle_bytes; }
    void spend(std::size_t bytes) {
        if (bytes > budget_) refuse("the values take more than ", budget(bytes_.size()), " bytes, out of proportion to the pickle");
        budget_ -= bytes;
    }
    PickleValue* make(Kind kind, std::string_view text = {}) {
        if (values_.size() >= Pickle::max_values) refuse("more than ", Pickle::max_values, " values");
        spend(text.size());
        PickleValue& value = values_.emplace_back();
        value.kind = kind;
        value.text = text;
        return &value;
    }
    PickleValue* push(PickleValue* value) {
        if (stack_.size() >= Pickle::max_values) refuse("more than ", Pickle::max_values, " values on the stack");
        stack_.push_back(value);
        return value;
    }
    void push_integer(std::int64_t value) { push(make(Kind::integer))->integer = value; }
    void push_boolean(bool value) { push(make(Kind::boolean))->integer = value; }
    void push_long(std::string_view digits) {  // two's complement, least byte first, of any length
        if (digits.size() > 8) return void(push(make(Kind::bytes, digits)));
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < digits.size(); ++i) value |= static_cast<std::uint64_t>(static_cast<unsigned char>(digits[i])) << (8 * i);
        const auto unused = static_cast<unsigned>(64 - 8 * digits.size());
        push_integer(digits.empty() ? 0 : static_cast<std::int64_t>(value << unused) >> unused);
    }

    // What lies above the newest mark, and nothing below it, is anybody's.
    std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
    PickleValue* pop() {
        PickleValue* value = top();
        stack_.pop_back();
        return value;
    }
    PickleValue* top() const {
        if (stack_.size() <= floor()) refuse("the stack is empty");
        return stack_.back();
    }
    std::vector<PickleValue*> pop_marked() {
        if (marks_.empty()) refuse("no mark is set");
        std::vector<PickleValue*> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
        stack_.resize(marks_.back());
        marks_.pop_back();
        return items;
    }
    std::vector<PickleValue*> pop_several(std::size_t count) {
        std::vector<PickleValue*> items(count);
        for (std::size_t i = count; i-- > 0;) items[i] = pop();
        return items;
    }
    void push_holding(Kind kind, std::vector<PickleValue*> items) {
        if (kind == Kind::dict && items.size() % 2 != 0) refuse("a key has no value");
        spend(items.size() * sizeof(PickleValue*));
        push(make(kind))->items = std::move(items);
    }

    void remember(std::uint64_t slot) {
        if (memo_.size() >= Pickle::max_values) refuse("more than ", Pickle::max_values, " values are remembered");
        memo_[slot] = top();
    }
    void recall(std::uint64_t slot) {
        const auto found = memo_.find(slot);
        if (found == memo_.end()) refuse("nothing was remembered as ", slot);
        push(found->second);
    }

    // An object's items are its own when it is a list or a dict by inheritance.
    void extend(PickleValue* holder, const std::vector<PickleValue*>& items, Kind kind) {
        if (!holder->is(kind) && !holder->is(Kind::object)) refuse("adds to ", holder->description());
        if (kind == Kind::dict && items.size() % 2 != 0) refuse("a key has no value");
        spend(items.size() * sizeof(PickleValue*));
        holder->items.insert(holder->items.end(), items.begin(), items.end());
    }

    void reduce(PickleValue* callee, PickleValue* arguments) {
        if (!arguments->is(Kind::tuple)) refuse("the arguments of a call are ", arguments->description(), ", not a tuple");
        if (PickleValue* known = standard_container(*callee, *arguments)) return void(push(known));
        PickleValue* object = push(make(Kind::object));
        object->callee = callee;
        object->arguments = arguments;
    }

    // collections.OrderedDict(), set([…]) and the like, by their names; nullptr if it is none of them.
    PickleValue* standard_container(const PickleValue& callee, const PickleValue& arguments) {
        if (!callee.is(Kind::global)) return nullptr;
        const auto& given = arguments.items;
        const std::string& name = callee.text;
        const auto builtin = [&](std::string_view type) {
            return (name.starts_with("builtins.") || name.starts_with("__builtin__.")) && name.ends_with(type) &&
                   name.size() == name.find('.') + 1 + type.size();
        };
        if (name == "collections.OrderedDict" || name == "collections.defaultdict") {
            PickleValue* dict = make(Kind::dict);
            if (name == "collections.defaultdict" || given.empty()) return dict;
            if (given.size() != 1 || !given[0]->is(Kind::list)) return nullptr;
            spend(2 * given[0]->items.size() * sizeof(PickleValue*));
            for (const PickleValue* pair : given[0]->items) {
                if (pair->items.size() != 2) return nullptr;
                dict->items.insert(dict->items.end(), pair->items.begin(), pair->items.end());
            }
            return dict;
        }
        if (builtin("set") || builtin("frozenset")) {
            if (given.size() > 1 || (given.size() == 1 && !given[0]->is(Kind::list) && !given[0]->is(Kind::tuple))) return nullptr;
            PickleValue* set = make(Kind::set);
            if (given.empty()) return set;
            spend(given[0]->items.size() * sizeof(PickleValue*));
            set->items = given[0]->items;
            return set;
        }
        // How protocol 2 writes bytes: text whose code points are the bytes.
        if (name == "_codecs.encode" && given.size() == 2 && given[0]->is(Kind::text))
            if (const auto bytes = latin1(given[0]->text)) return make(Kind::bytes, *bytes);
        return nullptr;
    }

    void build(PickleValue* object, PickleValue* state) {
        if (object->is(Kind::object)) object->state = state;
        else if (!object->is(Kind::dict)) refuse("sets the state of ", object->description());  // of an OrderedDict: its attributes
    }

    void global(std::string_view module, std::string_view name) { push(make(Kind::global, concat(module, ".", name))); }

    void step(unsigned char op);

    std::string_view bytes_;
    const std::string& file_;
    std::deque<PickleValue>& values_;
    std::size_t at_ = 0, op_at_ = 0;
    char op_ = 0;
    std::size_t budget_ = budget(bytes_.size());
    std::vector<PickleValue*> stack_;
    std::vector<std::size_t> marks_;  // heights of the stack
    std::unordered_map<std::uint64_t, PickleValue*> memo_;
};

void Machine::step(unsigned char op) {
    switch (op) {
        case PROTO:
            if (const std::uint64_t version = number(1); version < 2 || version > 5) refuse("protocol ", version, "; 2 to 5 are known");
            break;
        case FRAME: number(8); break;  // how much to read ahead
        case MARK:
            if (marks_.size() >= Pickle::max_values) refuse("more than ", Pickle::max_values, " marks");
            marks_.push_back(stack_.size());
            break;
        case POP:
            if (stack_.size() == floor() && !marks_.empty()) marks_.pop_back();
            else pop();
            break;
        case POP_MARK: pop_marked(); break;
        case DUP: push(top()); break;

        case NONE: push(make(Kind::none)); break;
        case NEWTRUE: push_boolean(true); break;
        case NEWFALSE: push_boolean(false); break;
        case BININT: push_integer(static_cast<std::int32_t>(number(4))); break;
        case BININT1: push_integer(static_cast<std::int64_t>(number(1))); break;
        case BININT2: push_integer(static_cast<std::int64_t>(number(2))); break;
        case LONG1: push_long(take(number(1))); break;
        case LONG4: push_long(take(number(4))); break;
        case BINFLOAT: {
            std::uint64_t bits = 0;
            for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
            push(make(Kind::real))->real = std::bit_cast<double>(bits);
            break;
        }
        case SHORT_BINUNICODE: push(make(Kind::text, take(number(1)))); break;
        case BINUNICODE: push(make(Kind::text, take(number(4)))); break;
        case BINUNICODE8: push(make(Kind::text, take(number(8)))); break;
        case SHORT_BINSTRING: push(make(Kind::text, take(number(1)))); break;  // a str of Python 2
        case BINSTRING: push(make(Kind::text, take(number(4)))); break;
        case SHORT_BINBYTES: push(make(Kind::bytes, take(number(1)))); break;
        case BINBYTES: push(make(Kind::bytes, take(number(4)))); break;
        case BINBYTES8:
        case BYTEARRAY8: push(make(Kind::bytes, take(number(8)))); break;

        case EMPTY_LIST: push(make(Kind::list)); break;
        case EMPTY_TUPLE: push(make(Kind::tuple)); break;
        case EMPTY_DICT: push(make(Kind::dict)); break;
        case EMPTY_SET: push(make(Kind::set)); break;
        case LIST: push_holding(Kind::list, pop_marked()); break;
        case TUPLE: push_holding(Kind::tuple, pop_marked()); break;
        case DICT: push_holding(Kind::dict, pop_marked()); break;
        case FROZENSET: push_holding(Kind::set, pop_marked()); break;
        case TUPLE1: push_holding(Kind::tuple, pop_several(1)); break;
        case TUPLE2: push_holding(Kind::tuple, pop_several(2)); break;
        case TUPLE3: push_holding(Kind::tuple, pop_several(3)); break;
        case APPEND: {
            const auto item = pop_several(1);
            extend(top(), item, Kind::list);
            break;
        }
        case SETITEM: {
            const auto item = pop_several(2);
            extend(top(), item, Kind::dict);
            break;
        }
        case APPENDS: {
            const auto items = pop_marked();
            extend(top(), items, Kind::list);
            break;
        }
        case SETITEMS: {
            const auto items = pop_marked();
            extend(top(), items, Kind::dict);
            break;
        }
        case ADDITEMS: {
            const auto items = pop_marked();
            extend(top(), items, Kind::set);
            break;
        }

        case BINPUT: remember(number(1)); break;
        case LONG_BINPUT: remember(number(4)); break;
        case MEMOIZE: remember(memo_.size()); break;
        case BINGET: recall(number(1)); break;
        case LONG_BINGET: recall(number(4)); break;

        case GLOBAL: {
            const std::string_view module = line();
            global(module, line());
            break;
        }
        case STACK_GLOBAL: {
            const auto names = pop_several(2);
            if (!names[0]->is(Kind::text) || !names[1]->is(Kind::text)) refuse("a name is ", names[0]->description(), " and ", names[1]->description());
            global(names[0]->text, names[1]->text);
            break;
        }
        case BINPERSID: {
            PickleValue* id = pop();
            push(make(Kind::persistent))->arguments = id;
            break;
        }
        case REDUCE:
        case NEWOBJ: {
            const auto call = pop_several(2);
            reduce(call[0], call[1]);
            break;
        }
        case NEWOBJ_EX: {  // with arguments by name, which only objects that stay opaque have
            const auto call = pop_several(3);
            reduce(call[0], call[1]);
            break;
        }
        case BUILD: {
            PickleValue* state = pop();
            build(top(), state);
            break;
        }
        default:
            refuse("is none of protocols 2 to 5");
    }
}

}  // namespace

Pickle::Pickle(std::string_view bytes, const std::string& file) { root_ = Machine(bytes, file, values_).run(); }

const PickleValue* PickleValue::find(std::string_view key) const {
    if (kind == Kind::object) return state && state->is(Kind::dict) ? state->find(key) : nullptr;
    if (kind != Kind::dict) return nullptr;
    for (std::size_t i = items.size(); i >= 2; i -= 2)  // the last one counts, as in Python
        if (items[i - 2]->is(Kind::text) && items[i - 2]->text == key) return items[i - 1];
    return nullptr;
}

std::string PickleValue::description() const {
    switch (kind) {
        case Kind::none: return "None";
        case Kind::boolean: return integer ? "True" : "False";
        case Kind::integer: return concat("the number ", integer);
        case Kind::real: return concat("the number ", real);
        case Kind::text: return concat("the text \"", std::string_view(text).substr(0, 80), "\"");
        case Kind::bytes: return concat(text.size(), " bytes");
        case Kind::list: return concat("a list of ", items.size());
        case Kind::tuple: return concat("a tuple of ", items.size());
        case Kind::dict: return concat("a dict of ", items.size() / 2);
        case Kind::set: return concat("a set of ", items.size());
        case Kind::global: return concat("the name ", text);
        case Kind::object: return callee->is(Kind::global) ? concat("an object of ", callee->text) : "an object of a class made on the spot";
        case Kind::persistent: return "a storage";
    }
    return {};
}

}  // namespace keel
