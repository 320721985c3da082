#include "ckpt/foreign/torch_file.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace keel {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t max_dims = 8;
constexpr int max_depth = 64;  // of dicts in dicts; Megatron nests five
constexpr std::int64_t max_name_bytes = std::int64_t{256} << 20;  // of all names: dicts that share dicts have any number of paths

constexpr std::array<std::pair<std::string_view, StoredDtype>, 10> storage_classes{{
    {"torch.FloatStorage", StoredDtype::F32},
    {"torch.BFloat16Storage", StoredDtype::BF16},
    {"torch.HalfStorage", StoredDtype::F16},
    {"torch.DoubleStorage", StoredDtype::F64},
    {"torch.LongStorage", StoredDtype::I64},
    {"torch.IntStorage", StoredDtype::I32},
    {"torch.ShortStorage", StoredDtype::I16},
    {"torch.CharStorage", StoredDtype::I8},
    {"torch.ByteStorage", StoredDtype::U8},
    {"torch.BoolStorage", StoredDtype::BOOL},
}};

// The call of _rebuild_tensor_v2 behind a parameter, or a tensor with attributes; nullptr if it is none.
const PickleValue* tensor_call(const PickleValue& value) {
    const PickleValue* at = &value;
    for (int wrapped = 0; wrapped < 4; ++wrapped) {
        if (!at->is(Kind::object) || !at->callee->is(Kind::global)) return nullptr;
        const std::string& callee = at->callee->text;
        const auto& given = at->arguments->items;
        if (callee == "torch._utils._rebuild_tensor_v2") return at;
        const bool parameter = callee == "torch._utils._rebuild_parameter" || callee == "torch._utils._rebuild_parameter_with_state";
        if (!parameter || given.empty()) return nullptr;
        at = given[0];
    }
    return nullptr;
}

// _rebuild_from_type_v2(function, type, arguments, state): a tensor that carries attributes. Its arguments, or nullptr.
const PickleValue* typed_arguments(const PickleValue& value) {
    if (!value.is(Kind::object) || !value.callee->is_global("torch._tensor._rebuild_from_type_v2")) return nullptr;
    const auto& given = value.arguments->items;
    const bool tensor = given.size() >= 3 && given[0]->is_global("torch._utils._rebuild_tensor_v2") && given[2]->is(Kind::tuple);
    return tensor ? given[2] : nullptr;
}

const PickleValue* tensor_arguments(const PickleValue& value) {
    if (const PickleValue* call = tensor_call(value)) return call->arguments;
    return typed_arguments(value);
}

std::shared_ptr<const InputFile> open_torch(const std::filesystem::path& path) {
    auto file = std::make_shared<const InputFile>(path);
    std::string start(static_cast<std::size_t>(std::min<std::int64_t>(16, file->size_bytes())), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(start)));
    if (is_old_torch_file(start))
        fail(path.string(), " was saved by a PyTorch before 1.6, as one pickle from end to end; open it where you trust it, with a newer "
                            "PyTorch, and torch.save what torch.load gives");
    if (!start.starts_with("PK\3\4")) fail(path.string(), " is not a file of torch.save (a zip file): it begins with other bytes");
    return file;
}

}  // namespace

bool is_old_torch_file(std::string_view start) {
    using namespace std::string_view_literals;
    return start.starts_with("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv);
}

TorchFile::TorchFile(const std::filesystem::path& path) : TorchFile(open_torch(path), 0, -1) {}

TorchFile::TorchFile(std::shared_ptr<const InputFile> file, std::int64_t begin, std::int64_t end, std::int64_t max_pickle)
    : zip_(file, begin, end < 0 ? file->size_bytes() : end) {
    constexpr std::string_view pickle = "data.pkl";
    for (const auto& [name, entry] : zip_.entries())
        if (name.ends_with(pickle) && name.size() > pickle.size() && name.find('/') == name.size() - pickle.size() - 1)
            prefix_ = name.substr(0, name.size() - pickle.size());
    if (prefix_.empty()) fail(where(), " is a zip file, but not of torch.save: it has no member data.pkl");
    if (zip_.find(prefix_ + "constants.pkl")) fail(where(), " is a TorchScript program, not a checkpoint; save the state_dict of its model");
    if (zip_.find(prefix_ + "byteorder"))
        if (const std::string order = zip_.read(prefix_ + "byteorder", 16); order != "little")
            fail(where(), " was saved on a machine of byte order \"", order, "\"; keel reads little");
    pickle_ = std::make_unique<Pickle>(zip_.read(prefix_ + std::string(pickle), max_pickle), where());
}

bool TorchFile::is_tensor(const PickleValue& value) { return tensor_arguments(value) != nullptr; }

FileTensor TorchFile::tensor(const PickleValue& value, const std::string& name) {
    const auto tensor = [&] { return concat(where(), ": tensor \"", name, "\" "); };
    const PickleValue* arguments = tensor_arguments(value);
    if (!arguments) fail(tensor(), "is ", value.description(), ", not a tensor");
    const auto& given = arguments->items;  // storage, offset, size, stride, …
    if (given.size() < 4 || !given[0]->is(Kind::persistent) || !given[1]->is(Kind::integer) || !given[2]->is(Kind::tuple) ||
        !given[3]->is(Kind::tuple) || given[2]->items.size() != given[3]->items.size())
        fail(tensor(), "is described in a way this reader does not know");
    const auto& id = given[0]->arguments->items;  // "storage", class, key, device, elements
    if (id.size() < 5 || !id[1]->is(Kind::global) || !id[2]->is(Kind::text) || !id[4]->is(Kind::integer))
        fail(tensor(), "has a storage that is described in a way this reader does not know");

    FileTensor t{.file = zip_.file(), .dtype = StoredDtype::F32, .shape = {}, .begin = 0, .row_stride = 1};
    const auto known = std::find_if(storage_classes.begin(), storage_classes.end(), [&](const auto& c) { return c.first == id[1]->text; });
    if (known == storage_classes.end()) fail(tensor(), "is stored as ", id[1]->text, ", which keel does not read");
    t.dtype = known->second;
    const std::string member = prefix_ + "data/" + id[2]->text;
    const ZipEntry* storage = zip_.find(member);
    if (!storage) fail(tensor(), "lies in storage \"", id[2]->text, "\", which is not in the file");

    const std::int64_t element = size_bits(t.dtype) / 8, elements = storage->size_bytes / element, offset = given[1]->integer;
    std::int64_t reach = 0, contiguous = 1;  // the last element, counted from the first; the stride of rows that touch
    bool overflow = false, empty = false, ordered = true;
    const std::size_t dims = given[2]->items.size();
    if (dims > max_dims) fail(tensor(), "has ", dims, " dimensions; a model's have ", max_dims, " at most");
    for (std::size_t i = dims; i-- > 0;) {
        const PickleValue &size = *given[2]->items[i], &stride = *given[3]->items[i];
        if (!size.is(Kind::integer) || !stride.is(Kind::integer) || size.integer < 0 || stride.integer < 0) fail(tensor(), "has a negative size");
        t.shape.insert(t.shape.begin(), size.integer);
        empty = empty || size.integer == 0;
        std::int64_t span = 0;
        overflow |= __builtin_mul_overflow(std::max<std::int64_t>(size.integer - 1, 0), stride.integer, &span);
        overflow |= __builtin_add_overflow(reach, span, &reach);
        if (i == 0) t.row_stride = size.integer > 1 ? stride.integer : contiguous;
        else ordered = ordered && (stride.integer == contiguous || size.integer <= 1);
        overflow |= __builtin_mul_overflow(contiguous, std::max<std::int64_t>(size.integer, 1), &contiguous);
    }
    if (overflow || (!empty && (offset < 0 || offset >= elements || reach >= elements - offset)) || (empty && (offset < 0 || offset > elements)))
        fail(tensor(), shape_text(t.shape), " at element ", offset, " reaches past its storage, which has ", elements, " elements; the file is damaged");
    if (!ordered) fail(tensor(), "is a transposed view, whose rows are not contiguous; save tensor.contiguous()");
    t.begin = storage->begin + offset * element;
    storages_.insert(member);
    return t;
}

void TorchFile::collect(const PickleValue& value, const std::string& name, int depth, std::int64_t& budget, TensorTable& table) {
    budget -= 1 + static_cast<std::int64_t>(name.size());
    if (budget < 0) fail(where(), ": the names of its tensors take more than ", max_name_bytes, " bytes, or its dicts hold one another too often");
    if (depth > max_depth) fail(where(), ": dicts nested more than ", max_depth, " deep at \"", name, "\"");
    if (is_tensor(value)) {
        table.tensors.insert_or_assign(name, tensor(value, name));
        return;
    }
    if (!value.is(Kind::dict)) return;
    budget -= static_cast<std::int64_t>(value.items.size() / 2);  // dicts are shared: one may be walked many times
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2)
        if (value.items[i]->is(Kind::text))
            collect(*value.items[i + 1], name.empty() ? value.items[i]->text : name + "." + value.items[i]->text, depth + 1, budget, table);
}

TensorTable TorchFile::tensors(const PickleValue& value) {
    TensorTable table{.where = where(), .tensors = {}};
    std::int64_t budget = max_name_bytes;
    collect(value, "", 0, budget, table);
    return table;
}

void TorchFile::check_storages() const {
    for (const std::string& member : storages_) zip_.check(member);
}

}  // namespace keel
