// comm/world.h: one rank's view of all ranks. It makes groups, and that is all it is for: nothing else asks it for a
// rank.
//
// One World object per rank, handed to the rank's body by whoever launched it (comm/threads.h, comm/mpi.h); a process
// that is alone has a SoloWorld. Calls on one World come from one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"

namespace keel {

class World {
public:
    virtual ~World() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual const char* transport() const = 0;   // "solo", "threads", "mpi" or "nccl"
    virtual int local_rank() const = 0;          // among the ranks of this host, in [0, local_size)
    virtual int local_size() const = 0;
    const std::string& host() const;             // name of the machine

    // The group of the ranks `members`, in this order: members[r] is its rank r. Collective over the members: each of
    // them calls with the same name and list, and returns when all have; a rank that is no member does not call. Ranks
    // that share several groups make them in the same order. Groups must die before the World. A second group of the
    // same members is independent of the first: another thread may use it at the same time.
    std::unique_ptr<Group> group(const std::string& name, std::span<const int> members);
    std::unique_ptr<Group> everyone(const std::string& name = "world");  // all ranks, in order

    const UnderWay& under_way() const { return under_way_; }  // what this rank waits for in any of its groups

    // As Group::abort.
    virtual void abort(const std::string& why) noexcept = 0;
    // Whether a rank has, as far as this one knows by now; any thread may ask.
    virtual bool aborted() = 0;
    virtual std::string departure() = 0;  // "rank 2 left: out of memory", once aborted() is true

protected:
    virtual std::unique_ptr<Group> make_group(const std::string& name, std::vector<int> members, int rank) = 0;

private:
    UnderWay under_way_;
};

class SoloWorld final : public World {
public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    const char* transport() const override { return "solo"; }
    int local_rank() const override { return 0; }
    int local_size() const override { return 1; }
    void abort(const std::string&) noexcept override {}
    bool aborted() override { return false; }
    std::string departure() override { return ""; }

protected:
    std::unique_ptr<Group> make_group(const std::string& name, std::vector<int>, int) override {
        return std::make_unique<SoloGroup>(name);
    }
};

}  // namespace keel
