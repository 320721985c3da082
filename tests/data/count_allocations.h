// tests/data/count_allocations.h: how often any thread of this program has called operator new since it started.
#pragma once

namespace keel {
long allocations();
}
