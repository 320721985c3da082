// ckpt/foreign/torch_file.h: files of torch.save (PyTorch 1.6 and later), read without Python and without its risk.
//
// Such a file is a zip of stored members: NAME/data.pkl, a pickle of the saved object in which tensors refer to storages,
// and NAME/data/KEY, the bytes of each storage. The pickle becomes a tree of plain values (ckpt/foreign/pickle.h); tensors
// are read in place, in pieces, by whoever wants them. Older files, which are pickles throughout, are refused.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "ckpt/foreign/file_tensor.h"
#include "ckpt/foreign/pickle.h"
#include "ckpt/foreign/zip_file.h"

namespace keel {

class TorchFile {
public:
    static constexpr std::int64_t max_pickle_bytes = std::int64_t{256} << 20;

    explicit TorchFile(const std::filesystem::path& path);
    // What is [begin, end) of a file. Its pickle may have this many bytes.
    TorchFile(std::shared_ptr<const InputFile> file, std::int64_t begin, std::int64_t end, std::int64_t max_pickle = max_pickle_bytes);

    const PickleValue& root() const { return pickle_->root(); }
    std::string where() const { return zip_.file()->path().string(); }

    static bool is_tensor(const PickleValue& value);  // a tensor or parameter, whether it can be read or not
    // Refuses, by `name`, tensors that reach past their storage, are of types without a number, or lie in no order of rows.
    FileTensor tensor(const PickleValue& value, const std::string& name);

    // Every tensor below `value`, named by the keys that lead to it: "layers.0.attention.wq.weight". Keys that are no text
    // and tensors inside of objects are passed by.
    TensorTable tensors(const PickleValue& value);

    // Compares the checksums of the storages that the tensors asked for so far lie in: reads them whole.
    void check_storages() const;

private:
    void collect(const PickleValue& value, const std::string& name, int depth, std::int64_t& budget, TensorTable& table);

    ZipFile zip_;
    std::string prefix_;  // "archive/"
    std::unique_ptr<Pickle> pickle_;
    std::set<std::string> storages_;  // members that tensors were found in
};

// Whether the bytes begin a pickle of torch.save before PyTorch 1.6.
bool is_old_torch_file(std::string_view start);

}  // namespace keel
