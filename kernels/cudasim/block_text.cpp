// How a block speaks of its threads in findings.
#include <string>

#include "kernels/cudasim/block.h"

namespace sim {
namespace {

std::string triple(cuda::uint3 i) {
    if (i.y == 0 && i.z == 0) return std::to_string(i.x);
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

}  // namespace

std::string hex(unsigned mask) {
    char text[11];
    std::snprintf(text, sizeof text, "0x%08x", mask);
    return text;
}

std::string Block::block_text() const {
    return "block " + triple(index_) + " of the launch at " + where(launch_->site);
}
std::string Block::who() const { return "thread " + std::to_string(running_) + " of block " + triple(index_); }

void Block::stop_for_shared(std::size_t bytes, const char* name, const Site& site) {
    const std::size_t declared = shared_.static_bytes() + bytes, asked = shared_.dynamic_bytes();
    const std::string what = std::string(name) + " of " + where(site) + " makes it " + std::to_string(declared) + " bytes of shared memory that " +
                             block_text() + " declares";
    if (declared > Shared::static_limit)
        stop(Kind::bad_launch, what + "; a kernel may declare " + std::to_string(Shared::static_limit) + ": ask for more at the launch");
    stop(Kind::bad_launch, what + ", beside " + std::to_string(asked) + " asked for at the launch; together it may have " +
                               std::to_string(shared_limit()) +
                               (shared_limit() == Shared::static_limit ? " without cudaFuncAttributeMaxDynamicSharedMemorySize" : ", all of a block"));
}

std::string Block::ranges(const std::vector<bool>& chosen) const {
    std::string text;
    for (unsigned i = 0; i < threads_; ++i) {
        if (!chosen[i]) continue;
        unsigned end = i;
        while (end + 1 < threads_ && chosen[end + 1]) ++end;
        text += (text.empty() ? "" : ", ") + std::to_string(i) + (end > i ? "-" + std::to_string(end) : "");
        i = end;
    }
    return text;
}

// "threads 0-15 wait at barrier 0, kernels/x.cu:12 (kernel); threads 16-31 have left"
std::string Block::waiters() const {
    std::string text;
    std::vector<bool> told(threads_, false);
    for (unsigned i = 0; i < threads_; ++i) {
        if (told[i]) continue;
        const Lane& lane = lanes_[i];
        std::vector<bool> same(threads_, false);
        for (unsigned k = i; k < threads_; ++k)
            if (lanes_[k].waits == lane.waits &&
                (lane.waits == Waits::over || lanes_[k].site.line() == lane.site.line()) &&
                (lane.waits != Waits::address || lanes_[k].address == lane.address))
                same[k] = told[k] = true;
        text += (text.empty() ? "threads " : "; threads ") + ranges(same);
        switch (lane.waits) {
            case Waits::over:
                text += " have left";
                break;
            case Waits::nothing:
                text += " could go on";
                break;
            case Waits::barrier:
                text += " wait at barrier " + std::to_string(lane.barrier) + ", " + where(lane.site);
                break;
            case Waits::collective:
                text += " wait in " + std::string(lane.part->what->name) + " with mask " + hex(lane.part->mask) + ", " +
                        where(lane.site);
                break;
            case Waits::address:
                text += " wait for " + std::string(lane.what) + mbarriers_.text(lane.address) + ", at " +
                        where(lane.site);
                break;
        }
    }
    return text;
}

}  // namespace sim
