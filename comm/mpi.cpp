#include "comm/mpi.h"

#include <cstdlib>

#include "comm/mpi_group.h"

namespace keel {
namespace {

class MpiWorld final : public World {
public:
    explicit MpiWorld(std::shared_ptr<MpiShared> shared) : shared_(std::move(shared)) {}
    int rank() const override { return shared_->rank; }
    int size() const override { return shared_->size; }
    const char* transport() const override { return "mpi"; }
    int local_rank() const override { return shared_->local_rank; }
    int local_size() const override { return shared_->local_size; }
    void abort(const std::string& why) noexcept override { shared_->abort(why); }
    bool aborted() override {
        shared_->poll();
        return shared_->aborted;
    }
    std::string departure() override { return shared_->departure(); }

protected:
    std::unique_ptr<Group> make_group(const std::string& name, std::vector<int> members, int rank) override {
        return std::make_unique<MpiGroup>(shared_, name, std::move(members), rank);
    }

private:
    std::shared_ptr<MpiShared> shared_;
};

// Open MPI ends a process that srun started without such a plugin inside MPI_Init, and its text speaks of building it anew.
void expect_plugin(const Launch& launch) {
    if (launch.launcher != "Slurm") return;
    for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD"})
        if (std::getenv(name)) return;
    fail_usage("srun started ", launch.world, " processes without a plugin by which MPI lets them find each other: start them by "
               "srun --mpi=pmix (srun --mpi=list shows what there is), or by mpirun");
}

void start_mpi(const Launch& launch) {
    expect_plugin(launch);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided = 0, size = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided < MPI_THREAD_MULTIPLE)
        fail("this MPI library does not let several threads call it (MPI_THREAD_MULTIPLE); keel needs that");
    if (size != launch.world)
        fail_usage(concat(launch.launcher, " says ", launch.world, " ranks, but MPI sees ", size,
                          launch.launcher == "Slurm"
                              ? ": start them by srun --mpi=pmix (srun --mpi=list shows what there is), or by mpirun"
                              : ": use the mpirun of the MPI that keel was built with"));
}

}  // namespace

bool built_with_mpi() { return true; }

void run_mpi(const Launch& launch, const MpiOptions& options, const std::function<void(World&)>& body,
             const std::function<int(std::exception_ptr)>& complain) {
    std::shared_ptr<MpiShared> shared;
    try {
        start_mpi(launch);
        shared = std::make_shared<MpiShared>(options);
    } catch (...) {
        const int code = complain(std::current_exception());
        int started = 0;
        MPI_Initialized(&started);
        if (started) MPI_Abort(MPI_COMM_WORLD, code);
        std::_Exit(code);
    }
    std::exception_ptr error;
    try {
        MpiWorld world(shared);
        const auto last = world.everyone("end");
        body(world);
        last->barrier();  // so that MPI_Finalize waits for nobody
    } catch (...) {
        error = std::current_exception();
    }
    if (error) shared->leave(error, complain);
    shared.reset();
    MPI_Finalize();
}

}  // namespace keel
