// tests/comm/suite.h: what every transport must do, written once against World. threads_test.cpp runs it on threads of
// one process, mpi_test.cpp on processes under mpirun, nccl_test.cpp on GPUs.
#pragma once

#include <functional>
#include <memory>
#include <memory_resource>
#include <ostream>
#include <string>
#include <vector>

#include "comm/world.h"

namespace keel::comm_suite {

template <class... Parts> void require(bool holds, const char* what, const Parts&... parts) {
    if (!holds) fail(concat("violated: ", what, parts...));
}

// What ranks bring lies where the default memory resource says, and who works on it is made by make_stream: the host,
// unless a test says otherwise before it runs the suite.
template <class T>
using Numbers = std::pmr::vector<T>;
// What a further thread of a rank does first: with GPUs it says that the rank's is meant.
inline std::function<void(int rank)> begin_thread = [](int) {};
inline std::function<std::shared_ptr<Stream>(int threads)> make_stream = [](int threads) {
    return std::make_shared<Stream>(threads, 64, 64);
};
class Worker {
public:
    explicit Worker(int threads) : stream_(make_stream(threads)) {}
    operator Stream&() const { return *stream_; }
    void synchronize() const { stream_->synchronize(); }

private:
    std::shared_ptr<Stream> stream_;
};

struct Case {
    const char* name;  // the behaviour protected
    void (*body)(World&);
};
inline void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
const std::vector<Case>& cases();

// Must end badly, and say so. On each rank the Error that ends it has all the texts of says(rank); the run as a whole
// ends with `cause` and `code`.
struct FailureCase {
    const char* name;
    double deadline_s;
    void (*body)(World&);
    std::vector<std::string> (*says)(int rank, int ranks);
    const char* cause;
    ExitCode code;
};
inline void PrintTo(const FailureCase& one, std::ostream* out) { *out << one.name; }
const std::vector<FailureCase>& failure_cases();
constexpr int failure_ranks = 4;

}  // namespace keel::comm_suite
