#include "tests/kernels/golden.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "kernels/base/error.h"

namespace keel {

Golden::Golden(const std::string& name) : path_(std::string(KEEL_TEST_DIR) + "/golden/" + name + ".golden") {
    std::ifstream file(path_);
    if (!file) fail("golden: cannot read ", path_, "; it is committed, and its script lies in tests/golden");
    Tensor* tensor = nullptr;
    std::size_t want = 0;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream words(line);
        std::string word;
        if (line.rfind("tensor ", 0) == 0) {
            if (tensor && tensor->values.size() != want) break;
            words >> word >> word;
            tensor = &tensors_[word];
            want = 1;
            for (std::int64_t d; words >> d; want *= static_cast<std::size_t>(d)) tensor->dims.push_back(d);
        } else if (tensor) {
            while (words >> word) tensor->values.push_back(std::strtod(word.c_str(), nullptr));
        }
    }
    if (!tensor || tensor->values.size() != want) fail("golden: ", path_, " is cut short; write it again");
}

const Golden::Tensor& Golden::at(const std::string& tensor) const {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end()) fail("golden: ", path_, " has no tensor ", tensor);
    return found->second;
}

}  // namespace keel
